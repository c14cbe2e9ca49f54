//! `pausegen sandbox`: a local control plane to play with.

use clap::Subcommand;

/// A local control plane: etcd and kube-apiserver, optionally Cluster API's managers.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {}

/// Runs the subcommand.
///
/// # Errors
///
/// Whatever keeps the sandbox from starting.
pub async fn run(args: Args) -> super::Result {
    let Args { command } = args;
    match command {}
}
