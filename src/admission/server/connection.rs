//! One connection from its first byte to its last.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use axum::Router;
use hyper::{
    Request,
    body::Incoming,
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{Slot, limits};

/// Serves a connection until its client, its slot or the server ends it.
pub(super) async fn serve(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    router: Router,
    slot: Slot,
    draining: CancellationToken,
) {
    // An answer is small, and somebody waits for it.
    drop(stream.set_nodelay(true));
    let Some(tls) = tls else {
        return requests(stream, router, slot, draining).await;
    };
    let accepted = tokio::select! {
        accepted = tls.accept(stream) => accepted,
        () = slot.closed() => return,
        () = draining.cancelled() => return,
    };
    match accepted {
        Ok(stream) => Box::pin(requests(stream, router, slot, draining)).await,
        Err(error) => tracing::debug!(%error, "no TLS with a client"),
    }
}

async fn requests<S>(stream: S, router: Router, slot: Slot, draining: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    slot.idle(false);
    let router = TowerToHyperService::new(router);
    let answering = slot.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        answering.begin();
        request.extensions_mut().insert(answering.clone());
        let (slot, answer) = (answering.clone(), router.call(request));
        async move {
            let answer = answer.await;
            slot.idle(true);
            answer
        }
    });
    let stream = Watched {
        stream,
        slot: slot.clone(),
    };
    let connection = http1::Builder::new()
        // Whoever keeps us waiting is cut off by the table, which knows more.
        .header_read_timeout(None)
        .max_buf_size(limits::HEAD)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = slot.closed() => return,
        () = draining.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = slot.closed() => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection has failed");
    }
}

/// Tells the slot when something comes.
struct Watched<S> {
    stream: S,
    slot: Slot,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.slot.received();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
