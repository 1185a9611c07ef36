//! The command `flexmem`.

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "flexmem", version, about)]
enum Command {
    /// Write a page that shows a trace in any browser, without a network
    Report(flexmem::report::Arguments),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Report(arguments) => flexmem::report::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
