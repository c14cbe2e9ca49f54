//! Cluster API's managers as processes.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::{Api, Client};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::sandbox::binaries::CapiBinaries;
use crate::sandbox::control_plane::{ControlPlane, PORT_ATTEMPTS};
use crate::sandbox::{Error, Process, ports, wait};

/// A namespace that does not exist, where a standby tries in vain to create its Lease. A Lease with another holder
/// would do as well, but then there would be two of the same name.
const NOWHERE: &str = "capi-standby";

/// Which manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ManagerKind {
    /// Cluster, MachineDeployment, MachineSet, Machine, MachineHealthCheck, ClusterClass and topology.
    Core,
    /// KubeadmConfig.
    Bootstrap,
    /// KubeadmControlPlane.
    ControlPlane,
    /// DevCluster and DevMachine, in memory.
    Dev,
}

impl ManagerKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Core, Self::Bootstrap, Self::ControlPlane, Self::Dev];

    /// The name of its binary and its logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Core => "capi-core",
            Self::Bootstrap => "capi-bootstrap",
            Self::ControlPlane => "capi-control-plane",
            Self::Dev => "capi-dev",
        }
    }

    /// The namespace that it is installed to, which also has its Lease.
    #[must_use]
    pub fn namespace(self) -> &'static str {
        match self {
            Self::Core => "capi-system",
            Self::Bootstrap => "capi-kubeadm-bootstrap-system",
            Self::ControlPlane => "capi-kubeadm-control-plane-system",
            Self::Dev => "capd-system",
        }
    }

    /// The name of its Lease.
    #[must_use]
    pub fn lease(self) -> &'static str {
        match self {
            Self::Core => "controller-leader-election-capi",
            Self::Bootstrap => "kubeadm-bootstrap-manager-leader-election-capi",
            Self::ControlPlane => "kubeadm-control-plane-manager-leader-election-capi",
            Self::Dev => "controller-leader-election-capd",
        }
    }
}

/// A manager: the process that acts, and the standby that serves the webhooks.
#[derive(Debug)]
pub struct Manager {
    kind: ManagerKind,
    active: Mutex<Process>,
    standby: Process,
}

impl Manager {
    pub(super) fn new(kind: ManagerKind, active: Process, standby: Process) -> Self {
        Self {
            kind,
            active: Mutex::new(active),
            standby,
        }
    }

    /// Which one it is.
    #[must_use]
    pub fn kind(&self) -> ManagerKind {
        self.kind
    }

    /// Stops the process that acts in its tracks. Its webhooks go on.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn freeze(&self) -> Result<(), Error> {
        self.with_active(Process::freeze)
    }

    /// Lets the process that acts go on.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn thaw(&self) -> Result<(), Error> {
        self.with_active(Process::thaw)
    }

    /// Kills the process that acts. Its webhooks go on.
    pub fn kill(&self) {
        self.with_active(Process::kill);
    }

    /// The id of the process that acts.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.with_active(Process::id)
    }

    /// The end of the log of the process that acts.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.with_active(Process::log_tail)
    }

    /// Whether the process that acts runs (it may be frozen).
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.with_active(|active| active.ended().is_none())
    }

    /// The process that serves the webhooks.
    #[must_use]
    pub fn standby(&self) -> &Process {
        &self.standby
    }

    pub(super) fn replace(&self, active: Process) {
        *self.active.lock().unwrap_or_else(PoisonError::into_inner) = active;
    }

    fn with_active<T>(&self, act: impl FnOnce(&Process) -> T) -> T {
        act(&self.active.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What is needed to start managers.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) sandbox: Arc<ControlPlane>,
    pub(super) binaries: CapiBinaries,
    certificates: PathBuf,
    pub(super) address: Ipv4Addr,
}

impl Launch {
    pub(super) fn new(sandbox: Arc<ControlPlane>, binaries: CapiBinaries) -> Result<Self, Error> {
        let folder = sandbox.data.path();
        // The managers see another folder in that place, with their namespace in it.
        if [Path::new("/run"), Path::new("/var/run")]
            .iter()
            .any(|run| folder.starts_with(run))
        {
            return Err(Error::HiddenFolder {
                folder: folder.to_owned(),
            });
        }
        let certificates = sandbox.data.subfolder("webhook-certs")?;
        let pair = sandbox.authority.server("webhooks")?;
        sandbox.data.write("webhook-certs/tls.crt", pair.certificate)?;
        sandbox.data.write("webhook-certs/tls.key", pair.key)?;
        Ok(Self {
            sandbox,
            binaries,
            certificates,
            address: ports::loopback(),
        })
    }

    /// The process that acts, holding the Lease.
    pub(super) async fn active(&self, kind: ManagerKind, client: &Client) -> Result<Process, Error> {
        let before = holder(kind, client).await?;
        let (process, _) = self.start(kind, "", kind.namespace()).await?;
        let timeout = self.sandbox.timeout;
        let answer = wait::until(timeout, async || {
            process.check()?;
            let now = holder(kind, client).await?;
            Ok::<_, Error>(if now.is_some() && now != before {
                Ok(())
            } else {
                Err(now)
            })
        });
        answer.await?.map_err(|holder| Error::Timeout {
            what: format!("the leadership of {}", kind.name()),
            seconds: timeout.as_secs(),
            state: format!("its Lease is held by {}", holder.as_deref().unwrap_or("nobody")),
        })?;
        Ok(process)
    }

    /// Another process that acts when it gets the Lease.
    pub(super) async fn second(&self, kind: ManagerKind) -> Result<Process, Error> {
        Ok(self.start(kind, "-second", kind.namespace()).await?.0)
    }

    /// The process that serves webhooks, on the returned port, and never acts.
    pub(super) async fn standby(&self, kind: ManagerKind) -> Result<(Process, u16), Error> {
        self.start(kind, "-standby", NOWHERE).await
    }

    /// Starts a process and waits until its webhooks serve.
    async fn start(&self, kind: ManagerKind, role: &str, namespace: &str) -> Result<(Process, u16), Error> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let (webhook_port, health_port) = (ports::free()?, ports::free()?);
            let process = self.spawn(kind, role, namespace, webhook_port, health_port)?;
            let timeout = self.sandbox.timeout;
            let answer = wait::until(timeout, async || {
                process.check()?;
                Ok::<_, Error>(if healthy(health_port).await { Ok(()) } else { Err(()) })
            });
            match answer.await {
                Ok(Ok(())) => return Ok((process, webhook_port)),
                Ok(Err(())) => {
                    let (name, log) = (process.name().to_owned(), process.log_tail());
                    return Err(Error::NotReady {
                        name,
                        seconds: timeout.as_secs(),
                        log,
                    });
                }
                Err(error) if attempt < PORT_ATTEMPTS && error.is_port_taken() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn spawn(
        &self,
        kind: ManagerKind,
        role: &str,
        namespace: &str,
        webhook_port: u16,
        health_port: u16,
    ) -> Result<Process, Error> {
        let name = format!("{}{role}", kind.name());
        let user = format!("system:serviceaccount:{}:{name}", kind.namespace());
        let kubeconfig = self.sandbox.kubeconfig_for(&user, &["system:masters"])?;
        let mut program = self
            .sandbox
            .program(&name, self.binaries.bin.join(kind.name()))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--webhook-cert-dir={}", self.certificates.display()))
            .arg(format!("--webhook-port={webhook_port}"))
            .arg(format!("--health-addr=127.0.0.1:{health_port}"))
            // No metrics: one port less to find.
            .arg("--diagnostics-address=0")
            .arg("--insecure-diagnostics")
            .arg("--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields")
            .arg("--feature-gates=ClusterTopology=true")
            .arg("--leader-elect")
            .arg("--kube-api-qps=500")
            .arg("--kube-api-burst=1000")
            // Memory for time: a start makes much garbage, and a test is over soon.
            .env("GOGC", "400")
            .env("POD_IP", self.address.to_string())
            .env("POD_NAMESPACE", kind.namespace())
            .env("POD_NAME", &name)
            .env("POD_UID", "00000000-0000-0000-0000-000000000000");
        program.service_account_namespace = Some(namespace.to_owned());
        program = if namespace == NOWHERE {
            // It never succeeds, so it need not try often.
            program
                .arg("--leader-elect-lease-duration=4h")
                .arg("--leader-elect-renew-deadline=3h")
                .arg("--leader-elect-retry-period=1h")
        } else {
            // The control plane manager would renew its Lease every five seconds, unlike the others.
            program.arg("--leader-elect-retry-period=2s")
        };
        self.sandbox.spawner.spawn(program)
    }
}

/// Who holds the Lease of a manager, if it is there.
async fn holder(kind: ManagerKind, client: &Client) -> Result<Option<String>, Error> {
    Ok(lease(kind, client).await?.and_then(holder_of))
}

/// Who holds a Lease; nobody where it is released.
pub(super) fn holder_of(lease: LeaseSpec) -> Option<String> {
    lease.holder_identity.filter(|holder| !holder.is_empty())
}

/// The Lease of a manager, if it is there.
pub(super) async fn lease(kind: ManagerKind, client: &Client) -> Result<Option<LeaseSpec>, Error> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), kind.namespace());
    let lease = leases
        .get_opt(kind.lease())
        .await
        .map_err(Error::api(format!("read the Lease {}", kind.lease())))?;
    Ok(lease.and_then(|lease| lease.spec))
}

/// Whether a manager says that its webhooks serve.
async fn healthy(port: u16) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.take(1024).read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(2), ask).await;
    matches!(answer, Ok(Ok(text)) if text.split_whitespace().nth(1) == Some("200"))
}
