//! `pausegen __sweep`: removes the folder of a sandbox when its owner is gone, however that went. See
//! [`crate::sandbox`].

use std::path::PathBuf;
use std::process::ExitCode;

/// The name of the hidden subcommand.
pub const NAME: &str = "__sweep";

/// Removes the folder of a sandbox when its owner is gone.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder
    folder: PathBuf,
}

/// Waits, and removes.
///
/// # Errors
///
/// The folder is none of a sandbox, or cannot be removed.
pub fn run(args: Args) -> super::Result {
    let Args { folder } = args;
    crate::sandbox::sweep_when_abandoned(&folder)?;
    Ok(ExitCode::SUCCESS)
}
