//! Cluster API in a sandbox: its CRDs, its webhooks, and its four managers as they run in production, with leader
//! election, on the in-memory infrastructure of its development provider.
//!
//! A frozen controller is a manager that got SIGSTOP. Its webhooks would be frozen with it, and with them every write
//! of its kinds. So each manager has a standby: a second process that serves the webhooks and controls nothing,
//! because it can never create the Lease that it waits for. In production a second replica does the same.

mod cluster;
mod install;
mod manager;

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;

pub use cluster::ClusterShape;
pub(super) use install::crds as install_kinds;
pub use manager::{Manager, ManagerKind};

use super::binaries::CapiBinaries;
use super::control_plane::ControlPlane;
use super::wait::until;
use super::{Error, Process};
use manager::Launch;

/// How long a manager that goes on may take to renew its Lease, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Cluster API, running.
#[derive(Debug)]
pub struct Capi {
    // The order of the fields is the order in which they end.
    core: Manager,
    bootstrap: Manager,
    control_plane: Manager,
    dev: Manager,
    launch: Launch,
}

impl Capi {
    /// Installs it and starts the managers. Returns when the webhooks serve and each manager holds its Lease.
    pub(super) async fn start(sandbox: Arc<ControlPlane>, binaries: CapiBinaries) -> Result<Self, Error> {
        let client = sandbox.client().await?;
        let launch = Launch::new(sandbox, binaries)?;
        let namespaces = ManagerKind::ALL.map(|kind| install::namespace(&client, kind.namespace()));
        tokio::try_join!(
            try_join_all(namespaces),
            install::crds(&client, &launch.binaries.manifests)
        )?;
        let start = async |kind| {
            let webhooks = async {
                let (standby, port) = launch.standby(kind).await?;
                let ca = launch.sandbox.authority.pem();
                install::webhooks(&client, &launch.binaries.manifests, kind, port, ca).await?;
                Ok(standby)
            };
            let (active, standby) = tokio::try_join!(launch.active(kind, &client), webhooks)?;
            Ok::<_, Error>(Manager::new(kind, active, standby))
        };
        let (core, bootstrap, control_plane, dev) = tokio::try_join!(
            start(ManagerKind::Core),
            start(ManagerKind::Bootstrap),
            start(ManagerKind::ControlPlane),
            start(ManagerKind::Dev),
        )?;
        Ok(Self {
            core,
            bootstrap,
            control_plane,
            dev,
            launch,
        })
    }

    /// One of the managers.
    #[must_use]
    pub fn manager(&self, kind: ManagerKind) -> &Manager {
        match kind {
            ManagerKind::Core => &self.core,
            ManagerKind::Bootstrap => &self.bootstrap,
            ManagerKind::ControlPlane => &self.control_plane,
            ManagerKind::Dev => &self.dev,
        }
    }

    /// Starts another process that acts for a manager: it waits for the manager's Lease and takes over when that is
    /// not renewed any more. It ends when the returned value is dropped. (For the development provider the first one
    /// has to be killed, not frozen, since its in-memory clusters need their addresses.)
    ///
    /// # Errors
    ///
    /// It ends or is not ready in time.
    pub async fn start_second(&self, kind: ManagerKind) -> Result<Process, Error> {
        self.launch.second(kind).await
    }

    /// Lets a frozen manager go on, and returns when its Lease is renewed again. One that was frozen in the middle of a
    /// renewal has lost the Lease by its own reckoning, and ends: that one is started anew, as a kubelet would.
    ///
    /// # Errors
    ///
    /// It neither goes on nor ends, or cannot be started.
    pub async fn thaw(&self, kind: ManagerKind) -> Result<(), Error> {
        let client = self.launch.sandbox.client().await?;
        let manager = self.manager(kind);
        let before = manager::lease(kind, &client).await?;
        manager.thaw()?;
        let goes_on = until(PATIENCE, async || {
            if !manager.is_running() {
                return Ok::<_, Error>(Ok(false));
            }
            // One that ends releases its Lease first, which is no renewal.
            let now = manager::lease(kind, &client).await?;
            let is_renewed = now != before && now.and_then(manager::holder_of).is_some();
            Ok(if is_renewed { Ok(true) } else { Err(()) })
        });
        match goes_on.await? {
            Ok(true) => Ok(()),
            Ok(false) => self.restart(kind).await,
            Err(()) => Err(Error::NotReady {
                name: kind.name().to_owned(),
                seconds: PATIENCE.as_secs(),
                log: manager.log_tail(),
            }),
        }
    }

    /// Starts a manager that was killed. Returns when it holds the Lease, which takes the rest of the old Lease.
    ///
    /// # Errors
    ///
    /// It ends or is not ready in time.
    pub async fn restart(&self, kind: ManagerKind) -> Result<(), Error> {
        let client = self.launch.sandbox.client().await?;
        self.manager(kind).kill();
        let active = self.launch.active(kind, &client).await?;
        self.manager(kind).replace(active);
        Ok(())
    }

    /// Creates a Cluster from Cluster API's own in-memory ClusterClass, in a namespace that is made where it is not
    /// there. Nothing is waited for. A namespace holds one Cluster, whose port is in the class.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn create_cluster(&self, namespace: &str, name: &str, shape: ClusterShape) -> Result<(), Error> {
        let client = self.launch.sandbox.client().await?;
        cluster::create(
            &client,
            &self.launch.binaries.manifests,
            namespace,
            name,
            shape,
            self.launch.address,
        )
        .await
    }

    /// Waits until a Cluster is Provisioned and its Machines, all of them, are Running.
    ///
    /// # Errors
    ///
    /// Not in time: the error says what is missing.
    pub async fn wait_running(&self, namespace: &str, name: &str, timeout: Duration) -> Result<(), Error> {
        let client = self.launch.sandbox.client().await?;
        cluster::wait_running(&client, namespace, name, timeout).await
    }
}
