//! The `pausegen` command: parses its arguments and hands over.

use std::io::Write as _;
use std::process::ExitCode;

use clap::FromArgMatches as _;
use pausegen::commands::{self, Cli, complete};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if let Some(answer) = complete::asked_by_kubectl(&arguments) {
        // Where nobody reads it there is nobody to tell.
        drop(std::io::stdout().write_all(answer.as_bytes()));
        return ExitCode::SUCCESS;
    }
    let matches = complete::command(&arguments).get_matches_from(arguments);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
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
