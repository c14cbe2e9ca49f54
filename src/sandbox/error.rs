//! What can go wrong with a sandbox.

use std::io;
use std::path::PathBuf;

use super::exec::ExecError;

/// What can go wrong with a sandbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was to be done with it.
        what: &'static str,
        /// Which one.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// No folder to keep the built programs in.
    #[error("no cache folder for the programs of the sandbox: set XDG_CACHE_HOME or HOME")]
    NoCacheFolder,
    /// `KUBEBUILDER_ASSETS` names a folder that has not got everything.
    #[error("KUBEBUILDER_ASSETS is {}, but there is no `{program}` in it: fill it with setup-envtest, or unset it", folder.display())]
    Assets {
        /// The folder.
        folder: PathBuf,
        /// What is missing.
        program: &'static str,
    },
    /// Go is needed, and is not there.
    #[error(
        "`{program}` has to be built once and there is no Go to do it: install Go ({needs}), or point KUBEBUILDER_ASSETS at a folder with etcd, kube-apiserver and kubectl"
    )]
    NoGo {
        /// What was to be built.
        program: &'static str,
        /// The version that the module asks for.
        needs: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Go failed.
    #[error("`go {what}` failed for {module}:\n{output}")]
    Go {
        /// The Go command.
        what: &'static str,
        /// The module of the tools.
        module: &'static str,
        /// The last lines that it wrote.
        output: String,
    },
    /// A file of a Go module is not as expected.
    #[error("{} is not as expected: {problem}", path.display())]
    Source {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: &'static str,
    },
    /// No free port.
    #[error("no free port between {from} and {to}")]
    NoPort {
        /// The first port that was tried.
        from: u16,
        /// The last one.
        to: u16,
    },
    /// A certificate cannot be made.
    #[error("cannot make the certificate of {name}")]
    Certificate {
        /// Whose.
        name: String,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// More groups than a certificate of ours can hold.
    #[error(
        "{user} is to be in more than two groups, which a certificate of the sandbox cannot say: bind roles to the user instead"
    )]
    TooManyGroups {
        /// Who.
        user: String,
    },
    /// A process cannot be started.
    #[error("cannot start {name}")]
    Spawn {
        /// Which one.
        name: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The thread that starts processes is gone.
    #[error("cannot start {name}: the thread that starts processes has ended")]
    SpawnerGone {
        /// What was to be started.
        name: String,
    },
    /// No mount namespace.
    #[error(
        "cannot make a mount namespace for Cluster API's managers: neither `unshare --map-root-user --mount` nor `unshare --mount` works. Allow unprivileged user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns) or run as root, and install util-linux"
    )]
    NoMountNamespace,
    /// The folder is where the managers cannot see it.
    #[error("{} is below /run, which Cluster API's managers see otherwise: set TMPDIR to another folder", folder.display())]
    HiddenFolder {
        /// The folder of the sandbox.
        folder: PathBuf,
    },
    /// A process ended that should be there.
    #[error("{name} ended ({status}); the end of its log:\n{log}")]
    Ended {
        /// Which one.
        name: String,
        /// How.
        status: String,
        /// The last lines of its log.
        log: String,
    },
    /// A process is not ready in time.
    #[error("{name} was not ready after {seconds} s; the end of its log:\n{log}")]
    NotReady {
        /// Which one.
        name: String,
        /// How long was waited.
        seconds: u64,
        /// The last lines of its log.
        log: String,
    },
    /// Something was not so in time.
    #[error("{what} did not come about in {seconds} s: {state}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: u64,
        /// How it stood at last.
        state: String,
    },
    /// A signal cannot be sent.
    #[error("cannot {what} {name}")]
    Signal {
        /// What was to be done.
        what: &'static str,
        /// To whom.
        name: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The kubeconfig is not usable.
    #[error("cannot use the kubeconfig of the sandbox")]
    Kubeconfig(#[source] kube::config::KubeconfigError),
    /// The API server refuses.
    #[error("cannot {what}")]
    Api {
        /// What was to be done.
        what: String,
        /// What the client says.
        #[source]
        source: Box<kube::Error>,
    },
    /// A manifest of Cluster API cannot be read.
    #[error("cannot read the manifest {}", path.display())]
    Manifest {
        /// Which one.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// kubectl failed.
    #[error("`kubectl {command}` failed: {says}")]
    Kubectl {
        /// Its arguments.
        command: String,
        /// What it says.
        says: String,
    },
    /// pausegen itself cannot be installed.
    #[error("cannot install pausegen on the sandbox: cannot {what}")]
    Product {
        /// What was to be done.
        what: &'static str,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A sandbox without Cluster API.
    #[error("Cluster API is not in this sandbox: start it with Options::with_capi")]
    NoCapi,
    /// A task was cancelled.
    #[error("{what} was given up")]
    Cancelled {
        /// What.
        what: &'static str,
    },
    /// A program cannot be run.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

impl Error {
    pub(super) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    /// Whether a process ended because somebody else was faster to use its port.
    pub(super) fn is_port_taken(&self) -> bool {
        matches!(self, Self::Ended { log, .. } if log.contains("address already in use"))
    }

    pub(crate) fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Api {
            what,
            source: Box::new(source),
        }
    }
}
