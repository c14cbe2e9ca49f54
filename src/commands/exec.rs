//! `pausegen __exec`: becomes another program, which then dies with its parent. The sandbox starts its processes
//! with it; see [`crate::sandbox`].

use std::ffi::OsString;

use crate::sandbox::exec::{self, Exec};

/// The name of the hidden subcommand.
pub const NAME: &str = "__exec";

/// Runs a program that is killed when its parent dies.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The process that has to be the parent; with another one nothing is run
    #[arg(long)]
    parent_pid: i32,
    /// Mount a tmpfs on /var/run with a service account folder that names this namespace. Needs a mount namespace
    #[arg(long)]
    service_account_namespace: Option<String>,
    /// The program
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Does not return where it succeeds.
///
/// # Errors
///
/// The parent is another one, a mount fails, the program cannot be run.
pub fn run(args: Args) -> super::Result {
    let Args {
        parent_pid,
        service_account_namespace,
        command,
    } = args;
    Err(exec::exec(Exec {
        parent_pid,
        service_account_namespace,
        command,
    })
    .into())
}
