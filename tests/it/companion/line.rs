//! A line to the API server that loses its connections, and tells neither end.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kube::config::Kubeconfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The line, and the kubeconfig of the way through it.
pub(super) struct Line {
    pub(super) kubeconfig: PathBuf,
    /// How often everything was lost.
    lost: Arc<watch::Sender<u32>>,
}

impl Line {
    /// Opens it on the current runtime, to where a kubeconfig leads.
    pub(super) async fn through(kubeconfig: &Path, folder: &Path) -> Self {
        let mut config = Kubeconfig::read_from(kubeconfig).unwrap();
        let cluster = config.clusters[0].cluster.as_mut().unwrap();
        let server = cluster.server.take().unwrap();
        let server = server.strip_prefix("https://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        cluster.server = Some(format!("https://{}", listener.local_addr().unwrap()));
        let path = folder.join("line.kubeconfig");
        std::fs::write(&path, serde_json::to_string(&config).unwrap()).unwrap();
        let lost = Arc::new(watch::Sender::new(0));
        let losses = Arc::clone(&lost);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (server, losses) = (server.clone(), losses.subscribe());
                tokio::spawn(connect(client, server, losses));
            }
        });
        Self { kubeconfig: path, lost }
    }

    /// Loses all connections that there are, and returns how many. New ones work.
    pub(super) fn lose(&self) -> usize {
        let connections = self.lost.receiver_count();
        self.lost.send_modify(|lost| *lost += 1);
        connections
    }
}

async fn connect(mut client: TcpStream, server: String, mut losses: watch::Receiver<u32>) {
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    tokio::select! {
        _ = carry(&mut from_client, &mut to_server) => return,
        _ = carry(&mut from_server, &mut to_client) => return,
        _ = losses.changed() => {}
    }
    drop(losses);
    // Both ends stay open, and nobody carries anything any more.
    std::future::pending::<()>().await;
}

async fn carry(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 14];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..count]).await?;
    }
}
