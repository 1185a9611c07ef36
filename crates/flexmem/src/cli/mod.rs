//! The command `flexmem`: arguments, output, exit status.
//!
//! - `text`: sizes and tables for people; `progress`: the bar on long work; `output`: where results go.
//! - one file for each subcommand.

mod import;
mod info;
mod output;
mod plan;
mod progress;
mod replay;
mod report;
mod size;
mod text;
mod watch;

use std::cmp::Reverse;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use flex_stream::is_being_written;

use crate::TraceFile;
use crate::import::ImportError;
use crate::info::answers::{DeviceInfo, HistoryState};
use crate::info::{Options, info};
use crate::replay::Operations;

/// Says where the memory of a device went, from the files that PyTorch and others write.
///
/// FILE is a snapshot of PyTorch (torch.cuda.memory._dump_snapshot), the viewer's saved page, a chrome trace of its
/// profiler recorded with profile_memory=True, a log of RMM, a table of MiniMalloc, or a trace that `flexmem import`
/// wrote. Nothing in a file is ever run.
#[derive(Debug, Parser)]
#[command(name = "flexmem", version, after_help = EXIT_STATUS, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXIT_STATUS: &str = "Exit status: 0 success; 1 a file cannot be read, is not what it should be, or cannot \
                           be written; 2 wrong arguments; 3 the memory given, or any in reason, does not serve \
                           the trace (replay, plan); 4 there is no such process, 5 it does not stream its \
                           history, 6 it is another user's (watch).";

/// A file could not be read, is not what it should be, or could not be written.
const FAILED: u8 = 1;

/// Arguments that do not go together; clap finds what is wrong with one alone.
const WRONG_ARGUMENTS: u8 = 2;

/// What is wrong with the arguments.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongArguments(String);

fn wrong_arguments(text: impl std::fmt::Display) -> anyhow::Error {
    WrongArguments(text.to_string()).into()
}

/// The memory given does not serve the trace.
const NOT_SERVED: u8 = 3;

#[derive(Debug, Subcommand)]
enum Command {
    /// Turn a memory file into a trace
    Import(import::Arguments),
    /// Answer the first questions: is it whole, who held the memory, what ran out and why
    Info(info::Arguments),
    /// Play it on FlexAllocator with a given memory: would that have done?
    Replay(replay::Arguments),
    /// Find the smallest memory that serves it, by region layout
    Plan(plan::Arguments),
    /// Write a page that shows the memory over time, the regions and who held what, for any browser
    Report(report::Arguments),
    /// Watch a running process: what is live, who holds it, what ran out
    Watch(watch::Arguments),
    /// Print completions for a shell
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Runs the command with the arguments, the program's name first.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            return explain(&error);
        }
    };
    match run(&arguments.command) {
        Ok(status) => status,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            text::complain(format_args!("{error:#}"));
            ExitCode::from(if error.is::<WrongArguments>() { WRONG_ARGUMENTS } else { FAILED })
        }
    }
}

/// Prints what clap has to say: help and the version, which are the result, and errors.
fn explain(error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| io::stdout().flush()).context("the standard output");
    match printed {
        Err(failure) if !error.use_stderr() && !is_closed_pipe(&failure) => {
            text::complain(format_args!("{failure:#}"));
            ExitCode::from(FAILED)
        }
        // Whether the text of an error could be read makes no difference to it.
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(WRONG_ARGUMENTS)),
    }
}

fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Import(arguments) => import::run(arguments),
        Command::Info(arguments) => info::run(arguments),
        Command::Replay(arguments) => replay::run(arguments),
        Command::Plan(arguments) => plan::run(arguments),
        Command::Report(arguments) => report::run(arguments),
        Command::Watch(arguments) => watch::run(arguments),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "flexmem", &mut script);
            output::print(&script)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Whoever reads the output has seen enough, as `head` does.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let is_broken = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is_broken))
}

/// Reads a memory file, with a bar on long work. `-` is the standard input.
fn open(path: &Path) -> anyhow::Result<TraceFile> {
    let named = |error: ImportError| anyhow::Error::new(error).context(path.display().to_string());
    if path == Path::new("-") {
        return TraceFile::import(io::stdin().lock(), "-").map_err(named);
    }
    let file = progress::open(path).map_err(|error| named(error.into()))?;
    let name = crate::trace_file::file_name(path);
    let is_written = || is_being_written(&file);
    // What is left of a pipe, when it was read once, is nothing.
    if path.is_file() {
        let open = || progress::open(path).and_then(progress::read);
        return TraceFile::import_again(open, &name, is_written).map_err(named);
    }
    let input = progress::read(file).map_err(|error| named(error.into()))?;
    TraceFile::import(input, &name).map_err(named)
}

/// What the subcommands share.
#[derive(Debug, clap::Args)]
struct Common {
    /// The memory file; `-` for the standard input
    file: PathBuf,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Said with figures of a device whose whole history the file does not have.
const LOWER_BOUND: &str =
    "the file does not have the whole history: there may have been more before it, or behind it";

/// Whether a device may have needed more than the file tells: its history does not begin, or not end, with it.
fn is_lower_bound(trace: &mut TraceFile, device: u32) -> anyhow::Result<bool> {
    let found = info(trace, &Options { device_memory_bytes: None, top: 1 })?;
    let is_truncated = |found: &DeviceInfo| found.history.state == HistoryState::Truncated;
    Ok(found.growing || found.devices.iter().any(|found| found.device == device && is_truncated(found)))
}

/// The device to play: the one that is named, or the one with the highest peak.
fn operations(trace: &mut TraceFile, device: Option<u32>) -> anyhow::Result<(u32, Operations)> {
    let mut all = Operations::of(trace)?;
    let why = if trace.kind().is_snapshot() { ": history was never on" } else { "" };
    anyhow::ensure!(!all.is_empty(), "the file has no allocations to play{why}");
    all.sort_by_key(|(device, operations)| (Reverse(operations.peak_bytes()), *device));
    let Some(wanted) = device else { return Ok(all.swap_remove(0)) };
    let mut numbers: Vec<_> = all.iter().map(|(device, _)| device.to_string()).collect();
    numbers.sort();
    let found = all.into_iter().find(|(device, _)| *device == wanted);
    found
        .with_context(|| format!("device {wanted} allocated nothing; expected one of {}", numbers.join(", ")))
}
