//! `flexmem import`.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;

use super::{Common, new_file, open, print_json, text, wrong_arguments};

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
    let output = &arguments.output;
    let to_standard_output = output == Path::new("-");
    if arguments.common.json && to_standard_output {
        return Err(wrong_arguments("--json and the trace cannot both go to the standard output"));
    }
    let mut trace = open(&arguments.common.file)?;
    if to_standard_output {
        trace.copy_to(io::stdout().lock())?;
        return Ok(ExitCode::SUCCESS);
    }
    let trace_bytes = write(&mut trace, output).with_context(|| output.display().to_string())?;
    let imported = Imported { kind: trace.kind().name(), trace_bytes };
    if arguments.common.json {
        print_json(&imported)?;
    } else {
        let (kind, size) = (imported.kind, text::size(trace_bytes));
        writeln!(io::stdout(), "{}: {size}, from a {kind}", output.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the whole trace or nothing: beside its place, then there. What is not a file, such as a pipe, is written to.
fn write(trace: &mut crate::TraceFile, output: &Path) -> anyhow::Result<u64> {
    if output.exists() && !output.is_file() {
        return Ok(trace.copy_to(File::create(output)?)?);
    }
    let mut file = new_file(output)?;
    let bytes = trace.copy_to(&mut file)?;
    file.persist(output)?;
    Ok(bytes)
}
