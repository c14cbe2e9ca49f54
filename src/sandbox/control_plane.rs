//! etcd and kube-apiserver.

use std::ffi::OsStr;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;

use super::Error;
use super::authority::{Authority, service_account_keys};
use super::binaries::{self, Binaries};
use super::capi::{self, Capi};
use super::data_dir::DataDir;
use super::process::{Process, Program, Spawner};
use super::{kubeconfig, ports, progress, wait};

/// How often the API server is started on another port when somebody else was faster.
pub(super) const PORT_ATTEMPTS: usize = 5;

/// Everything is logged, bodies are not: who wrote what when is what counts here, and bodies would slow it all down.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

/// What kind of sandbox.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The `pausegen` binary, which has a hidden subcommand that starts the processes.
    pub exe: PathBuf,
    /// With Cluster API's managers.
    pub capi: bool,
    /// With Cluster API's kinds, without anybody who looks after them.
    pub capi_kinds: bool,
    /// With the oldest API server that is tested against, instead of the newest.
    pub oldest: bool,
    /// With an audit log of every request, at level Metadata.
    pub audit: bool,
    /// How long a process may take until it is ready.
    pub timeout: Duration,
    /// Where to copy the logs when it is stopped.
    pub keep_logs: Option<PathBuf>,
    /// Let each Go process keep one processor busy at most: they then spend less time on handing work to each other, where
    /// several sandboxes run side by side.
    pub one_processor: bool,
    /// Show on stderr how long the start takes, if that is a terminal. What is built is shown in any case.
    pub show_progress: bool,
}

impl Options {
    /// A plain control plane with an audit log.
    #[must_use]
    pub fn new(exe: impl Into<PathBuf>) -> Self {
        Self {
            exe: exe.into(),
            capi: false,
            capi_kinds: false,
            oldest: false,
            audit: true,
            timeout: Duration::from_secs(120),
            keep_logs: None,
            one_processor: false,
            show_progress: false,
        }
    }

    /// With Cluster API's managers.
    #[must_use]
    pub fn with_capi(mut self) -> Self {
        self.capi = true;
        self
    }

    /// With the oldest API server that is tested against.
    #[must_use]
    pub fn with_oldest_api_server(mut self) -> Self {
        self.oldest = true;
        self
    }

    /// With Cluster API's kinds alone: whoever started it plays the controllers.
    #[must_use]
    pub fn with_capi_kinds(mut self) -> Self {
        self.capi_kinds = true;
        self
    }
}

/// A running control plane. It ends when this is dropped.
#[derive(Debug)]
pub struct Sandbox {
    // The order of the fields is the order in which they end.
    capi: Option<Capi>,
    api_server: Mutex<Process>,
    etcd: Process,
    control_plane: Arc<ControlPlane>,
}

/// What everything in a sandbox needs.
#[derive(Debug)]
pub(super) struct ControlPlane {
    pub(super) spawner: Spawner,
    pub(super) authority: Authority,
    pub(super) binaries: Binaries,
    pub(super) timeout: Duration,
    port: u16,
    audit: bool,
    keep_logs: Option<PathBuf>,
    one_processor: bool,
    kubeconfig: PathBuf,
    // Last: it removes the folder.
    pub(super) data: DataDir,
}

impl Sandbox {
    /// Starts one and waits until it is ready. Where the programs have to be built first, this takes minutes.
    ///
    /// # Errors
    ///
    /// A program cannot be found or built, a process ends or is not ready in time.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let Options {
            exe,
            capi,
            capi_kinds,
            oldest,
            audit,
            timeout,
            keep_logs,
            one_processor,
            show_progress,
        } = options;
        let (spawner, binaries, data) = tokio::task::spawn_blocking(move || {
            let spawner = Spawner::new(&exe)?;
            let binaries = binaries::find(&spawner, capi || capi_kinds, oldest)?;
            Ok::<_, Error>((spawner, binaries, DataDir::create(&exe)?))
        })
        .await
        .map_err(|_| Error::Cancelled {
            what: "the search for the programs",
        })??;
        let kubeconfig = data.file("admin.kubeconfig");
        let authority = Authority::new()?;
        let control_plane = ControlPlane {
            spawner,
            authority,
            binaries,
            timeout,
            port: 0,
            audit,
            keep_logs,
            one_processor,
            kubeconfig,
            data,
        };
        if show_progress && std::io::stderr().is_terminal() {
            progress::during("starting the sandbox", Self::launch(control_plane, capi)).await
        } else {
            Self::launch(control_plane, capi).await
        }
    }

    async fn launch(mut control_plane: ControlPlane, managers: bool) -> Result<Self, Error> {
        control_plane.write_files()?;
        let etcd = control_plane.start_etcd()?;
        let mut attempt = 0;
        let api_server = loop {
            attempt += 1;
            control_plane.port = ports::free()?;
            control_plane.write_kubeconfig()?;
            let api_server = control_plane.start_api_server()?;
            match control_plane.ready(&etcd, &api_server).await {
                Ok(()) => break api_server,
                Err(error) if attempt < PORT_ATTEMPTS && error.is_port_taken() => {
                    tracing::debug!(port = control_plane.port, "the port was taken, trying another one");
                }
                Err(error) => return Err(error),
            }
        };
        let capi_binaries = control_plane.binaries.capi.clone();
        let mut this = Self {
            capi: None,
            api_server: Mutex::new(api_server),
            etcd,
            control_plane: Arc::new(control_plane),
        };
        match capi_binaries {
            Some(binaries) if managers => {
                this.capi = Some(Box::pin(Capi::start(Arc::clone(&this.control_plane), binaries)).await?);
            }
            Some(binaries) => capi::install_kinds(&this.client().await?, &binaries.manifests).await?,
            None => {}
        }
        Ok(this)
    }

    /// Cluster API, where it was asked for.
    #[must_use]
    pub fn capi(&self) -> Option<&Capi> {
        self.capi.as_ref()
    }

    /// The kubeconfig of the administrator (`admin`, in `system:masters`).
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.control_plane.kubeconfig
    }

    /// The folder of this sandbox. It holds the logs, and it goes with the sandbox.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.control_plane.data.path()
    }

    /// The URL of the API server.
    #[must_use]
    pub fn url(&self) -> String {
        self.control_plane.url()
    }

    /// The certificate of the authority that signs everything here, as PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        self.control_plane.authority.pem()
    }

    /// The audit log: one JSON object a line, on disk before the request is answered.
    #[must_use]
    pub fn audit_log(&self) -> Option<PathBuf> {
        self.control_plane
            .audit
            .then(|| self.control_plane.data.file("audit.log"))
    }

    /// The `pausegen` binary that starts its processes.
    pub(super) fn exe(&self) -> &Path {
        self.control_plane.spawner.exe()
    }

    /// What everything in it needs.
    pub(super) fn control_plane(&self) -> Arc<ControlPlane> {
        Arc::clone(&self.control_plane)
    }

    /// The programs that it runs.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.control_plane.binaries
    }

    /// A client for the administrator. It belongs to the runtime that this is called on.
    ///
    /// # Errors
    ///
    /// The client cannot be made.
    pub async fn client(&self) -> Result<Client, Error> {
        kubeconfig::client(self.kubeconfig()).await
    }

    /// Signs a certificate for a user and writes a kubeconfig with it. At most two groups fit in a certificate here.
    ///
    /// # Errors
    ///
    /// More than two groups, or the file cannot be written.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<PathBuf, Error> {
        self.control_plane.kubeconfig_for(user, groups)
    }

    /// A client for a user, as [`kubeconfig_for`](Self::kubeconfig_for).
    ///
    /// # Errors
    ///
    /// As there, or the client cannot be made.
    pub async fn client_for(&self, user: &str, groups: &[&str]) -> Result<Client, Error> {
        kubeconfig::client(&self.kubeconfig_for(user, groups)?).await
    }

    /// A `kubectl` command as the administrator, to be run in whatever way.
    #[must_use]
    pub fn kubectl_command(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> std::process::Command {
        let mut command = std::process::Command::new(&self.control_plane.binaries.kubectl);
        // Without a cache folder of its own, kubectl would use the user's.
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command
            .arg("--cache-dir")
            .arg(self.control_plane.data.file("kubectl-cache"));
        command.args(args);
        command
    }

    /// Runs `kubectl` as the administrator and returns what it writes. It is killed when this future is dropped.
    ///
    /// # Errors
    ///
    /// It cannot be run. That it fails is not an error, see the output's status.
    pub async fn kubectl(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<Output, Error> {
        let mut command = tokio::process::Command::from(self.kubectl_command(args));
        command.kill_on_drop(true).stdin(std::process::Stdio::null());
        command.output().await.map_err(|source| Error::Spawn {
            name: "kubectl".to_owned(),
            source,
        })
    }

    /// Kills the API server and starts it again, on the same port and data.
    ///
    /// # Errors
    ///
    /// It does not come back.
    pub async fn restart_api_server(&self) -> Result<(), Error> {
        self.stop_api_server();
        self.start_api_server().await
    }

    /// Kills the API server. [`start_api_server`](Self::start_api_server) starts it again.
    pub fn stop_api_server(&self) {
        self.api_server.lock().unwrap_or_else(PoisonError::into_inner).kill();
    }

    /// Starts the API server again, on the same port and data.
    ///
    /// # Errors
    ///
    /// It does not come back.
    pub async fn start_api_server(&self) -> Result<(), Error> {
        let api_server = self.control_plane.start_api_server()?;
        self.control_plane.ready(&self.etcd, &api_server).await?;
        *self.api_server.lock().unwrap_or_else(PoisonError::into_inner) = api_server;
        Ok(())
    }

    /// Ends all processes and removes the folder. So does dropping it.
    pub fn stop(self) {}
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Some(target) = &self.control_plane.keep_logs
            && let Err(error) = self.control_plane.data.copy_logs(target)
        {
            tracing::warn!(folder = %target.display(), %error, "cannot keep the logs");
        }
    }
}

impl ControlPlane {
    pub(super) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// A client for the administrator on the current runtime.
    pub(super) async fn client(&self) -> Result<Client, Error> {
        kubeconfig::client(&self.kubeconfig).await
    }

    pub(super) fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<PathBuf, Error> {
        let pair = self.authority.client(user, groups)?;
        // A user may be called anything (`system:serviceaccount:...`), a file may not.
        let name: String = user
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let text = kubeconfig::render(&self.url(), self.authority.pem(), user, &pair);
        self.data.write(&format!("{name}.kubeconfig"), text)
    }

    fn write_kubeconfig(&self) -> Result<(), Error> {
        self.kubeconfig_for("admin", &["system:masters"]).map(drop)
    }

    fn write_files(&self) -> Result<(), Error> {
        let server = self.authority.server("kube-apiserver")?;
        self.data.write("ca.crt", self.authority.pem())?;
        self.data.write("apiserver.crt", server.certificate)?;
        self.data.write("apiserver.key", server.key)?;
        let (private, public) = service_account_keys()?;
        self.data.write("service-account.key", private)?;
        self.data.write("service-account.pub", public)?;
        self.data.write("audit-policy.yaml", AUDIT_POLICY)?;
        Ok(())
    }

    /// A program that runs in the folder of the sandbox and logs there.
    pub(super) fn program(&self, name: &str, path: PathBuf) -> Program {
        let program = Program {
            name: name.to_owned(),
            path,
            folder: self.data.path().to_owned(),
            log: self.data.file(&format!("{name}.log")),
            ..Program::default()
        };
        if self.one_processor {
            program.env("GOMAXPROCS", "1")
        } else {
            program
        }
    }

    /// etcd listens on sockets in the folder of the sandbox: no port to be taken by another one, whose API server
    /// would then share this store. The names are relative, since the path of a socket must be short.
    fn start_etcd(&self) -> Result<Process, Error> {
        let program = self.program("etcd", self.binaries.etcd.clone());
        let program = program
            .arg("--data-dir=etcd")
            .arg("--unsafe-no-fsync")
            .arg("--listen-client-urls=unix://etcd.sock:0")
            .arg("--advertise-client-urls=unix://etcd.sock:0")
            .arg("--listen-peer-urls=unix://etcd-peer.sock:0")
            .arg("--initial-advertise-peer-urls=unix://etcd-peer.sock:0")
            .arg("--initial-cluster=default=unix://etcd-peer.sock:0")
            .arg("--log-level=warn");
        self.spawner.spawn(program)
    }

    fn start_api_server(&self) -> Result<Process, Error> {
        let mut program = self
            .program("kube-apiserver", self.binaries.kube_apiserver.clone())
            .arg("--etcd-servers=unix://etcd.sock:0")
            .arg(format!("--secure-port={}", self.port))
            .arg("--bind-address=127.0.0.1")
            .arg("--advertise-address=127.0.0.1")
            .arg("--tls-cert-file=apiserver.crt")
            .arg("--tls-private-key-file=apiserver.key")
            .arg("--client-ca-file=ca.crt")
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg("--service-account-key-file=service-account.pub")
            .arg("--service-account-signing-key-file=service-account.key")
            .arg("--authorization-mode=RBAC")
            .arg("--service-cluster-ip-range=10.0.0.0/24")
            // Its controller is not here, so that every Pod would be refused.
            .arg("--disable-admission-plugins=ServiceAccount")
            .arg("--endpoint-reconciler-type=none")
            // Nobody is to wait for somebody else's requests.
            .arg("--enable-priority-and-fairness=false")
            .arg("--max-requests-inflight=3000")
            .arg("--max-mutating-requests-inflight=1500")
            .arg("--profiling=false")
            // It collects garbage less often: most of what it does here is to start.
            .env("GOGC", "400");
        if self.audit {
            program = program
                .arg("--audit-policy-file=audit-policy.yaml")
                .arg("--audit-log-path=audit.log")
                .arg("--audit-log-mode=blocking");
        }
        self.spawner.spawn(program)
    }

    async fn ready(&self, etcd: &Process, api_server: &Process) -> Result<(), Error> {
        let client = kubeconfig::client(&self.kubeconfig).await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let answer = wait::until(self.timeout, async || {
            etcd.check()?;
            api_server.check()?;
            let ready = async {
                let request = http::Request::get("/readyz")
                    .body(Vec::new())
                    .map_err(kube::Error::HttpError)?;
                client.request_text(request).await?;
                // It is made after the API server calls itself ready.
                namespaces.get("default").await
            };
            // The client logs each failure as an error, and here they are expected.
            Ok::<_, Error>(ready.with_subscriber(NoSubscriber::default()).await.map_err(drop))
        });
        answer.await?.map_err(|()| Error::NotReady {
            name: api_server.name().to_owned(),
            seconds: self.timeout.as_secs(),
            log: api_server.log_tail(),
        })?;
        Ok(())
    }
}
