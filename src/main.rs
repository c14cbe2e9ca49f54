//! The `pausegen` command: parses its arguments and hands over.

use std::process::ExitCode;

use clap::Parser;
use pausegen::commands::{self, Cli};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => {
            commands::print_error(error.as_ref());
            ExitCode::FAILURE
        }
    }
}
