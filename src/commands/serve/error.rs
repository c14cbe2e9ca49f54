//! Why `serve` does not start, or ends.

use std::{io, net::SocketAddr};

use tokio::task::JoinError;

use crate::{commands::client::ClientError, history::write::HistoryError, rules::error::RulesError, tls};

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
    /// It cannot be served.
    #[error("--tls-source (PAUSEGEN_TLS_SOURCE)")]
    Own(#[from] tls::own::OwnError),
    /// The CA of the clients cannot be used.
    #[error("--client-ca (PAUSEGEN_CLIENT_CA)")]
    Clients(#[from] tls::ClientError),
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
    /// There is no cluster.
    #[error("{what} has no cluster to work on")]
    Client {
        /// The part that needs one.
        what: &'static str,
        /// Why there is none.
        source: ClientError,
    },
    /// The history cannot be written.
    #[error("--history (PAUSEGEN_HISTORY)")]
    History(#[from] HistoryError),
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
