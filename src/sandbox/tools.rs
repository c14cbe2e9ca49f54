//! The programs of a sandbox and the pinned Go modules that they are built from.

use std::path::Path;

use sha2::{Digest as _, Sha256};

/// A Go module of ours that pins programs, with its go.mod and go.sum.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: &'static str,
    pub(super) go_mod: &'static str,
    pub(super) go_sum: &'static str,
    pub(super) programs: &'static [Program],
    /// What is built otherwise than it was published.
    pub(super) patches: &'static [Patch],
}

/// A program in such a module.
#[derive(Debug)]
pub(super) struct Program {
    /// The name of the binary.
    pub(super) name: &'static str,
    /// Its Go package.
    pub(super) package: &'static str,
}

pub(super) const ETCD: Module = Module {
    name: "etcd",
    go_mod: include_str!("tools/etcd/go.mod"),
    go_sum: include_str!("tools/etcd/go.sum"),
    programs: &[Program {
        name: "etcd",
        package: "go.etcd.io/etcd/server/v3",
    }],
    patches: &[],
};

pub(super) const KUBERNETES: Module = Module {
    name: "kubernetes",
    go_mod: include_str!("tools/kubernetes/go.mod"),
    go_sum: include_str!("tools/kubernetes/go.sum"),
    programs: &[
        Program {
            name: "kube-apiserver",
            package: "k8s.io/kubernetes/cmd/kube-apiserver",
        },
        Program {
            name: "kubectl",
            package: "k8s.io/kubernetes/cmd/kubectl",
        },
    ],
    patches: &[],
};

/// The oldest API server that is tested against.
pub(super) const OLDEST_KUBERNETES: Module = Module {
    name: "kubernetes-1.34",
    go_mod: include_str!("tools/kubernetes-1.34/go.mod"),
    go_sum: include_str!("tools/kubernetes-1.34/go.sum"),
    programs: &[Program {
        name: "kube-apiserver",
        package: "k8s.io/kubernetes/cmd/kube-apiserver",
    }],
    patches: &[],
};

/// For whoever tests the chart. Its Kubernetes modules have the version of [`KUBERNETES`], so that what both need is
/// compiled once.
pub(super) const HELM: Module = Module {
    name: "helm",
    go_mod: include_str!("tools/helm/go.mod"),
    go_sum: include_str!("tools/helm/go.sum"),
    programs: &[Program {
        name: "helm",
        package: "helm.sh/helm/v4/cmd/helm",
    }],
    patches: &[],
};

pub(super) const CLUSTER_API: Module = Module {
    name: "cluster-api",
    go_mod: include_str!("tools/cluster-api/go.mod"),
    go_sum: include_str!("tools/cluster-api/go.sum"),
    programs: &[
        Program {
            name: "capi-core",
            package: "sigs.k8s.io/cluster-api/core",
        },
        Program {
            name: "capi-bootstrap",
            package: "sigs.k8s.io/cluster-api/bootstrap/kubeadm",
        },
        Program {
            name: "capi-control-plane",
            package: "sigs.k8s.io/cluster-api/controlplane/kubeadm",
        },
        Program {
            name: "capi-dev",
            package: "sigs.k8s.io/cluster-api/test/infrastructure/docker",
        },
        Program {
            name: "clusterctl",
            package: "sigs.k8s.io/cluster-api/cmd/clusterctl",
        },
    ],
    patches: &[
        // The development provider serves a debug page on a fixed port, so that no second one could run on this
        // machine: neither a standby nor another sandbox's. Any free port will do.
        Patch {
            module: CAPI_TEST_MODULE,
            file: "infrastructure/inmemory/pkg/server/mux.go",
            line: "\tDefaultDebugPort = 19000\n",
            instead: "\tDefaultDebugPort = 0\n",
        },
        // The first connection to a new workload cluster always comes too early. Trying again after two seconds rather
        // than thirty saves half the time until machines run, and touches nothing else.
        Patch {
            module: CAPI_MODULE,
            file: "controllers/clustercache/cluster_cache.go",
            line: "\t\tConnectionCreationRetryInterval: 30 * time.Second,\n",
            instead: "\t\tConnectionCreationRetryInterval: 2 * time.Second,\n",
        },
    ],
};

/// The Go module of Cluster API, with the manifests of three of the managers.
pub(super) const CAPI_MODULE: &str = "sigs.k8s.io/cluster-api";
/// Its module for tests, with the development provider.
pub(super) const CAPI_TEST_MODULE: &str = "sigs.k8s.io/cluster-api/test";

/// Raise it when the way in which programs are built changes, so that what an older pausegen built is not used.
const RECIPE: &str = "1";

/// One line of a dependency that is built as another one.
#[derive(Debug)]
pub(super) struct Patch {
    /// The Go module that it is in.
    pub(super) module: &'static str,
    /// Its path there.
    pub(super) file: &'static str,
    pub(super) line: &'static str,
    pub(super) instead: &'static str,
}

impl Module {
    /// The folder of what is built from this module, below the cache folder: another one for each state of the pins.
    pub(super) fn folder_name(&self) -> String {
        let mut hash = Sha256::new();
        let patches = self.patches.iter().flat_map(|patch| [patch.file, patch.instead]);
        for part in [RECIPE, self.go_mod, self.go_sum].into_iter().chain(patches) {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let digest: String = hash
            .finalize()
            .iter()
            .take(6)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{}-{digest}", self.name)
    }

    /// The version of a module that this one requires, `v1.36.3`.
    pub(super) fn version_of(&self, module: &str) -> Option<&'static str> {
        self.go_mod.lines().find_map(|line| {
            let mut words = line.trim_start_matches("require ").split_whitespace();
            (words.next() == Some(module)).then(|| words.next()).flatten()
        })
    }

    /// The version of Go that is asked for.
    pub(super) fn go_version(&self) -> String {
        let version = self.version_of("go").unwrap_or("a recent version");
        format!("{version} or newer")
    }

    /// The flags for the linker. Kubernetes' programs carry their version, else they say v0.0.0.
    pub(super) fn ldflags(&self) -> String {
        let mut flags = "-s -w".to_owned();
        if let Some(version) = self.version_of("k8s.io/kubernetes")
            && let Some((major, minor)) = minor(version)
        {
            let package = "k8s.io/component-base/version";
            flags.push_str(&format!(
                " -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
            ));
        }
        flags
    }
}

/// Major and minor of a version like `v1.36.3` or `1.36.3`.
pub(super) fn minor(version: &str) -> Option<(u32, u32)> {
    let (major, minor, _) = parse(version)?;
    Some((major, minor))
}

/// The numbers of a version like `v1.36.3` or `1.36.3`.
pub(super) fn parse(version: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = version.trim_start_matches('v').split('.');
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?, next()?))
}

/// The newest folder that setup-envtest filled for the minor version of `wanted`: `<root>/1.36.3-linux-amd64`.
pub(super) fn newest_envtest(root: &Path, wanted: &str) -> Option<std::path::PathBuf> {
    let suffix = format!("-{}-{}", std::env::consts::OS, go_arch());
    let wanted = minor(wanted)?;
    std::fs::read_dir(root)
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let version = parse(name.strip_suffix(&suffix)?)?;
            ((version.0, version.1) == wanted).then(|| (version, entry.path()))
        })
        .max()
        .map(|(_, path)| path)
}

fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pins_name_the_versions() {
        assert_eq!(KUBERNETES.version_of("k8s.io/kubernetes"), Some("v1.36.3"));
        assert_eq!(OLDEST_KUBERNETES.version_of("k8s.io/kubernetes"), Some("v1.34.4"));
        assert_eq!(CLUSTER_API.version_of(CAPI_MODULE), Some("v1.14.2"));
        let flags = KUBERNETES.ldflags();
        assert!(
            flags.starts_with("-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 "),
            "{flags}"
        );
        assert!(flags.ends_with("gitMinor=36"), "{flags}");
        assert_eq!(ETCD.ldflags(), "-s -w");
        assert_eq!(HELM.version_of("k8s.io/client-go"), Some("v0.36.3"));
    }

    #[test]
    fn another_pin_is_another_folder() {
        let other = Module { go_sum: "", ..ETCD };
        assert_ne!(ETCD.folder_name(), other.folder_name());
        assert_eq!(ETCD.folder_name(), ETCD.folder_name());
    }

    #[test]
    fn the_newest_patch_release_of_the_minor_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let suffix = format!("{}-{}", std::env::consts::OS, go_arch());
        for version in ["1.35.9", "1.36.2", "1.36.10", "1.37.0", "nonsense"] {
            std::fs::create_dir(root.path().join(format!("{version}-{suffix}"))).unwrap();
        }
        std::fs::create_dir(root.path().join("1.36.99-plan9-mips")).unwrap();
        let found = newest_envtest(root.path(), "v1.36.3").unwrap();
        assert!(found.ends_with(format!("1.36.10-{suffix}")), "{found:?}");
        assert_eq!(newest_envtest(root.path(), "v1.30.0"), None);
    }
}
