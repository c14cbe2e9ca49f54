//! Where the programs of a sandbox come from.
//!
//! In this order: the folder that `KUBEBUILDER_ASSETS` names; where `setup-envtest` keeps them; the user's cache
//! folder, where they are built once from pinned Go modules. Cluster API's programs always come from the cache.

use std::path::{Path, PathBuf};

use super::Error;
use super::build::Builder;
use super::process::Spawner;
use super::tools::{self, CLUSTER_API, ETCD, HELM, KUBERNETES, Module, OLDEST_KUBERNETES};

/// The programs of a control plane.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// The store.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
    /// The command line client.
    pub kubectl: PathBuf,
    /// Cluster API's, where they were asked for.
    pub capi: Option<CapiBinaries>,
}

/// The programs and manifests of Cluster API.
#[derive(Clone, Debug)]
pub struct CapiBinaries {
    /// The folder with the managers and clusterctl.
    pub bin: PathBuf,
    /// The folder with the CRDs, webhook configurations and templates, as `sandbox::build` lays them out.
    pub manifests: PathBuf,
}

impl CapiBinaries {
    /// Cluster API's command line client.
    #[must_use]
    pub fn clusterctl(&self) -> PathBuf {
        self.bin.join("clusterctl")
    }
}

/// Finds the programs, and builds what is missing. That takes minutes the first time, and blocks.
pub(super) fn find(spawner: &Spawner, capi: bool, oldest: bool) -> Result<Binaries, Error> {
    let builder = || Builder::new(spawner, cache_folder()?);
    let folders = match assets()? {
        Some(folder) => vec![folder],
        None => {
            let builder = builder()?;
            vec![builder.build(&ETCD)?, builder.build(&KUBERNETES)?]
        }
    };
    let find = |name| {
        folders
            .iter()
            .map(|folder| folder.join(name))
            .find(|path: &PathBuf| path.is_file())
    };
    let missing = |program| {
        let folder = folders.first().cloned().unwrap_or_default();
        move || Error::Assets { folder, program }
    };
    let capi = if capi {
        let builder = builder()?;
        Some(CapiBinaries {
            bin: builder.build(&CLUSTER_API)?,
            manifests: builder.manifests()?,
        })
    } else {
        None
    };
    Ok(Binaries {
        etcd: find("etcd").ok_or_else(missing("etcd"))?,
        kube_apiserver: if oldest {
            builder()?.build(&OLDEST_KUBERNETES)?.join("kube-apiserver")
        } else {
            find("kube-apiserver").ok_or_else(missing("kube-apiserver"))?
        },
        kubectl: find("kubectl").ok_or_else(missing("kubectl"))?,
        capi,
    })
}

/// Helm, built once from its pinned Go module. That takes a minute the first time, and blocks. `exe` is the `pausegen`
/// binary.
///
/// # Errors
///
/// It cannot be built.
pub fn helm(exe: &Path) -> Result<PathBuf, Error> {
    let spawner = Spawner::new(exe)?;
    let folder = Builder::new(&spawner, cache_folder()?)?.build(&HELM)?;
    Ok(folder.join("helm"))
}

/// A folder that somebody else filled.
fn assets() -> Result<Option<PathBuf>, Error> {
    if let Some(folder) = variable("KUBEBUILDER_ASSETS") {
        for module in [&ETCD, &KUBERNETES] {
            if let Some(program) = missing_in(&folder, module) {
                return Err(Error::Assets { folder, program });
            }
        }
        return Ok(Some(folder));
    }
    let Some(data) = variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local/share"))) else {
        return Ok(None);
    };
    let wanted = KUBERNETES.version_of("k8s.io/kubernetes").unwrap_or_default();
    Ok(
        tools::newest_envtest(&data.join("kubebuilder-envtest/k8s"), wanted).filter(|folder| {
            [&ETCD, &KUBERNETES]
                .iter()
                .all(|module| missing_in(folder, module).is_none())
        }),
    )
}

fn missing_in(folder: &Path, module: &Module) -> Option<&'static str> {
    module
        .programs
        .iter()
        .map(|program| program.name)
        .find(|name| !folder.join(name).is_file())
}

fn cache_folder() -> Result<PathBuf, Error> {
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    Ok(cache.ok_or(Error::NoCacheFolder)?.join("pausegen"))
}

fn variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    // Absolute, since the programs run in another folder.
    std::path::absolute(value).ok()
}
