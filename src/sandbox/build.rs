//! Builds the programs of a sandbox from pinned Go modules, once, into the user's cache folder.
//!
//! Layout, per module: `<module>-<hash of the pins>/bin/<program>`, and for Cluster API `manifests/`:
//! `crd/*.yaml`, `webhook/<manager>.yaml`, `template/{clusterclass,cluster}.yaml`. Everything is made elsewhere and
//! renamed, so that what is there is complete; a file lock keeps processes that start at once from building twice.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Error;
use super::process::{self, Spawner, tail};
use super::progress::Progress;
use super::tools::{CAPI_MODULE, CAPI_TEST_MODULE, CLUSTER_API, Module};

/// Folders with CRDs: the Go module and the path in it.
const CRDS: [(&str, &str); 5] = [
    (CAPI_MODULE, "core/config/crd/bases"),
    (CAPI_MODULE, "bootstrap/kubeadm/config/crd/bases"),
    (CAPI_MODULE, "controlplane/kubeadm/config/crd/bases"),
    (CAPI_MODULE, "cmd/clusterctl/config/crd/bases"),
    (CAPI_TEST_MODULE, "infrastructure/docker/config/crd/bases"),
];

/// Single files: the Go module, the path in it, and the path below `manifests`.
const FILES: [(&str, &str, &str); 6] = [
    (
        CAPI_MODULE,
        "core/config/webhook/manifests.yaml",
        "webhook/capi-core.yaml",
    ),
    (
        CAPI_MODULE,
        "bootstrap/kubeadm/config/webhook/manifests.yaml",
        "webhook/capi-bootstrap.yaml",
    ),
    (
        CAPI_MODULE,
        "controlplane/kubeadm/config/webhook/manifests.yaml",
        "webhook/capi-control-plane.yaml",
    ),
    (
        CAPI_TEST_MODULE,
        "infrastructure/docker/config/webhook/manifests.yaml",
        "webhook/capi-dev.yaml",
    ),
    (
        CAPI_TEST_MODULE,
        "infrastructure/docker/templates/clusterclass-in-memory.yaml",
        "template/clusterclass.yaml",
    ),
    (
        CAPI_TEST_MODULE,
        "infrastructure/docker/templates/cluster-template-in-memory.yaml",
        "template/cluster.yaml",
    ),
];

/// Builds into one cache folder.
#[derive(Debug)]
pub(super) struct Builder<'a> {
    spawner: &'a Spawner,
    cache: PathBuf,
}

impl<'a> Builder<'a> {
    pub(super) fn new(spawner: &'a Spawner, cache: PathBuf) -> Result<Self, Error> {
        fs::create_dir_all(&cache).map_err(Error::file("create", &cache))?;
        Ok(Self { spawner, cache })
    }

    /// The folder with the programs of a module, all of them there.
    pub(super) fn build(&self, module: &'static Module) -> Result<PathBuf, Error> {
        let bin = self.cache.join(module.folder_name()).join("bin");
        let complete = || module.programs.iter().all(|program| bin.join(program.name).is_file());
        if complete() {
            return Ok(bin);
        }
        let _lock = self.lock(module)?;
        if complete() {
            return Ok(bin);
        }
        fs::create_dir_all(&bin).map_err(Error::file("create", &bin))?;
        let work = self.work_folder(module)?;
        self.patch(module, work.path())?;
        let missing = module
            .programs
            .iter()
            .filter(|program| !bin.join(program.name).is_file());
        for program in missing {
            let name = program.name;
            let progress = Progress::start(format!("building {name} from its Go module (once)"));
            let output = work.path().join(name);
            let ldflags = module.ldflags();
            let flags = ["build", "-trimpath", "-ldflags", &ldflags, "-o"].map(OsString::from);
            let args = flags
                .into_iter()
                .chain([output.clone().into_os_string(), program.package.into()]);
            let args = args.collect();
            self.go(module, "build", name, work.path(), args, Some(progress))?;
            let target = bin.join(name);
            fs::rename(&output, &target).map_err(Error::file("put in place", &target))?;
        }
        Ok(bin)
    }

    /// The folder with Cluster API's manifests.
    pub(super) fn manifests(&self) -> Result<PathBuf, Error> {
        let module = &CLUSTER_API;
        let manifests = self.cache.join(module.folder_name()).join("manifests");
        if manifests.is_dir() {
            return Ok(manifests);
        }
        let _lock = self.lock(module)?;
        if manifests.is_dir() {
            return Ok(manifests);
        }
        let work = self.work_folder(module)?;
        let young = work.path().join("manifests");
        for folder in ["crd", "webhook", "template"] {
            let path = young.join(folder);
            fs::create_dir_all(&path).map_err(Error::file("create", &path))?;
        }
        for (source, folder) in CRDS {
            let folder = self.module_folder(module, source, work.path())?.join(folder);
            for entry in fs::read_dir(&folder).map_err(Error::file("read", &folder))?.flatten() {
                copy(&entry.path(), &young.join("crd").join(entry.file_name()))?;
            }
        }
        for (source, path, target) in FILES {
            copy(
                &self.module_folder(module, source, work.path())?.join(path),
                &young.join(target),
            )?;
        }
        fs::rename(&young, &manifests).map_err(Error::file("put in place", &manifests))?;
        Ok(manifests)
    }

    /// The right to build a module, which one process has at a time.
    fn lock(&self, module: &Module) -> Result<File, Error> {
        let path = self.cache.join(format!("{}.lock", module.folder_name()));
        let lock = File::create(&path).map_err(Error::file("create", &path))?;
        let mut progress = None;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => return Err(Error::file("lock", &path)(source)),
            }
            let what = || Progress::start(format!("waiting for another process that builds {}", module.name));
            progress.get_or_insert_with(what).tick();
            std::thread::sleep(Duration::from_millis(100));
        }
        if let Some(progress) = progress {
            progress.done();
        }
        Ok(lock)
    }

    /// A folder with the go.mod and go.sum of a module, on the same file system as the cache. Its name is always the
    /// same, since whoever holds the lock has it alone: what an interrupted build left there goes now.
    fn work_folder(&self, module: &Module) -> Result<tempfile::TempDir, Error> {
        let name = format!(".build-{}", module.folder_name());
        let path = self.cache.join(&name);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::file("remove", &path)(error)),
            _ => {}
        }
        let folder = tempfile::Builder::new()
            .prefix(&name)
            .rand_bytes(0)
            .tempdir_in(&self.cache);
        let folder = folder.map_err(Error::file("create", &path))?;
        for (name, content) in [("go.mod", module.go_mod), ("go.sum", module.go_sum)] {
            let path = folder.path().join(name);
            fs::write(&path, content).map_err(Error::file("write", &path))?;
        }
        Ok(folder)
    }

    /// Lets a module be built with copies of dependencies in which some lines are other ones.
    fn patch(&self, module: &'static Module, work: &Path) -> Result<(), Error> {
        let mut go_mod = module.go_mod.to_owned();
        for (index, patch) in module.patches.iter().enumerate() {
            let name = format!("./patched-{index}");
            let copy = work.join(&name);
            copy_folder(&self.module_folder(module, patch.module, work)?, &copy)?;
            let file = copy.join(patch.file);
            let text = fs::read_to_string(&file).map_err(Error::file("read", &file))?;
            if text.matches(patch.line).count() != 1 {
                return Err(Error::Source {
                    path: file,
                    problem: "the line to replace is not in it exactly once",
                });
            }
            fs::write(&file, text.replace(patch.line, patch.instead)).map_err(Error::file("write", &file))?;
            go_mod = replace_module(&go_mod, patch.module, &name);
        }
        let path = work.join("go.mod");
        fs::write(&path, go_mod).map_err(Error::file("write", &path))
    }

    /// Where the source of a dependency is; it is downloaded where need be.
    fn module_folder(&self, module: &'static Module, dependency: &str, work: &Path) -> Result<PathBuf, Error> {
        self.go(
            module,
            "mod download",
            dependency,
            work,
            vec!["mod".into(), "download".into(), dependency.into()],
            None,
        )?;
        let args = ["list", "-m", "-f", "{{.Dir}}", dependency].map(Into::into).to_vec();
        let output = self.go(module, "list", dependency, work, args, None)?;
        output
            .lines()
            .map(PathBuf::from)
            .rfind(|path| path.is_dir())
            .ok_or(Error::Go {
                what: "list",
                module: module.name,
                output,
            })
    }

    /// Runs Go and returns what it writes.
    fn go(
        &self,
        module: &'static Module,
        what: &'static str,
        subject: &str,
        work: &Path,
        args: Vec<OsString>,
        mut progress: Option<Progress>,
    ) -> Result<String, Error> {
        let go = find_in_path("go").ok_or_else(|| Error::NoGo {
            program: module.programs.first().map_or("a program", |program| program.name),
            needs: module.go_version(),
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        tracing::debug!(what, subject, "running go");
        let log = work.join("go.log");
        fs::write(&log, "").map_err(Error::file("write", &log))?;
        let program = process::Program {
            name: "go".to_owned(),
            path: go,
            args,
            folder: work.to_owned(),
            log: log.clone(),
            ..process::Program::default()
        };
        // GOFLAGS could say anything; GOWORK would take our go.mod for a part of somebody's workspace.
        let program = program
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-mod=readonly -buildvcs=false")
            .env("GOWORK", "off");
        let process = self.spawner.spawn(program)?;
        let status = loop {
            if let Some(status) = process.ended() {
                break status;
            }
            if let Some(progress) = &mut progress {
                progress.tick();
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let output = fs::read_to_string(&log).map_err(Error::file("read", &log))?;
        if !status.success() {
            return Err(Error::Go {
                what,
                module: module.name,
                output: tail(&output),
            });
        }
        if let Some(progress) = progress {
            progress.done();
        }
        Ok(output)
    }
}

/// A go.mod in which a dependency is a folder, instead of what it may be replaced by already.
fn replace_module(go_mod: &str, module: &str, folder: &str) -> String {
    let replaces = |line: &str| {
        let mut words = line.split_whitespace();
        words.next() == Some(module) && words.next() == Some("=>")
    };
    let mut text: String = go_mod.split_inclusive('\n').filter(|line| !replaces(line)).collect();
    text.push_str(&format!("\nreplace {module} => {folder}\n"));
    text
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), Error> {
    fs::create_dir_all(to).map_err(Error::file("create", to))?;
    for entry in fs::read_dir(from).map_err(Error::file("read", from))?.flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_folder(&path, &target)?;
        } else {
            copy(&path, &target)?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    // Not `fs::copy`: files of the module cache are read-only, and copies would be, too.
    let content = fs::read(from).map_err(Error::file("read", from))?;
    fs::write(to, content).map_err(Error::file("write", to))
}

fn find_in_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_is_replaced_once() {
        let go_mod = "module x\n\nreplace (\n\ta/b => a/b v1\n\ta/b/c => a/b/c v1\n)\n";
        let expected = "module x\n\nreplace (\n\ta/b/c => a/b/c v1\n)\n\nreplace a/b => ./copy\n";
        assert_eq!(replace_module(go_mod, "a/b", "./copy"), expected);
    }

    #[test]
    fn a_module_is_patched_once_per_dependency() {
        let mut modules: Vec<_> = CLUSTER_API.patches.iter().map(|patch| patch.module).collect();
        modules.dedup();
        assert_eq!(
            modules.len(),
            CLUSTER_API.patches.len(),
            "one copy would replace the other"
        );
    }
}
