//! `flexmem report`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::output::{Destination, print, print_json};
use super::{Common, open, text, wrong_arguments};
use crate::report::{Limits, Report};
use crate::trace_file::file_name;

/// Write a page that shows a memory file.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Where to write the page; `-` for the standard output. With --json alone, no page is written
    #[arg(short, long, value_name = "PAGE", required_unless_present = "json")]
    output: Option<PathBuf>,
    /// How many sites the chart tells apart on each device; the others are one band
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=64))]
    bands: u16,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Common { file, json } = &arguments.common;
    let output = arguments.output.as_deref().map(Destination::find).transpose()?;
    let to_standard_output = output.as_ref().is_some_and(Destination::is_standard_output);
    if *json && to_standard_output {
        return Err(wrong_arguments("--json and the page cannot both go to the standard output"));
    }
    let limits = Limits { bands: usize::from(arguments.bands), ..Limits::default() };
    let mut report = Report::of(&mut open(file)?, &file_name(file), limits)?;
    // Always made: what is left out of it to make it fit is among the figures.
    let page = report.page()?;
    if let Some(output) = &output {
        output.write(|file| file.write_all(page.as_bytes()))?;
    }
    if *json {
        print_json(&report.summary)?;
    } else if let Some(output) = output.filter(|_| !to_standard_output) {
        print(format!("{}: {}\n", output.name(), text::size(page.len() as u64)).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}
