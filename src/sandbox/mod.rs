//! A local control plane without containers: etcd and kube-apiserver, and on demand Cluster API's managers with its
//! in-memory infrastructure. The tests and the demo run on it.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use pausegen::sandbox::{Options, Sandbox};
//!
//! let sandbox = Sandbox::start(Options::new(std::env::current_exe()?)).await?;
//! let namespaces = sandbox.kubectl(["get", "namespaces"]).await?;
//! assert!(namespaces.status.success());
//! sandbox.stop();
//! # Ok(())
//! # }
//! ```
//!
//! A sandbox belongs to no async runtime, only the clients that it makes do: a test process can share one. Its
//! processes and its folder go when it is dropped; where the owner is killed, the kernel ends the processes, and a
//! process that waits for that removes the folder.
//!
//! What is not there: kubelet, scheduler and controller manager. No Pod runs, a namespace stays once it exists, and
//! owner references delete nothing.

pub mod answers;
mod authority;
mod binaries;
mod build;
mod capi;
mod control_plane;
mod data_dir;
mod error;
pub mod exec;
mod kubeconfig;
mod kubectl;
mod ports;
mod process;
pub mod product;
pub mod progress;
mod tools;
mod wait;

pub use binaries::{Binaries, CapiBinaries, helm};
pub use capi::{Capi, ClusterShape, Manager, ManagerKind};
pub use control_plane::{Options, Sandbox};
pub use error::Error;
pub use process::Process;

/// Waits until the owner of a sandbox's folder is gone, and removes the folder.
///
/// # Errors
///
/// The folder is none of a sandbox, or cannot be removed.
pub fn sweep_when_abandoned(folder: &std::path::Path) -> std::io::Result<()> {
    data_dir::wait_and_remove(folder)
}
