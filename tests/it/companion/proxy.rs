//! A way to the API server that fails on demand.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures::{StreamExt as _, stream};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// How often each thing is still to fail: the lists of a kind, and its watches.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// 429, with a Retry-After.
    pub(super) busy: AtomicUsize,
    /// 500.
    pub(super) broken: AtomicUsize,
    /// The answer ends in its middle.
    pub(super) cut: AtomicUsize,
    /// The watch ends after its first event.
    pub(super) ended: AtomicUsize,
}

impl Faults {
    /// So many of each.
    pub(super) fn set(&self, count: usize) {
        for fault in self.all() {
            fault.store(count, Ordering::SeqCst);
        }
    }

    /// Whether all have happened.
    pub(super) fn are_over(&self) -> bool {
        self.all().iter().all(|fault| fault.load(Ordering::SeqCst) == 0)
    }

    fn all(&self) -> [&AtomicUsize; 4] {
        [&self.busy, &self.broken, &self.cut, &self.ended]
    }
}

/// Takes one of them, if there is one left.
fn take(fault: &AtomicUsize) -> bool {
    let take = |left: usize| left.checked_sub(1);
    fault.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
}

struct Proxy {
    client: Client,
    plural: &'static str,
    faults: Arc<Faults>,
}

/// Starts it on the current runtime: for requests about objects of one kind with the rights of a kubeconfig. Returns
/// the kubeconfig of the way through it.
pub(super) async fn start(kubeconfig: &Path, folder: &Path, plural: &'static str, faults: Arc<Faults>) -> PathBuf {
    let config = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .unwrap();
    let proxy = Arc::new(Proxy {
        client: Client::try_from(config).unwrap(),
        plural,
        faults,
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = axum::Router::new().fallback(forward).with_state(proxy);
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: proxy\n\
         clusters: [{{name: proxy, cluster: {{server: 'http://{address}'}}}}]\n\
         contexts: [{{name: proxy, context: {{cluster: proxy, user: proxy}}}}]\nusers: [{{name: proxy, user: {{}}}}]\n"
    );
    let path = folder.join("proxy.kubeconfig");
    std::fs::write(&path, text).unwrap();
    path
}

async fn forward(State(proxy): State<Arc<Proxy>>, request: Request) -> Response {
    let concerned = request.uri().path().ends_with(proxy.plural) && request.method() == "GET";
    let watch = request.uri().query().is_some_and(|query| query.contains("watch="));
    let list = concerned && !watch;
    if list && take(&proxy.faults.busy) {
        return (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")], "later").into_response();
    }
    if list && take(&proxy.faults.broken) {
        return (StatusCode::INTERNAL_SERVER_ERROR, "not now").into_response();
    }
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let uri = parts.uri.path_and_query().unwrap().to_string();
    let mut forwarded = http::Request::new(kube::client::Body::from(body.to_vec()));
    *forwarded.method_mut() = parts.method;
    *forwarded.uri_mut() = uri.parse().unwrap();
    for name in [header::CONTENT_TYPE, header::ACCEPT] {
        if let Some(value) = parts.headers.get(&name) {
            forwarded.headers_mut().insert(name, value.clone());
        }
    }
    let answer = match proxy.client.send(forwarded).await {
        Ok(answer) => answer,
        Err(error) => return (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    };
    let (mut parts, body) = answer.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::TRANSFER_ENCODING);
    let body = Body::new(body);
    let body = if list && take(&proxy.faults.cut) {
        let whole = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let half = whole.slice(..whole.len() / 2);
        let end = io::Error::from(io::ErrorKind::ConnectionReset);
        Body::from_stream(stream::iter([Ok::<Bytes, io::Error>(half), Err(end)]))
    } else if concerned && watch && take(&proxy.faults.ended) {
        Body::from_stream(body.into_data_stream().take(1))
    } else {
        body
    };
    Response::from_parts(parts, body)
}
