//! `pausegen serve`: the webhook and the companion, together or each alone.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::{ValueEnum, builder::BoolishValueParser};
use jiff::{SignedDuration, Timestamp};
use prometheus_client::registry::Registry;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::{JoinError, JoinSet},
    time,
};
use tokio_util::sync::CancellationToken;

use super::client::{ClientArgs, ClientError};
use crate::{
    admission::{
        self, RecordUser, Settings,
        metrics::Metrics,
        ops::{self, Ops},
        server::{self, Drain},
    },
    companion,
    protocol::stamp::{Policies, Policy},
    rules::{
        Rules,
        error::RulesError,
        manifests::{self, FailurePolicy},
    },
    tls::{self, Files},
};

/// How long calls that have begun may take to end: as long as the API server may wait for one.
const DRAIN: Drain = Drain {
    limit: Duration::from_secs(30),
};

/// The webhook that stamps and the companion that echoes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The rules file; else the built-in rules for Cluster API
    #[arg(long, env = "PAUSEGEN_RULES", value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Leave out the webhook
    #[arg(long, env = "PAUSEGEN_NO_ADMISSION", value_parser = BoolishValueParser::new())]
    no_admission: bool,
    /// Leave out the companion
    #[arg(long, env = "PAUSEGEN_NO_COMPANION", value_parser = BoolishValueParser::new())]
    no_companion: bool,
    #[command(flatten)]
    admission: AdmissionArgs,
    #[command(flatten)]
    companion: CompanionArgs,
    /// Where to serve /metrics, /healthz and /readyz without TLS; the webhook's own port has them too
    #[arg(long, env = "PAUSEGEN_METRICS_BIND", value_name = "ADDRESS")]
    metrics_bind: Option<SocketAddr>,
    /// How long to go on serving after SIGTERM, until nobody sends calls here any more
    #[arg(
        long,
        env = "PAUSEGEN_SHUTDOWN_DELAY",
        value_name = "DURATION",
        default_value = "10s"
    )]
    shutdown_delay: SignedDuration,
    #[command(flatten)]
    client: ClientArgs,
}

/// The flags of the webhook.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Webhook")]
struct AdmissionArgs {
    /// Where to serve
    #[arg(long, env = "PAUSEGEN_BIND", value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    bind: SocketAddr,
    /// The serving certificate, PEM; served anew when the file changes
    #[arg(long, env = "PAUSEGEN_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, env = "PAUSEGEN_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// A user name under which a companion writes: nobody else's acknowledgements are let through (repeatable)
    #[arg(
        long = "companion-user",
        env = "PAUSEGEN_COMPANION_USERS",
        value_name = "NAME",
        value_delimiter = ','
    )]
    companion_users: Vec<String>,
    /// What to do about a pause before the last flip is acknowledged
    #[arg(long, env = "PAUSEGEN_HASTY", value_name = "POLICY", value_enum, default_value_t = PolicyArg::Warn)]
    hasty: PolicyArg,
    /// What to do about a pause without a reason of its own
    #[arg(long, env = "PAUSEGEN_REQUIRE_REASON", value_name = "POLICY", value_enum, default_value_t = PolicyArg::Off)]
    require_reason: PolicyArg,
    /// A user name to whom these policies do not apply (repeatable)
    #[arg(
        long = "exempt-user",
        env = "PAUSEGEN_EXEMPT_USERS",
        value_name = "NAME",
        value_delimiter = ','
    )]
    exempt_users: Vec<String>,
    /// How the stamp records who flipped
    #[arg(long, env = "PAUSEGEN_RECORD_USER", value_name = "HOW", value_enum, default_value_t = RecordUserArg::Full)]
    record_user: RecordUserArg,
    /// The failurePolicy that the webhook configuration has for flips
    #[arg(
        long,
        env = "PAUSEGEN_FLIP_FAILURE_POLICY",
        value_name = "POLICY",
        value_enum,
        ignore_case = true,
        default_value_t = FailurePolicyArg::Fail
    )]
    flip_failure_policy: FailurePolicyArg,
}

/// The flags of the companion.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Companion")]
struct CompanionArgs {
    /// The MutatingWebhookConfiguration whose standing tells whether flips can pass unseen
    #[arg(
        long,
        env = "PAUSEGEN_WEBHOOK_CONFIGURATION",
        value_name = "NAME",
        default_value = manifests::CONFIGURATION
    )]
    webhook_configuration: String,
    /// The name of this process in Events
    #[arg(long, env = "POD_NAME", value_name = "NAME", default_value = "pausegen")]
    instance: String,
}

impl CompanionArgs {
    fn settings(self) -> companion::Settings {
        let Self {
            webhook_configuration,
            instance,
        } = self;
        companion::Settings {
            webhook_configuration,
            instance,
            ..companion::Settings::default()
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PolicyArg {
    Off,
    Warn,
    Deny,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RecordUserArg {
    /// The user name
    Full,
    /// The first 16 digits of its SHA-256
    Hash,
    /// Nothing
    Off,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum FailurePolicyArg {
    Fail,
    Ignore,
}

/// Why `serve` does not start, or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Nothing is left to serve.
    #[error("--no-admission and --no-companion together leave nothing to serve")]
    Nothing,
    /// A setting is missing.
    #[error("{setting} is not set: {why}")]
    Missing {
        /// The flag and its environment variable.
        setting: &'static str,
        /// What it is needed for.
        why: &'static str,
    },
    /// A setting makes no sense.
    #[error("{setting} cannot be {value}: {why}")]
    Setting {
        /// The flag and its environment variable.
        setting: &'static str,
        /// Its value.
        value: String,
        /// Why not.
        why: &'static str,
    },
    /// The rules cannot be used.
    #[error("--rules (PAUSEGEN_RULES)")]
    Rules(#[from] RulesError),
    /// The certificate cannot be served.
    #[error("--tls-cert and --tls-key (PAUSEGEN_TLS_CERT, PAUSEGEN_TLS_KEY)")]
    Certificate(#[from] tls::FileError),
    /// The address is not free.
    #[error("{setting} {address}: cannot listen there")]
    Listen {
        /// The flag.
        setting: &'static str,
        /// Its value.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// There is no cluster for the companion.
    #[error("the companion has no cluster to watch")]
    Client(#[from] ClientError),
    /// Signals cannot be received.
    #[error("cannot wait for signals")]
    Signal(#[source] io::Error),
    /// A socket failed.
    #[error("serving {what} has failed")]
    Serve {
        /// What was served.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A part ended although nobody asked it to.
    #[error("{what} ended although nobody asked it to")]
    Ended {
        /// The part.
        what: &'static str,
    },
    /// A part was aborted.
    #[error("a part of the server was aborted")]
    Aborted(#[from] JoinError),
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// A setting that cannot be used, or a part that ended unasked.
pub async fn run(args: Args) -> super::Result {
    serve(args).await?;
    Ok(ExitCode::SUCCESS)
}

type Tasks = JoinSet<Result<&'static str, ServeError>>;

async fn serve(args: Args) -> Result<(), ServeError> {
    let Args {
        rules,
        no_admission,
        no_companion,
        admission,
        companion,
        metrics_bind,
        shutdown_delay,
        client,
    } = args;
    if no_admission && no_companion {
        return Err(ServeError::Nothing);
    }
    let shutdown_delay = Duration::try_from(shutdown_delay).map_err(|_| ServeError::Setting {
        setting: "--shutdown-delay (PAUSEGEN_SHUTDOWN_DELAY)",
        value: shutdown_delay.to_string(),
        why: "it must not be negative",
    })?;
    let mut signals = Signals::new()?;
    let rules = Arc::new(match rules {
        Some(path) => Rules::load(&path)?,
        None => Rules::capi()?,
    });
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let companion_metrics = (!no_companion).then(|| companion::Metrics::register(&mut registry));
    let ops = Ops::new(registry);
    // `stopping`: whoever can stop at once should. `draining`: nobody sends calls here any more.
    let (stopping, draining) = (CancellationToken::new(), CancellationToken::new());
    let mut tasks = Tasks::new();

    if !no_admission {
        let state = |settings| admission::State {
            rules: Arc::clone(&rules),
            settings: Arc::new(settings),
            clock: Arc::new(Timestamp::now),
            metrics,
            ops: ops.clone(),
        };
        start_admission(&mut tasks, admission, state, &stopping, &draining).await?;
    }
    if let Some(address) = metrics_bind {
        let listener = listen("--metrics-bind", address)?;
        let served = server::serve_plain(
            listener,
            ops::router(ops.clone()),
            DRAIN,
            draining.clone().cancelled_owned(),
        );
        tasks.spawn(async move { ended("metrics", served.await) });
    }
    if let Some(companion_metrics) = companion_metrics {
        let client = client.client().await?;
        let stopping = stopping.clone();
        let settings = companion.settings();
        tasks.spawn(async move {
            companion::run(client, rules, settings, companion_metrics, stopping).await;
            Ok("companion")
        });
    }

    let unasked = tokio::select! {
        () = signals.wait() => None,
        ended = tasks.join_next() => ended,
    };
    ops.stop();
    stopping.cancel();
    if unasked.is_none() && !no_admission {
        tracing::info!(delay = ?shutdown_delay, "stopping: not ready any more, still serving");
        time::sleep(shutdown_delay).await;
    }
    draining.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    match unasked {
        None => Ok(()),
        Some(ended) => Err(ServeError::Ended { what: ended?? }),
    }
}

async fn start_admission(
    tasks: &mut Tasks,
    args: AdmissionArgs,
    state: impl FnOnce(Settings) -> admission::State,
    stopping: &CancellationToken,
    draining: &CancellationToken,
) -> Result<(), ServeError> {
    let bind = args.bind;
    let (settings, files) = args.check()?;
    let certificate = files.load().await?;
    let listener = listen("--bind", bind)?;
    tracing::info!(address = %listener.local_addr().unwrap_or(bind), "serving admission");
    let router = admission::router(state(settings));
    let (stopping, draining) = (stopping.clone(), draining.clone());
    let served = certificate.clone();
    tasks.spawn(async move {
        let result = server::serve_tls(listener, &served, router, DRAIN, draining.cancelled_owned()).await;
        ended("admission", result)
    });
    tasks.spawn(async move {
        tls::watch_files(certificate, files, tls::RELOAD_EVERY, stopping.cancelled_owned()).await;
        Ok("the watch of the certificate")
    });
    Ok(())
}

impl AdmissionArgs {
    fn check(self) -> Result<(Settings, Files), ServeError> {
        let Self {
            bind: _,
            tls_cert,
            tls_key,
            companion_users,
            hasty,
            require_reason,
            exempt_users,
            record_user,
            flip_failure_policy,
        } = self;
        let missing = |setting, why| ServeError::Missing { setting, why };
        let files = Files {
            certificate: tls_cert.ok_or_else(|| {
                missing(
                    "--tls-cert (PAUSEGEN_TLS_CERT)",
                    "the webhook is called over HTTPS; leave the webhook out with --no-admission",
                )
            })?,
            key: tls_key.ok_or_else(|| {
                missing(
                    "--tls-key (PAUSEGEN_TLS_KEY)",
                    "the webhook is called over HTTPS; leave the webhook out with --no-admission",
                )
            })?,
        };
        if companion_users.iter().all(String::is_empty) {
            return Err(missing(
                "--companion-user (PAUSEGEN_COMPANION_USERS)",
                "without it nobody's acknowledgement would be let through; give the user name of the companion, such as \
                 system:serviceaccount:pausegen-system:pausegen",
            ));
        }
        let settings = Settings {
            policies: Policies {
                hasty: hasty.into(),
                require_reason: require_reason.into(),
            },
            exempt_users: exempt_users.into_iter().filter(|user| !user.is_empty()).collect(),
            companion_users: companion_users.into_iter().filter(|user| !user.is_empty()).collect(),
            record_user: match record_user {
                RecordUserArg::Full => RecordUser::Full,
                RecordUserArg::Hash => RecordUser::Hash,
                RecordUserArg::Off => RecordUser::Off,
            },
            flip_failure_policy: match flip_failure_policy {
                FailurePolicyArg::Fail => FailurePolicy::Fail,
                FailurePolicyArg::Ignore => FailurePolicy::Ignore,
            },
        };
        Ok((settings, files))
    }
}

impl From<PolicyArg> for Policy {
    fn from(policy: PolicyArg) -> Self {
        match policy {
            PolicyArg::Off => Self::Off,
            PolicyArg::Warn => Self::Warn,
            PolicyArg::Deny => Self::Deny,
        }
    }
}

fn ended(what: &'static str, result: io::Result<()>) -> Result<&'static str, ServeError> {
    result
        .map(|()| what)
        .map_err(|source| ServeError::Serve { what, source })
}

fn listen(setting: &'static str, address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).map_err(|source| ServeError::Listen {
        setting,
        address,
        source,
    })
}

/// The signals that ask a process to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, ServeError> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(ServeError::Signal)?,
            interrupt: signal(SignalKind::interrupt()).map_err(ServeError::Signal)?,
        })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
