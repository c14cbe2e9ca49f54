//! The start of every process of a sandbox: `pausegen __exec` prepares its own process and becomes the program.
//!
//! The kernel kills the program when the thread that started it dies (`Spawner` keeps that
//! thread), so that nothing is left over, whatever happens to the owner. This is done here, after the fork and in
//! safe code, rather than in the owner between fork and exec. It also comes after `unshare`, which would undo it.

use std::ffi::OsString;
use std::io;

/// What to run, and as whose child.
#[derive(Debug)]
pub struct Exec {
    /// The process that has to be the parent: it may have died before its death could be noticed.
    pub parent_pid: i32,
    /// Pretend to run in a Pod of this namespace. Needs a mount namespace of one's own.
    pub service_account_namespace: Option<String>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// Why a program was not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// No program was named.
    #[error("no program to run: name it after `--`")]
    NoProgram,
    /// The parent is gone.
    #[error("process {expected} is not the parent any more, so `{program}` is not started")]
    Orphan {
        /// Who should be the parent.
        expected: i32,
        /// What was to run.
        program: String,
    },
    /// The kernel does not kill this process with its parent.
    #[error("cannot ask the kernel to end this process with its parent")]
    DeathSignal(#[source] io::Error),
    /// The service account folder cannot be made.
    #[error("cannot make {path} in a mount namespace (is this run under `unshare --mount`?)")]
    ServiceAccount {
        /// What was to be made.
        path: &'static str,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The program cannot be run.
    #[error("cannot run `{program}`")]
    Exec {
        /// The program.
        program: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Not on Linux.
    #[error("the sandbox runs on Linux only")]
    Unsupported,
}

/// Becomes the program. Returns only if that fails.
#[cfg(target_os = "linux")]
#[must_use]
pub fn exec(exec: Exec) -> ExecError {
    use std::os::unix::process::CommandExt as _;

    let Exec {
        parent_pid,
        service_account_namespace,
        command,
    } = exec;
    let mut command = command.into_iter();
    let Some(program) = command.next() else {
        return ExecError::NoProgram;
    };
    let name = program.to_string_lossy().into_owned();
    if let Some(namespace) = service_account_namespace
        && let Err(error) = linux::mount_service_account(&namespace)
    {
        return error;
    }
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)) {
        return ExecError::DeathSignal(error.into());
    }
    // Only now: a parent that dies from here on takes this process along.
    if rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(parent_pid) {
        return ExecError::Orphan {
            expected: parent_pid,
            program: name,
        };
    }
    let source = std::process::Command::new(program).args(command).exec();
    ExecError::Exec { program: name, source }
}

/// Becomes the program. Returns only if that fails.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn exec(_: Exec) -> ExecError {
    ExecError::Unsupported
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;

    use rustix::mount::{MountFlags, mount};

    use super::ExecError;

    const RUN: &str = "/var/run";
    const FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
    const FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

    /// controller-runtime reads the namespace of its leader election from a Pod's service account folder, and from
    /// nowhere else.
    pub(super) fn mount_service_account(namespace: &str) -> Result<(), ExecError> {
        let failed = |path| move |source| ExecError::ServiceAccount { path, source };
        mount("tmpfs", RUN, "tmpfs", MountFlags::empty(), c"mode=0755").map_err(|error| failed(RUN)(error.into()))?;
        fs::create_dir_all(FOLDER).map_err(failed(FOLDER))?;
        fs::write(FILE, namespace).map_err(failed(FILE))
    }
}
