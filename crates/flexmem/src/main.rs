//! The command `flexmem`.

use std::process::ExitCode;

fn main() -> ExitCode {
    flexmem::cli::main(std::env::args_os())
}
