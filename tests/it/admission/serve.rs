//! `pausegen serve` as a process: its settings, its certificate, and how it stops.

use std::{
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::Arc,
};

use pausegen::tls::{self, Files, Generated};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio_util::sync::CancellationToken;

use crate::support;

/// A free port, for a moment.
pub(crate) fn free() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

pub(crate) fn command() -> Command {
    let mut command = Command::new(support::EXE);
    command.arg("serve").env_clear().stdin(Stdio::null());
    command
}

fn request(stream: &mut (impl std::io::Read + std::io::Write), head: &str, body: &str) -> std::io::Result<String> {
    write!(
        stream,
        "{head} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    // A server that ends need not say goodbye in TLS.
    if answer.is_empty() {
        read?;
    }
    Ok(String::from_utf8(answer).unwrap())
}

pub(crate) fn plain(address: SocketAddr, path: &str) -> std::io::Result<String> {
    request(&mut TcpStream::connect(address)?, &format!("GET {path}"), "")
}

/// Calls over TLS, trusting one CA.
pub(crate) fn over_tls(
    address: SocketAddr,
    ca_pem: &str,
    alpn: &[&str],
    head: &str,
    body: &str,
) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap())
        .unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(client, TcpStream::connect(address)?);
    let answer = request(&mut stream, head, body)?;
    if !alpn.is_empty() {
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    }
    Ok(answer)
}

/// A folder with a certificate in files, as a kubelet mounts a Secret: each file is a symlink through `..data`, which is
/// swapped.
pub(crate) struct Folder {
    folder: tempfile::TempDir,
    written: std::cell::Cell<u32>,
}

impl Folder {
    pub(crate) fn new() -> (Self, Generated) {
        let this = Self {
            folder: tempfile::tempdir().unwrap(),
            written: std::cell::Cell::new(0),
        };
        let made = tls::generate(&["127.0.0.1"]).unwrap();
        this.write(&made.cert_pem, &made.key_pem);
        for name in ["tls.crt", "tls.key"] {
            std::os::unix::fs::symlink(format!("..data/{name}"), this.path(name)).unwrap();
        }
        (this, made)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, certificate: &str, key: &str) {
        let version = self.written.get();
        self.written.set(version + 1);
        let here = self.path(&format!("..{version}"));
        std::fs::create_dir(&here).unwrap();
        std::fs::write(here.join("tls.crt"), certificate).unwrap();
        std::fs::write(here.join("tls.key"), key).unwrap();
        std::os::unix::fs::symlink(&here, self.path("..new")).unwrap();
        std::fs::rename(self.path("..new"), self.path("..data")).unwrap();
        if let Some(before) = version.checked_sub(1) {
            std::fs::remove_dir_all(self.path(&format!("..{before}"))).unwrap();
        }
    }
}

/// A process that is killed when the test is over.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn terminate(process: &Process) {
    let pid = rustix::process::Pid::from_child(&process.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

#[tokio::test]
async fn it_serves_and_stops_when_it_is_told_to() {
    let (folder, made) = Folder::new();
    let (address, metrics) = (free(), free());
    let mut process = Process(
        command()
            .args([
                "--no-companion",
                "--companion-user",
                "companion",
                "--shutdown-delay",
                "5s",
                "--record-user",
                "hash",
            ])
            .args(["--bind", &address.to_string(), "--metrics-bind", &metrics.to_string()])
            .arg("--tls-cert")
            .arg(folder.path("tls.crt"))
            .arg("--tls-key")
            .arg(folder.path("tls.key"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    support::eventually("it is ready", async || {
        plain(metrics, "/readyz")
            .ok()
            .filter(|answer| answer.starts_with("HTTP/1.1 200"))
    })
    .await;
    let call = |alpn: &[&str], body| over_tls(address, &made.ca_pem, alpn, "POST /mutate?timeout=10s", body);
    for alpn in [&["http/1.1"][..], &["h2", "http/1.1"], &[]] {
        assert!(call(alpn, "{}").unwrap().starts_with("HTTP/1.1 400"), "{alpn:?}");
    }
    assert!(call(&["h2"], "{}").is_err());

    terminate(&process);
    support::eventually("it is not ready any more", async || {
        plain(metrics, "/readyz")
            .ok()
            .filter(|answer| answer.starts_with("HTTP/1.1 503"))
    })
    .await;
    // Not ready, it still answers whoever has not heard.
    let answer = call(&["http/1.1"], "{}").unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("connection: close"),
        "{answer}"
    );
    let status = support::eventually("it ends", async || process.0.try_wait().unwrap()).await;
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn a_new_certificate_is_served_without_a_restart() {
    let (folder, old) = Folder::new();
    let files = Files {
        certificate: folder.path("tls.crt"),
        key: folder.path("tls.key"),
    };
    let certificate = files.load(tls::Options::default()).await.unwrap();
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let every = std::time::Duration::from_millis(10);
    tokio::spawn(tls::watch_files(
        certificate.clone(),
        files,
        every,
        stop.clone().cancelled_owned(),
    ));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let router = axum::Router::new().route("/healthz", axum::routing::get(async || "ok"));
    tokio::spawn(async move {
        let drain = pausegen::admission::server::Drain {
            limit: std::time::Duration::ZERO,
        };
        pausegen::admission::server::serve_tls(listener, &certificate, router, drain, stop.cancelled_owned()).await
    });
    let trusts = async |made: &Generated| {
        let ca_pem = made.ca_pem.clone();
        tokio::task::spawn_blocking(move || over_tls(address, &ca_pem, &[], "GET /healthz", "").is_ok())
            .await
            .unwrap()
    };
    assert!(trusts(&old).await);
    // The key of another one: what was served still is.
    let new = tls::generate(&["127.0.0.1"]).unwrap();
    folder.write(&new.cert_pem, &old.key_pem);
    for _ in 0..20 {
        tokio::time::sleep(every).await;
        assert!(trusts(&old).await);
    }
    folder.write(&new.cert_pem, &new.key_pem);
    support::eventually("the new certificate is served", async || {
        trusts(&new).await.then_some(())
    })
    .await;
    assert!(!trusts(&old).await);
}

fn run(args: &[&str], env: &[(&str, &str)]) -> Output {
    command().args(args).envs(env.iter().copied()).output().unwrap()
}

#[test]
fn settings_that_cannot_be_used_are_named() {
    let (folder, _made) = Folder::new();
    let (certificate, key) = (folder.path("tls.crt"), folder.path("tls.key"));
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    let kubeconfig = folder.path("kubeconfig");
    let nowhere = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "nowhere",
        "clusters": [{ "name": "nowhere", "cluster": { "server": "http://127.0.0.1:1" } }],
        "contexts": [{ "name": "nowhere", "context": { "cluster": "nowhere", "user": "" } }],
    });
    std::fs::write(&kubeconfig, nowhere.to_string()).unwrap();
    let nowhere = [("PAUSEGEN_KUBECONFIG", kubeconfig.to_str().unwrap())];
    let user = ["--companion-user", "companion"];
    let tls = ["--tls-cert", certificate, "--tls-key", key];
    type Case<'a> = (Vec<&'a str>, &'a [(&'a str, &'a str)], &'a str);
    let cases: Vec<Case<'_>> = vec![
        (
            vec!["--no-admission", "--no-companion"],
            &[],
            "--no-admission and --no-companion",
        ),
        (user.to_vec(), &[], "--tls-cert (PAUSEGEN_TLS_CERT)"),
        ([&user[..], &tls[..2]].concat(), &[], "--tls-key (PAUSEGEN_TLS_KEY)"),
        (tls.to_vec(), &[], "--companion-user (PAUSEGEN_COMPANION_USERS)"),
        (
            [&user[..], &["--tls-cert", "/none", "--tls-key", key]].concat(),
            &[],
            "/none",
        ),
        (
            [&user[..], &["--tls-cert", key, "--tls-key", key]].concat(),
            &[],
            "no CERTIFICATE block",
        ),
        ([&user[..], &tls[..], &["--bind", "nowhere"]].concat(), &[], "--bind"),
        (
            [&user[..], &tls[..], &["--client-ca", key]].concat(),
            &[],
            "--client-ca (PAUSEGEN_CLIENT_CA)",
        ),
        (
            [&user[..], &tls[..], &["--client-name", "api"]].concat(),
            &[],
            "--client-ca",
        ),
        (
            [&user[..], &tls[..]].concat(),
            &[("PAUSEGEN_MAX_MIB_IN_FLIGHT", "1")],
            "--max-mib-in-flight",
        ),
        (
            [&user[..], &tls[..], &["--history", "/none/history"]].concat(),
            &nowhere,
            "--history (PAUSEGEN_HISTORY)",
        ),
        (
            [&user[..], &tls[..], &["--rules", "/none.yaml"]].concat(),
            &[],
            "/none.yaml",
        ),
        (
            [&user[..], &tls[..]].concat(),
            &[("PAUSEGEN_HASTY", "maybe")],
            "--hasty",
        ),
        (
            [&user[..], &tls[..]].concat(),
            &[("PAUSEGEN_SHUTDOWN_DELAY", "-1s")],
            "--shutdown-delay",
        ),
        (
            [&user[..], &tls[..]].concat(),
            &[("PAUSEGEN_NO_COMPANION", "perhaps")],
            "--no-companion",
        ),
        (
            vec!["--no-admission"],
            &[("PAUSEGEN_KUBECONFIG", "/none")],
            "--kubeconfig /none",
        ),
    ];
    for (args, env, named) in cases {
        let output = run(&args, env);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{args:?} {env:?}");
        assert!(stderr.contains(named), "{args:?} {env:?}: `{named}` is not in {stderr}");
    }
}

/// Each flag is in the table, with its environment variable and its default, and nothing else is.
#[test]
fn the_table_of_settings_is_that_of_the_flags() {
    let text = include_str!("../../../docs/operations.md");
    let table = text.split("\n## Settings\n").nth(1).unwrap();
    let table = table.split("\n## ").next().unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| `--"))
        .map(|line| line.trim_matches('|').split(" | ").collect())
        .collect();
    let mut cli = <pausegen::commands::Cli as clap::CommandFactory>::command();
    cli.build();
    let serve = cli.find_subcommand("serve").unwrap();
    let mut flags = Vec::new();
    for argument in serve.get_arguments() {
        let Some(long) = argument.get_long().filter(|long| *long != "help") else {
            continue;
        };
        flags.push(long.to_owned());
        let names = |cell: &str| cell.contains(&format!("`--{long} ")) || cell.contains(&format!("`--{long}`"));
        let row = rows
            .iter()
            .find(|row| names(row[0]))
            .unwrap_or_else(|| panic!("--{long} is not there"));
        let variable = argument.get_env().unwrap().to_str().unwrap();
        assert!(row[1].contains(&format!("`{variable}`")), "--{long}: {row:?}");
        if let [default] = argument.get_default_values() {
            let default = default.to_str().unwrap();
            assert_eq!(row[2], format!("`{default}`"), "--{long}");
        }
    }
    let named = rows.iter().flat_map(|row| row[0].split(['`', ' ']));
    for flag in named.filter_map(|word| word.strip_prefix("--")) {
        assert!(flags.iter().any(|known| known == flag), "--{flag} is no flag");
    }
}
