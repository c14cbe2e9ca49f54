//! Serves a router the way the API server's webhook client needs it.

use std::{future::Future, io, net::SocketAddr, net::TcpListener, time::Duration};

use axum::Router;
use axum_server::{Handle, accept::NoDelayAcceptor, tls_rustls::RustlsAcceptor};

use crate::tls::Certificate;

/// How long a connection may be idle. The API server keeps idle connections for 90 s, also ones that it has not used yet:
/// one that is closed below that makes its next call fail. (hyper's timeout for the head of a request is its timeout for
/// idle connections too.)
const IDLE: Duration = Duration::from_secs(120);

/// How a server stops.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    /// How long calls that have begun may take to end.
    pub limit: Duration,
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
    let acceptor = RustlsAcceptor::new(certificate.config()).acceptor(NoDelayAcceptor::new());
    let mut server = axum_server::from_tcp(listener)?.acceptor(acceptor).http1_only();
    server.http_builder().http1().header_read_timeout(IDLE);
    let handle = handle(drain, stop);
    server.handle(handle).serve(router.into_make_service()).await
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
    let mut server = axum_server::from_tcp(listener)?.http1_only();
    server.http_builder().http1().header_read_timeout(IDLE);
    let handle = handle(drain, stop);
    server.handle(handle).serve(router.into_make_service()).await
}

fn handle(drain: Drain, stop: impl Future<Output = ()> + Send + 'static) -> Handle<SocketAddr> {
    let handle = Handle::new();
    let stopped = handle.clone();
    tokio::spawn(async move {
        stop.await;
        stopped.graceful_shutdown(Some(drain.limit));
    });
    handle
}
