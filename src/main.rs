//! The `pausegen` command: parses its arguments and hands over.

use std::process::ExitCode;

use clap::Parser;
use pausegen::commands::{self, Cli};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match commands::run(cli) {
        Ok(code) => code,
        // Whoever read our output has seen enough, as with `pausegen manifests | head`.
        Err(error) if commands::is_broken_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            commands::print_error(error.as_ref());
            ExitCode::FAILURE
        }
    }
}
