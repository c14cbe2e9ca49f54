//! The flags of `serve`, and what is checked of them before anything starts.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{ValueEnum, builder::BoolishValueParser};
use jiff::SignedDuration;
use kube::Client;
use rustls::pki_types::ServerName;

use super::error::ServeError;
use crate::{
    admission::{RecordUser, Settings, server::Limits},
    commands::client::{self, ClientArgs, ClientError},
    companion,
    history::{
        self,
        write::{History, HistoryError},
    },
    protocol::stamp::{Policies, Policy},
    rules::manifests::{self, FailurePolicy},
    tls::{self, Clients, Files, MinVersion, material::Lifetimes, own::Own},
};

/// The shortest life of a certificate: enough to renew it in time.
const SHORTEST: Duration = Duration::from_secs(10);
/// Where a pod finds the name of its namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The webhook that stamps and the companion that echoes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  pausegen serve --tls-source self --history /var/lib/pausegen/history.jsonl\n  pausegen serve --tls-cert tls.crt --tls-key tls.key --rules rules.yaml\n  pausegen serve --no-admission --metrics-bind 0.0.0.0:8080"
)]
pub struct Args {
    /// The rules file, taken anew when it changes; else the built-in rules for Cluster API
    #[arg(long, env = "PAUSEGEN_RULES", value_name = "FILE")]
    pub(super) rules: Option<PathBuf>,
    /// Leave out the webhook
    #[arg(long, env = "PAUSEGEN_NO_ADMISSION", value_parser = BoolishValueParser::new())]
    pub(super) no_admission: bool,
    /// Leave out the companion
    #[arg(long, env = "PAUSEGEN_NO_COMPANION", value_parser = BoolishValueParser::new())]
    pub(super) no_companion: bool,
    #[command(flatten)]
    pub(super) admission: AdmissionArgs,
    #[command(flatten)]
    pub(super) limits: LimitArgs,
    #[command(flatten)]
    pub(super) companion: CompanionArgs,
    #[command(flatten)]
    pub(super) process: ProcessArgs,
    #[command(flatten)]
    pub(super) client: ClusterArgs,
}

/// Which cluster, and when a connection to it is given up.
#[derive(Debug, clap::Args)]
pub(super) struct ClusterArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// How long the API server may be silent until the connection is taken for broken; 0 for ever. It answers every request
    /// within a minute, and ends every watch after 290 s
    #[arg(
        long,
        env = "PAUSEGEN_API_SERVER_TIMEOUT",
        value_name = "DURATION",
        default_value = "5m",
        value_parser = crate::commands::times::duration
    )]
    api_server_timeout: Duration,
}

impl ClusterArgs {
    /// A client that does not wait for ever for an answer: a network may lose a connection and tell neither end.
    pub(super) async fn client(&self) -> Result<Client, ClientError> {
        let mut config = self.client.config().await?;
        config.read_timeout = client::limit(self.api_server_timeout);
        Client::try_from(config).map_err(ClientError::Client)
    }
}

/// The flags that concern the process as a whole.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Process")]
pub(super) struct ProcessArgs {
    /// Where the Lease and the Secret of the certificates are; else the namespace of the pod, else pausegen-system
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    pub(super) namespace: Option<String>,
    /// The name of this process in Events and, with something random behind it, in the Lease
    #[arg(long, env = "POD_NAME", value_name = "NAME", default_value = "pausegen")]
    pub(super) instance: String,
    /// Where to serve /metrics, /healthz and /readyz without TLS; the webhook's own port has them too
    #[arg(long, env = "PAUSEGEN_METRICS_BIND", value_name = "ADDRESS")]
    pub(super) metrics_bind: Option<SocketAddr>,
    /// How long to go on serving after SIGTERM, until nobody sends calls here any more
    #[arg(
        long,
        env = "PAUSEGEN_SHUTDOWN_DELAY",
        value_name = "DURATION",
        default_value = "10s"
    )]
    shutdown_delay: SignedDuration,
}

impl ProcessArgs {
    pub(super) fn shutdown_delay(&self) -> Result<Duration, ServeError> {
        Duration::try_from(self.shutdown_delay).map_err(|_| ServeError::Setting {
            setting: "--shutdown-delay (PAUSEGEN_SHUTDOWN_DELAY)",
            value: self.shutdown_delay.to_string(),
            why: "it must not be negative",
        })
    }

    /// The namespace of what belongs to this installation.
    pub(super) fn namespace(&self) -> String {
        let given = self.namespace.clone().filter(|name| !name.is_empty());
        given
            .or_else(|| std::fs::read_to_string(NAMESPACE_FILE).ok())
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| manifests::NAMESPACE.to_owned())
    }
}

/// The flags of the webhook.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Webhook")]
pub(super) struct AdmissionArgs {
    /// Where to serve
    #[arg(long, env = "PAUSEGEN_BIND", value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    pub(super) bind: SocketAddr,
    /// Where the serving certificate comes from
    #[arg(long, env = "PAUSEGEN_TLS_SOURCE", value_name = "SOURCE", value_enum, default_value_t = TlsSource::Files)]
    pub(super) tls_source: TlsSource,
    /// The serving certificate, PEM; served anew when the file changes (sources files and cert-manager)
    #[arg(long, env = "PAUSEGEN_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, env = "PAUSEGEN_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// The Secret of the CA and the serving certificate (source self)
    #[arg(long, env = "PAUSEGEN_TLS_SECRET", value_name = "NAME", default_value = manifests::TLS_SECRET)]
    tls_secret: String,
    /// A DNS name or IP address of the serving certificate (source self, repeatable); else
    /// pausegen.NAMESPACE.svc
    #[arg(
        long = "tls-name",
        env = "PAUSEGEN_TLS_NAMES",
        value_name = "NAME",
        value_delimiter = ','
    )]
    tls_names: Vec<String>,
    /// How long a CA lives; it is replaced at two thirds of that (source self)
    #[arg(
        long,
        env = "PAUSEGEN_TLS_CA_LIFETIME",
        value_name = "DURATION",
        default_value = "8760h"
    )]
    tls_ca_lifetime: SignedDuration,
    /// How long a serving certificate lives; it is replaced at two thirds of that (source self)
    #[arg(
        long,
        env = "PAUSEGEN_TLS_LIFETIME",
        value_name = "DURATION",
        default_value = "2160h"
    )]
    tls_lifetime: SignedDuration,
    /// The oldest version of TLS that is spoken
    #[arg(long, env = "PAUSEGEN_TLS_MIN_VERSION", value_name = "VERSION", value_enum, default_value_t = TlsVersion::V12)]
    tls_min_version: TlsVersion,
    /// The CA of the API server's client certificate, PEM: nobody else is listened to
    #[arg(long, env = "PAUSEGEN_CLIENT_CA", value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// A common name or DNS name that the API server's client certificate may have (repeatable); else any
    #[arg(
        long = "client-name",
        env = "PAUSEGEN_CLIENT_NAMES",
        value_name = "NAME",
        value_delimiter = ',',
        requires = "client_ca"
    )]
    client_names: Vec<String>,
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

/// What the webhook's port takes on at a time.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits of the webhook's port")]
pub(super) struct LimitArgs {
    /// Connections. Past it, one that waits for its client makes room for a new one
    #[arg(long, env = "PAUSEGEN_MAX_CONNECTIONS", value_name = "COUNT", default_value_t = 1000, value_parser = at_least_one)]
    max_connections: usize,
    /// Reviews that are worked on. Past it, they are refused at once (429)
    #[arg(long, env = "PAUSEGEN_MAX_REQUESTS_IN_FLIGHT", value_name = "COUNT", default_value_t = 100, value_parser = at_least_one)]
    max_requests_in_flight: usize,
    /// MiB of request bodies in memory. Past it, bodies are refused at once (503); one body has at most 8 MiB
    #[arg(long, env = "PAUSEGEN_MAX_MIB_IN_FLIGHT", value_name = "MIB", default_value_t = 32, value_parser = clap::value_parser!(u16).range(8..=4096))]
    max_mib_in_flight: u16,
}

impl LimitArgs {
    pub(super) fn limits(self) -> Limits {
        let Self {
            max_connections,
            max_requests_in_flight,
            max_mib_in_flight,
        } = self;
        Limits {
            connections: max_connections,
            requests: max_requests_in_flight,
            bytes: usize::from(max_mib_in_flight) * 1024 * 1024,
        }
    }
}

/// The flags of the companion.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Companion")]
pub(super) struct CompanionArgs {
    /// The webhook configurations, mutating and validating: their standing tells whether flips can pass unseen, and
    /// their caBundle whether the serving certificate is trusted
    #[arg(
        long,
        env = "PAUSEGEN_WEBHOOK_CONFIGURATION",
        value_name = "NAME",
        default_value = manifests::CONFIGURATION
    )]
    pub(super) webhook_configuration: String,
    /// The Lease that says which process acts
    #[arg(long, env = "PAUSEGEN_LEASE", value_name = "NAME", default_value = manifests::LEASE)]
    lease: String,
    /// Write each flip and acknowledgement to this file, as one line of a chain; - for standard output
    #[arg(long, env = "PAUSEGEN_HISTORY", value_name = "FILE")]
    history: Option<PathBuf>,
    /// Go on in a new file when the history is larger than this many bytes
    #[arg(
        long,
        env = "PAUSEGEN_HISTORY_ROTATE_AT",
        value_name = "BYTES",
        default_value_t = 64 << 20,
        value_parser = clap::value_parser!(u64).range(4096..)
    )]
    history_rotate_at: u64,
}

impl CompanionArgs {
    /// Opens the history, if one is asked for.
    pub(super) fn history(&self) -> Result<Option<History>, HistoryError> {
        let Some(path) = &self.history else { return Ok(None) };
        let settings = history::write::Settings {
            path: (path.as_os_str() != "-").then(|| path.clone()),
            rotate_at: self.history_rotate_at,
        };
        History::open(settings).map(Some)
    }

    pub(super) fn settings(self, process: &ProcessArgs, history: Option<History>) -> companion::Settings {
        let Self {
            webhook_configuration,
            lease,
            history: _,
            history_rotate_at: _,
        } = self;
        companion::Settings {
            webhook_configuration,
            history,
            instance: process.instance.clone(),
            namespace: process.namespace(),
            lease,
            ..companion::Settings::default()
        }
    }
}

/// Where the serving certificate comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TlsSource {
    /// From files that somebody else cares for, and who puts their CA into `caBundle` too
    Files,
    /// From files of a Secret that cert-manager renews; its injector cares for `caBundle`
    CertManager,
    /// From a CA of its own, in a Secret
    #[value(name = "self")]
    Own,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TlsVersion {
    #[value(name = "1.2")]
    V12,
    #[value(name = "1.3")]
    V13,
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

impl AdmissionArgs {
    /// How to speak TLS.
    pub(super) fn tls(&self) -> tls::Options {
        tls::Options {
            min_version: match self.tls_min_version {
                TlsVersion::V12 => MinVersion::V12,
                TlsVersion::V13 => MinVersion::V13,
            },
            clients: self.client_ca.clone().map(|ca| Clients {
                ca,
                names: named(&self.client_names),
            }),
        }
    }

    /// The CA of its own, for [`TlsSource::Own`].
    pub(super) fn own(&self, namespace: String, configuration: String) -> Result<Own, ServeError> {
        let lifetime = |setting, value: SignedDuration| {
            Duration::try_from(value)
                .ok()
                .filter(|value| *value >= SHORTEST)
                .ok_or_else(|| ServeError::Setting {
                    setting,
                    value: value.to_string(),
                    why: "a certificate has to live for 10 s at least",
                })
        };
        let lifetimes = Lifetimes {
            ca: lifetime("--tls-ca-lifetime (PAUSEGEN_TLS_CA_LIFETIME)", self.tls_ca_lifetime)?,
            serving: lifetime("--tls-lifetime (PAUSEGEN_TLS_LIFETIME)", self.tls_lifetime)?,
        };
        let mut names: Vec<String> = self.tls_names.iter().filter(|name| !name.is_empty()).cloned().collect();
        if names.is_empty() {
            names.push(format!("pausegen.{namespace}.svc"));
        }
        if let Some(bad) = names.iter().find(|name| ServerName::try_from(name.as_str()).is_err()) {
            return Err(ServeError::Setting {
                setting: "--tls-name (PAUSEGEN_TLS_NAMES)",
                value: bad.clone(),
                why: "it is neither a DNS name nor an IP address",
            });
        }
        Ok(Own {
            namespace,
            secret: self.tls_secret.clone(),
            configuration,
            names,
            lifetimes,
        })
    }

    /// The files of the certificate, for the other sources.
    pub(super) fn files(&self) -> Result<Files, ServeError> {
        let missing = |setting| ServeError::Missing {
            setting,
            why: "the webhook is called over HTTPS; let it make its own certificate with --tls-source self, or leave the \
                  webhook out with --no-admission",
        };
        Ok(Files {
            certificate: self
                .tls_cert
                .clone()
                .ok_or_else(|| missing("--tls-cert (PAUSEGEN_TLS_CERT)"))?,
            key: self
                .tls_key
                .clone()
                .ok_or_else(|| missing("--tls-key (PAUSEGEN_TLS_KEY)"))?,
        })
    }

    pub(super) fn settings(&self) -> Result<Settings, ServeError> {
        if self.companion_users.iter().all(String::is_empty) {
            return Err(ServeError::Missing {
                setting: "--companion-user (PAUSEGEN_COMPANION_USERS)",
                why: "without it nobody's acknowledgement would be let through; give the user name of the companion, such as \
                      system:serviceaccount:pausegen-system:pausegen",
            });
        }
        Ok(Settings {
            policies: Policies {
                hasty: self.hasty.into(),
                require_reason: self.require_reason.into(),
            },
            exempt_users: named(&self.exempt_users),
            companion_users: named(&self.companion_users),
            record_user: match self.record_user {
                RecordUserArg::Full => RecordUser::Full,
                RecordUserArg::Hash => RecordUser::Hash,
                RecordUserArg::Off => RecordUser::Off,
            },
            flip_failure_policy: match self.flip_failure_policy {
                FailurePolicyArg::Fail => FailurePolicy::Fail,
                FailurePolicyArg::Ignore => FailurePolicy::Ignore,
            },
        })
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

fn named(names: &[String]) -> BTreeSet<String> {
    names.iter().filter(|name| !name.is_empty()).cloned().collect()
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("{error}")),
    }
}
