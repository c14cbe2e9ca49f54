//! Others want something of the webhook's port at the same time: too many of them, too slowly, or too much.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use pausegen::sandbox::product::USER;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use super::rig::{Load, Rig, get};
use crate::support::eventually;

/// A connection on which TLS has been negotiated.
fn tls(address: SocketAddr, ca: &str) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap())
        .unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut stream = StreamOwned::new(client, stream);
    stream.conn.complete_io(&mut stream.sock)?;
    Ok(stream)
}

const HEAD: &str = "POST /mutate?timeout=10s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";

/// Sends a body of 8 MiB and returns the status, if there is one.
fn large(address: SocketAddr, ca: &str) -> Option<String> {
    let mut stream = tls(address, ca).ok()?;
    let length = 8 * 1024 * 1024;
    write!(stream, "{HEAD}Content-Length: {length}\r\n\r\n").ok()?;
    let chunk = vec![b' '; 64 * 1024];
    for _ in 0..length / chunk.len() {
        if stream.write_all(&chunk).is_err() {
            break;
        }
    }
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flips_go_through_a_crowd() {
    let rig = Rig::start().await;
    let server = rig
        .replica("alone", &["--tls-ca-lifetime", "48h", "--tls-lifetime", "24h"])
        .await;
    let ca = rig.held("ca.crt").await;
    let address = server.webhook;

    // Nothing happens: nothing is written but the Lease, and little memory is used.
    eventually("it leads", async || server.leads().then_some(())).await;
    let idle = server.memory("RssAnon");
    assert!(idle < 20 * 1024, "{idle} kB");
    let writes = || {
        let log = std::fs::read_to_string(rig.sandbox.audit_log().unwrap()).unwrap();
        let ours = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|event| {
                let verb = event["verb"].as_str().unwrap_or_default();
                event["user"]["username"] == USER && !matches!(verb, "get" | "list" | "watch")
            });
        ours.fold((0, 0), |(leases, others), event| {
            if event["objectRef"]["resource"] == "leases" {
                (leases + 1, others)
            } else {
                (leases, others + 1)
            }
        })
    };
    let before = writes();
    eventually("the Lease is renewed some times", async || {
        (writes().0 > before.0 + 3).then_some(())
    })
    .await;
    assert_eq!(writes().1, before.1, "nothing else is written");

    let load = Load::start(vec![rig.boat("nina").await]);
    let crowd = tokio::task::spawn_blocking(move || {
        let mut crowd: Vec<TcpStream> = Vec::new();
        for n in 0..10_000 {
            match TcpStream::connect(address) {
                Ok(stream) => crowd.push(stream),
                Err(error) => panic!("connection {n}: {error}"),
            }
        }
        // Some negotiate TLS: and then say nothing, half a head, half a body, or goodbye in one direction.
        let mut slow = Vec::new();
        for n in 0..120 {
            let Ok(mut stream) = tls(address, &ca) else { continue };
            let sent = match n % 4 {
                0 => Ok(()),
                1 => write!(stream, "POST /mutate HTTP/1.1\r\nHost: "),
                2 => write!(stream, "{HEAD}Content-Length: 100000\r\n\r\n{{"),
                _ => stream.sock.shutdown(Shutdown::Write),
            };
            drop(sent.and_then(|()| stream.flush()));
            slow.push(stream);
        }
        let large: Vec<_> = (0..16)
            .map(|_| {
                let ca = ca.clone();
                std::thread::spawn(move || large(address, &ca))
            })
            .collect();
        let answers: Vec<_> = large.into_iter().map(|thread| thread.join().unwrap()).collect();
        (crowd, slow, answers)
    });
    let (crowd, slow, answers) = crowd.await.unwrap();
    assert!(
        answers
            .iter()
            .flatten()
            .any(|answer| answer.starts_with("HTTP/1.1 400")),
        "no review, but read: {answers:?}"
    );
    let connections = server.metric("pausegen_server_connections").unwrap();
    assert!(connections <= 1000.0, "{connections}");
    let high = server.memory("VmHWM");
    assert!(high < 256 * 1024, "{high} kB at the worst");
    assert_eq!(get(server.metrics, "/readyz").unwrap().0, 200);
    let (flips, refused) = load.end().await;
    assert!(flips > 20, "{flips}");
    assert_eq!(refused, Vec::<String>::new(), "of {flips} flips");
    drop((crowd, slow));
    eventually("they are forgotten", async || {
        let bytes = server.metric("pausegen_server_body_bytes")?;
        let connections = server.metric("pausegen_server_connections")?;
        (bytes == 0.0 && connections < 50.0).then_some(())
    })
    .await;
}
