//! `pausegen sandbox`: a local control plane to play with.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Subcommand;
use tokio::signal::unix::{SignalKind, signal};

use crate::sandbox::{Options, Sandbox};

/// A local control plane: etcd and kube-apiserver, optionally Cluster API's managers.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start one, and keep it until Ctrl-C
    ///
    /// The programs come from the folder that KUBEBUILDER_ASSETS names, or from where setup-envtest keeps them; else
    /// they are built once with Go, which takes minutes, and kept in the cache folder.
    Up(Up),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  pausegen sandbox up\n  pausegen sandbox up --capi --keep-logs logs")]
struct Up {
    /// With Cluster API's managers and its in-memory infrastructure
    #[arg(long)]
    capi: bool,
    /// Copy the logs of all processes to this folder at the end
    #[arg(long, value_name = "DIR")]
    keep_logs: Option<PathBuf>,
}

/// Runs the subcommand.
///
/// # Errors
///
/// Whatever keeps the sandbox from starting.
pub async fn run(args: Args) -> super::Result {
    let Args { command } = args;
    match command {
        Command::Up(up) => run_up(up).await,
    }
}

async fn run_up(args: Up) -> super::Result {
    let Up { capi, keep_logs } = args;
    // From the start: what is interrupted while it starts is cleaned up as well.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut stopped = std::pin::pin!(async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    });
    let mut options = Options::new(std::env::current_exe()?);
    options.capi = capi;
    options.keep_logs = keep_logs;
    options.show_progress = true;
    let start = Instant::now();
    let sandbox = tokio::select! {
        sandbox = Box::pin(Sandbox::start(options)) => sandbox?,
        () = &mut stopped => return Ok(ExitCode::from(130)),
    };
    let mut text = format!("export KUBECONFIG={}\n", sandbox.kubeconfig().display());
    if std::io::stdout().is_terminal() {
        text.push_str(&format!(
            "\nA Kubernetes API server at {}, ready after {:.1} s. In another terminal, set KUBECONFIG as above, then:\n\n",
            sandbox.url(),
            start.elapsed().as_secs_f32()
        ));
        let kubectl = sandbox.binaries().kubectl.display().to_string();
        text.push_str(&format!(
            "    {kubectl} get namespaces\n\nCtrl-C ends it and removes everything.\n"
        ));
    }
    std::io::stdout().write_all(text.as_bytes())?;
    std::io::stdout().flush()?;
    stopped.await;
    tokio::task::spawn_blocking(move || sandbox.stop()).await?;
    Ok(ExitCode::SUCCESS)
}
