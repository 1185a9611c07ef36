//! `flexmem import`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use super::output::{Destination, print, print_json};
use super::{Common, open, text, wrong_arguments};

/// Turn a memory file into a trace.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Where to write the trace; `-` for the standard output
    #[arg(short, long, value_name = "TRACE")]
    output: PathBuf,
}

#[derive(Serialize)]
struct Imported {
    kind: &'static str,
    trace_bytes: u64,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let output = Destination::find(&arguments.output)?;
    if arguments.common.json && output.is_standard_output() {
        return Err(wrong_arguments("--json and the trace cannot both go to the standard output"));
    }
    let mut trace = open(&arguments.common.file)?;
    let trace_bytes = output.write(|file| trace.copy_to(file))?;
    let imported = Imported { kind: trace.kind().name(), trace_bytes };
    if arguments.common.json {
        print_json(&imported)?;
    } else if !output.is_standard_output() {
        let (kind, size) = (imported.kind, text::size(trace_bytes));
        print(format!("{}: {size}, from a {kind}\n", output.name()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}
