//! Serves a router the way the API server's webhook client needs it, and whatever else may call.
//!
//! - A connection may be idle for longer than the API server keeps one: one that is closed earlier makes its next call fail.
//! - Whoever keeps us waiting in the middle of something (a handshake, the head of a request, its body) is cut off, and makes
//!   room for others where connections, requests or memory run out ([`limits`]).
//! - At a stop calls that have begun come to their end.

mod connection;
pub mod limits;
mod metrics;
mod table;

use std::{future::Future, io, net::TcpListener, sync::Arc, time::Duration};

use axum::Router;
use tokio::{
    task::JoinSet,
    time::{self, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::tls::Certificate;

pub use limits::Limits;
pub use metrics::Metrics;
pub use table::{Full, Slot};

use table::Table;

/// How long to wait when no connection can be accepted (no file handles are left, most likely).
const PAUSE: Duration = Duration::from_millis(100);

/// How a server stops.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    /// How long calls that have begun may take to end.
    pub limit: Duration,
}

/// How a server takes calls.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// What it takes on at a time.
    pub limits: Limits,
    /// What is counted of it.
    pub metrics: Metrics,
}

/// Serves over TLS until `stop`, then lets calls that have begun end.
///
/// # Errors
/// The socket fails.
pub async fn serve_tls(
    listener: TcpListener,
    certificate: &Certificate,
    router: Router,
    drain: Drain,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve(
        listener,
        Some(certificate.clone()),
        router,
        Options::default(),
        drain,
        stop,
    )
    .await
}

/// Serves without TLS until `stop`: for metrics and probes alone.
///
/// # Errors
/// The socket fails.
pub async fn serve_plain(
    listener: TcpListener,
    router: Router,
    drain: Drain,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve(listener, None, router, Options::default(), drain, stop).await
}

/// Serves until `stop`, with a certificate over TLS, then lets calls that have begun end.
///
/// # Errors
/// The socket fails.
pub async fn serve(
    listener: TcpListener,
    certificate: Option<Certificate>,
    router: Router,
    options: Options,
    drain: Drain,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let table = Arc::new(Table::new(options));
    let draining = CancellationToken::new();
    let mut connections = JoinSet::new();
    let mut sweep = time::interval(limits::SWEEP);
    sweep.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    tokio::pin!(stop);
    loop {
        let stream = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    time::sleep(PAUSE).await;
                    continue;
                }
            },
            _ = sweep.tick() => {
                table.sweep();
                continue;
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        // Where nobody can make room it is closed at once.
        if let Some(slot) = table.open() {
            let tls = certificate.as_ref().map(Certificate::acceptor);
            connections.spawn(connection::serve(stream, tls, router.clone(), slot, draining.clone()));
        }
    }
    drop(listener);
    draining.cancel();
    let drained = timeout(drain.limit, async { while connections.join_next().await.is_some() {} });
    if drained.await.is_err() {
        tracing::warn!(calls = connections.len(), "calls that have begun are cut off");
        connections.shutdown().await;
    }
    Ok(())
}
