//! Who may connect, and in which version of TLS: a server in this process, and clients of every sort.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pausegen::admission::server;
use pausegen::tls::{self, Certificate, Clients, Files, MinVersion, Options};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion, version};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::serve::Folder;
use crate::support::eventually;

/// A CA of clients.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate of a client, and its key.
type Identity = (String, String);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    fn identity(&self, common_name: &str, dns: &[&str]) -> Identity {
        let dns: Vec<String> = dns.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(dns).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        (certificate, key.serialize_pem())
    }
}

/// Asks a server whose CA this is for something. Whether there was an answer.
fn answers(
    address: SocketAddr,
    ca: &str,
    identity: Option<&Identity>,
    versions: &[&'static SupportedProtocolVersion],
) -> bool {
    use std::io::{Read as _, Write as _};
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => config
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap(),
    };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(client, TcpStream::connect(address).unwrap());
    let mut answer = [0; 12];
    // In TLS 1.3 a client learns with the first answer that it is refused.
    write!(stream, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && answer == *b"HTTP/1.1 200"
}

const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

/// A server of this certificate, until the guard is dropped.
fn serve(certificate: &Certificate) -> (SocketAddr, CancellationToken, DropGuard) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let router = axum::Router::new().route("/healthz", axum::routing::get(async || "ok"));
    let (stop, certificate) = (CancellationToken::new(), certificate.clone());
    let stopped = stop.clone().cancelled_owned();
    tokio::spawn(async move {
        let drain = server::Drain { limit: Duration::ZERO };
        server::serve_tls(listener, &certificate, router, drain, stopped).await
    });
    (address, stop.clone(), stop.drop_guard())
}

async fn load(folder: &Folder, options: Options) -> (Files, Certificate) {
    let files = Files {
        certificate: folder.path("tls.crt"),
        key: folder.path("tls.key"),
    };
    let certificate = files.load(options).await.unwrap();
    (files, certificate)
}

fn only(ca: &Path, names: &[&str]) -> Options {
    Options {
        clients: Some(Clients {
            ca: ca.to_owned(),
            names: names.iter().map(|&name| name.to_owned()).collect(),
        }),
        ..Options::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_those_are_listened_to_whom_the_ca_has_named() {
    let (folder, made) = Folder::new();
    let path = folder.path("client-ca.crt");
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    std::fs::write(&path, &ours.pem).unwrap();
    let api_server = ours.identity("kube-apiserver", &[]);
    let by_dns = ours.identity("", &["api.example.com"]);
    let kubelet = ours.identity("kubelet", &[]);
    let stranger = theirs.identity("kube-apiserver", &["api.example.com"]);

    let (files, named) = load(&folder, only(&path, &["kube-apiserver", "api.example.com"])).await;
    let (address, stop, _guard) = serve(&named);
    for versions in [&[&version::TLS13][..], &[&version::TLS12]] {
        let asks = |identity| answers(address, &made.ca_pem, identity, versions);
        assert!(asks(Some(&api_server)) && asks(Some(&by_dns)), "{versions:?}");
        assert!(!asks(None), "{versions:?}: without a certificate");
        assert!(!asks(Some(&kubelet)), "{versions:?}: with another name");
        assert!(!asks(Some(&stranger)), "{versions:?}: of another CA");
    }
    let (_, any) = load(&folder, only(&path, &[])).await;
    let (anybody, _stop, _anybody) = serve(&any);
    assert!(answers(anybody, &made.ca_pem, Some(&kubelet), BOTH));
    assert!(!answers(anybody, &made.ca_pem, Some(&stranger), BOTH));

    // Their CA changes, and the certificate that is served does not.
    tokio::spawn(tls::watch_files(
        named,
        files,
        Duration::from_millis(10),
        stop.cancelled_owned(),
    ));
    std::fs::write(&path, &theirs.pem).unwrap();
    eventually("the new CA is in force", async || {
        answers(address, &made.ca_pem, Some(&stranger), BOTH).then_some(())
    })
    .await;
    assert!(!answers(address, &made.ca_pem, Some(&api_server), BOTH));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_versions_of_tls_are_not_spoken() {
    let (folder, made) = Folder::new();
    for (min_version, speaks_12) in [(MinVersion::V12, true), (MinVersion::V13, false)] {
        let options = Options {
            min_version,
            ..Options::default()
        };
        let (_, certificate) = load(&folder, options).await;
        let (address, _stop, _guard) = serve(&certificate);
        assert!(answers(address, &made.ca_pem, None, &[&version::TLS13]));
        assert_eq!(answers(address, &made.ca_pem, None, &[&version::TLS12]), speaks_12);
    }
}
