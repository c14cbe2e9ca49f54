//! The command line: one file per subcommand.
//!
//! Each file has an `Args` struct, derived with clap, and a `run` function that takes it. To add a subcommand: its
//! file, a variant of [`Command`], and a line in `dispatch`.

use std::error::Error;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

pub mod audit;
pub mod cleanup;
pub mod client;
mod cluster;
pub mod complete;
pub mod consent;
mod counter;
pub mod demo;
pub mod describe;
pub mod doctor;
pub mod exec;
pub mod flip;
pub mod history;
mod kinds;
pub mod manifests;
mod names;
pub mod rules;
pub mod sandbox;
pub mod serve;
pub mod sweep;
mod targets;
mod times;
pub mod unacknowledge;
pub mod wait;

/// What a subcommand returns: its exit code, or an error that [`print_error`] shows with its causes.
pub type Result = std::result::Result<ExitCode, Box<dyn Error + Send + Sync>>;

/// Makes a Kubernetes pause checkable.
#[derive(Debug, Parser)]
#[command(name = "pausegen", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to log to stderr: a level, or directives like `info,kube=debug`
    #[arg(long, global = true, env = "RUST_LOG", value_name = "FILTER")]
    pub log_level: Option<String>,
    /// How to log
    #[arg(long, global = true, env = "PAUSEGEN_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows the main job on a local control plane with Cluster API's own managers
    Demo(demo::Args),
    /// A local control plane: etcd and kube-apiserver, optionally Cluster API's managers
    Sandbox(sandbox::Args),
    /// The webhook that stamps flips and the companion that acknowledges them
    Serve(Box<serve::Args>),
    /// The rules file: check it, print it, compare it with a cluster
    Rules(rules::Args),
    /// What is paused, since when, by whom, why, and did every controller acknowledge it?
    Audit(Box<audit::Args>),
    /// A readable account of one object: its pause, who attested what and when, and what would change it
    Describe(Box<describe::Args>),
    /// Pauses objects, by field or annotation as the rules say
    Pause(Box<flip::PauseArgs>),
    /// Resumes objects
    Resume(Box<flip::ResumeArgs>),
    /// The history of flips and acknowledgements: check it, or rebuild it from the API server's audit log
    History(history::Args),
    /// Waits until a pause or a resume is acknowledged
    Wait(Box<wait::Args>),
    /// The webhook configurations and the RBAC that exactly these rules need, as YAML
    Manifests(Box<manifests::Args>),
    /// Looks for what is wrong with an installation, and says what to do about it
    Doctor(doctor::Args),
    /// Asks for a new stamp: a new pause generation, pending until everybody has answered again
    Unacknowledge(unacknowledge::Args),
    /// Removes every key and condition of ours from all objects, at an uninstall
    Cleanup(cleanup::Args),
    /// Prints completions for a shell
    Completion(complete::CompletionArgs),
    /// Writes manual pages
    Man(complete::ManArgs),
    /// Runs a program that dies with its parent (the sandbox starts its processes with this)
    #[command(name = exec::NAME, hide = true)]
    Exec(exec::Args),
    /// Removes the folder of a sandbox when its owner is gone
    #[command(name = sweep::NAME, hide = true)]
    Sweep(sweep::Args),
}

impl Command {
    /// What is logged unless the user says otherwise: servers tell what they do, tools only what went wrong.
    fn default_log_level(&self) -> &'static str {
        match self {
            Self::Serve(_) => "info",
            _ => "warn",
        }
    }
}

/// The format of the log on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

/// Runs what the command line asks for.
///
/// # Errors
///
/// Whatever the subcommand returns, and a log filter that cannot be read.
pub fn run(cli: Cli) -> Result {
    let Cli {
        log_level,
        log_format,
        command,
    } = cli;
    // These need no runtime, and the first one replaces its process.
    match command {
        Command::Exec(args) => return exec::run(args),
        Command::Sweep(args) => return sweep::run(args),
        _ => {}
    }
    // An error means that a provider is there already, which is as good.
    drop(rustls::crypto::ring::default_provider().install_default());
    init_logging(log_level.as_deref().unwrap_or(command.default_log_level()), log_format)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(Box::pin(dispatch(command)));
    // Not dropped: that would wait for blocking work that an interrupted command has no use for any more.
    runtime.shutdown_background();
    result
}

async fn dispatch(command: Command) -> Result {
    match command {
        Command::Demo(args) => demo::run(args).await,
        Command::Sandbox(args) => sandbox::run(args).await,
        Command::Serve(args) => serve::run(*args).await,
        Command::Rules(args) => rules::run(args).await,
        Command::Manifests(args) => manifests::run(*args),
        Command::Doctor(args) => Box::pin(doctor::run(args)).await,
        Command::Unacknowledge(args) => unacknowledge::run(args).await,
        Command::Cleanup(args) => cleanup::run(args).await,
        Command::Audit(args) => audit::run(*args).await,
        Command::Describe(args) => describe::run(*args).await,
        Command::Wait(args) => wait::run(*args).await,
        Command::History(args) => history::run(args).await,
        Command::Pause(args) => flip::pause(*args).await,
        Command::Resume(args) => flip::resume(*args).await,
        Command::Completion(args) => complete::completion(&args),
        Command::Man(args) => complete::man(&args),
        Command::Exec(args) => exec::run(args),
        Command::Sweep(args) => sweep::run(args),
    }
}

fn init_logging(filter: &str, format: LogFormat) -> std::result::Result<(), Box<dyn Error + Send + Sync>> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| format!("--log-level (or RUST_LOG) `{filter}` is not a log filter: {error}"))?;
    // Whoever reads a file or a pod's log has no use for colours.
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_env_filter(filter);
    match format {
        LogFormat::Text => builder.try_init()?,
        LogFormat::Json => builder.json().try_init()?,
    }
    Ok(())
}

/// Whether an error says that nobody reads our output any more.
#[must_use]
pub fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Writes an error and what caused it to stderr, one line each. A cause that has been said already is not said again.
pub fn print_error(error: &(dyn Error + 'static)) {
    let mut text = format!("error: {error}\n");
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(&format!("  because: {said}\n"));
        }
        source = cause.source();
    }
    // Some of it comes from an API server or a file.
    let lines = text
        .lines()
        .map(|line| format!("{}\n", crate::report::text::clean(line)));
    let text: String = lines.collect();
    // Where stderr is gone there is nobody to tell.
    drop(std::io::stderr().write_all(text.as_bytes()));
}
