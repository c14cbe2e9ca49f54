//! The folder of a sandbox: made under the system's temporary folder and removed with the sandbox. Where the owner is
//! killed, a process that waits for that removes it; where that was killed, too, the next sandbox does.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::Error;

const PREFIX: &str = "pausegen-sandbox-";
const LOCK: &str = "lock";

/// A folder that lives as long as this value. The owner holds a lock in it, which the kernel releases whatever
/// happens to the owner.
#[derive(Debug)]
pub(super) struct DataDir {
    path: PathBuf,
    // Held, never read.
    lock: File,
    sweeper: Child,
}

impl DataDir {
    /// Makes one, and removes those of owners that are gone. `exe` is the `pausegen` binary.
    pub(super) fn create(exe: &Path) -> Result<Self, Error> {
        let parent = std::env::temp_dir();
        let parent = std::path::absolute(&parent).map_err(Error::file("find", &parent))?;
        sweep(&parent);
        // Made under another name first: a folder of ours without a held lock would be swept by another process.
        let young = tempfile::Builder::new()
            .prefix("pausegen-new-")
            .tempdir_in(&parent)
            .map_err(Error::file("make a folder in", &parent))?;
        let lock_path = young.path().join(LOCK);
        let lock = File::create(&lock_path).map_err(Error::file("create", &lock_path))?;
        lock.lock().map_err(Error::file("lock", &lock_path))?;
        let suffix = young
            .path()
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let path = parent.join(format!("{PREFIX}{}", suffix.trim_start_matches("pausegen-new-")));
        fs::rename(young.path(), &path).map_err(Error::file("name the folder", &path))?;
        // Its name is another one now.
        let _ = young.keep();
        let mut command = Command::new(exe);
        command.arg(crate::commands::sweep::NAME).arg(&path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Whoever ends our group, for instance with Ctrl-C, is not to end this one.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let sweeper = command.spawn().map_err(|source| {
            drop(remove(&path));
            Error::Spawn {
                name: "the process that removes the folder of the sandbox".to_owned(),
                source,
            }
        })?;
        Ok(Self { path, lock, sweeper })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf, Error> {
        let path = self.file(name);
        fs::write(&path, content).map_err(Error::file("write", &path))?;
        Ok(path)
    }

    pub(super) fn subfolder(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.file(name);
        fs::create_dir_all(&path).map_err(Error::file("create", &path))?;
        Ok(path)
    }

    /// Copies the logs to another folder.
    pub(super) fn copy_logs(&self, target: &Path) -> Result<(), Error> {
        fs::create_dir_all(target).map_err(Error::file("create", target))?;
        for entry in fs::read_dir(&self.path)
            .map_err(Error::file("read", &self.path))?
            .flatten()
        {
            if entry.path().extension().is_some_and(|extension| extension == "log") {
                fs::copy(entry.path(), target.join(entry.file_name())).map_err(Error::file("copy", entry.path()))?;
            }
        }
        Ok(())
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "cannot remove the folder of the sandbox");
        }
        // What the sweeper waits for. It finds nothing to remove.
        drop(self.lock.unlock());
        drop(self.sweeper.wait());
    }
}

/// Waits until the owner of a folder is gone, and removes it.
///
/// # Errors
///
/// The folder is none of a sandbox, or cannot be removed.
pub(super) fn wait_and_remove(path: &Path) -> io::Result<()> {
    if !path
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
    {
        return Err(io::Error::other("this is not the folder of a sandbox"));
    }
    match File::open(path.join(LOCK)) {
        Ok(lock) => lock.lock()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    remove(path)
}

/// Removes a folder, also while processes that were just killed finish their last writes to it.
fn remove(path: &Path) -> io::Result<()> {
    let mut result = fs::remove_dir_all(path);
    for _ in 0..50 {
        match &result {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                std::thread::sleep(std::time::Duration::from_millis(20));
                result = fs::remove_dir_all(path);
            }
            _ => break,
        }
    }
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes the folders whose owner is gone. Others' folders, and what cannot be removed, stay: this is tidiness.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Ok(lock) = File::open(entry.path().join(LOCK))
            && lock.try_lock().is_ok()
        {
            tracing::debug!(folder = %entry.path().display(), "removing the folder of a sandbox whose owner is gone");
            drop(remove(&entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_removes_what_nobody_holds_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            File::create(path.join(LOCK)).unwrap()
        };
        let held = make("pausegen-sandbox-held");
        held.lock().unwrap();
        drop(make("pausegen-sandbox-stale"));
        drop(make("another"));
        sweep(parent.path());
        let mut left: Vec<_> = fs::read_dir(parent.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["another", "pausegen-sandbox-held"]);
    }

    #[test]
    fn a_folder_goes_with_its_value() {
        let folder = DataDir::create(Path::new("true")).unwrap();
        let path = folder.path().to_owned();
        folder.write("file", "x").unwrap();
        assert!(path.join(LOCK).exists());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn a_sweeper_removes_folders_of_sandboxes_only() {
        let parent = tempfile::tempdir().unwrap();
        let [ours, another] = ["pausegen-sandbox-x", "another"].map(|name| parent.path().join(name));
        for path in [&ours, &another] {
            fs::create_dir(path).unwrap();
            File::create(path.join(LOCK)).unwrap();
        }
        wait_and_remove(&ours).unwrap();
        assert!(wait_and_remove(&another).is_err());
        assert!(!ours.exists() && another.exists());
    }
}
