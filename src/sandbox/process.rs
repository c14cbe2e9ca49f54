//! Child processes that cannot outlive their owner.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::Error;

/// How many lines of a log an error shows.
const TAIL: usize = 20;

/// What to run.
#[derive(Debug, Default)]
pub(super) struct Program {
    /// What it is called in messages; also the name of its log file.
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) args: Vec<OsString>,
    pub(super) env: Vec<(&'static str, OsString)>,
    pub(super) folder: PathBuf,
    pub(super) log: PathBuf,
    /// Let it believe that it runs in a Pod of this namespace.
    pub(super) service_account_namespace: Option<String>,
}

impl Program {
    pub(super) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub(super) fn env(mut self, name: &'static str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name, value.as_ref().to_owned()));
        self
    }
}

struct Request {
    command: Command,
    answer: mpsc::SyncSender<io::Result<Child>>,
}

/// Starts processes from one thread that lives as long as this value: the kernel kills a child when the *thread* that
/// started it ends, and threads of a runtime may end at any time.
#[derive(Debug)]
pub(super) struct Spawner {
    exe: PathBuf,
    requests: mpsc::Sender<Request>,
    unshare: OnceLock<&'static [&'static str]>,
}

impl Spawner {
    /// `exe` is the `pausegen` binary, which has the hidden subcommand that starts a child.
    pub(super) fn new(exe: &Path) -> Result<Self, Error> {
        if cfg!(not(target_os = "linux")) {
            return Err(super::exec::ExecError::Unsupported.into());
        }
        let exe = std::path::absolute(exe).map_err(Error::file("find", exe))?;
        let (requests, received) = mpsc::channel::<Request>();
        std::thread::Builder::new()
            .name("sandbox-spawner".to_owned())
            .spawn(move || {
                for Request { mut command, answer } in received {
                    // Whoever asked may have given up; then the child is dropped, and dies with this thread.
                    drop(answer.send(command.spawn()));
                }
            })
            .map_err(|source| Error::Spawn {
                name: "a thread".to_owned(),
                source,
            })?;
        Ok(Self {
            exe,
            requests,
            unshare: OnceLock::new(),
        })
    }

    pub(super) fn exe(&self) -> &Path {
        &self.exe
    }

    pub(super) fn spawn(&self, program: Program) -> Result<Process, Error> {
        let Program {
            name,
            path,
            args,
            env,
            folder,
            log,
            service_account_namespace,
        } = program;
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(Error::file("open", &log))?;
        let errors = output.try_clone().map_err(Error::file("open", &log))?;
        let mut command = if service_account_namespace.is_some() {
            let mut unshare = Command::new("unshare");
            unshare.args(self.unshare()?).arg(&self.exe);
            unshare
        } else {
            Command::new(&self.exe)
        };
        command
            .args([crate::commands::exec::NAME, "--parent-pid"])
            .arg(std::process::id().to_string());
        if let Some(namespace) = service_account_namespace {
            command.arg("--service-account-namespace").arg(namespace);
        }
        command.arg("--").arg(path).args(args).envs(env).current_dir(folder);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        // A group of its own: Ctrl-C is for the owner, which stops its children in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = self.run(&name, command)?;
        Process::new(name, log, child)
    }

    fn run(&self, name: &str, command: Command) -> Result<Child, Error> {
        let (answer, answered) = mpsc::sync_channel(1);
        let gone = || Error::SpawnerGone { name: name.to_owned() };
        self.requests.send(Request { command, answer }).map_err(|_| gone())?;
        let child = answered.recv().map_err(|_| gone())?;
        child.map_err(|source| Error::Spawn {
            name: name.to_owned(),
            source,
        })
    }

    /// The flags with which `unshare` gives a process a mount namespace here: without root a user namespace comes
    /// with it; where those are forbidden, root does not need one.
    fn unshare(&self) -> Result<&'static [&'static str], Error> {
        if let Some(flags) = self.unshare.get() {
            return Ok(flags);
        }
        const CHOICES: [&[&str]; 2] = [&["--map-root-user", "--mount"], &["--mount"]];
        for flags in CHOICES {
            let mut command = Command::new("unshare");
            command
                .args(flags)
                .arg("true")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if command.status().is_ok_and(|status| status.success()) {
                return Ok(self.unshare.get_or_init(|| flags));
            }
        }
        Err(Error::NoMountNamespace)
    }
}

/// A running process. It is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    pid: Pid,
    child: Mutex<Child>,
}

impl Process {
    fn new(name: String, log: PathBuf, mut child: Child) -> Result<Self, Error> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let Some(pid) = pid else {
            drop(child.kill());
            let source = io::Error::other("the system gave it no usable process id");
            return Err(Error::Spawn { name, source });
        };
        Ok(Self {
            name,
            log,
            pid,
            child: Mutex::new(child),
        })
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Where its output goes.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it ended, if it did.
    #[must_use]
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .try_wait()
            .ok()
            .flatten()
    }

    /// Stops it in its tracks (SIGSTOP): it keeps its memory, its connections and its Lease, and does nothing.
    /// Returns when all its threads stand.
    ///
    /// # Errors
    ///
    /// It has ended, or does not stop within seconds.
    pub fn freeze(&self) -> Result<(), Error> {
        self.signal("freeze", Signal::STOP)?;
        let start = Instant::now();
        while !self.stands() {
            if start.elapsed() > Duration::from_secs(5) {
                let source = io::Error::from(io::ErrorKind::TimedOut);
                return Err(Error::Signal {
                    what: "freeze",
                    name: self.name.clone(),
                    source,
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn thaw(&self) -> Result<(), Error> {
        self.signal("thaw", Signal::CONT)
    }

    /// Kills it (SIGKILL, which also ends a frozen process) and waits for its end.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // An error means that it is dead.
        drop(child.kill());
        drop(child.wait());
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        tail(&String::from_utf8_lossy(&text))
    }

    /// An error if it has ended.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.ended() {
            None => Ok(()),
            Some(status) => Err(Error::Ended {
                name: self.name.clone(),
                status: status.to_string(),
                log: self.log_tail(),
            }),
        }
    }

    fn signal(&self, what: &'static str, signal: Signal) -> Result<(), Error> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |source| Error::Signal {
            what,
            name: self.name.clone(),
            source,
        };
        // While the lock is held nobody can reap it, so that its id stays its own.
        match child.try_wait() {
            Ok(None) => rustix::process::kill_process(self.pid, signal).map_err(|error| failed(error.into())),
            Ok(Some(status)) => Err(failed(io::Error::other(format!("it has ended ({status})")))),
            Err(error) => Err(failed(error)),
        }
    }

    /// Whether each of its threads is stopped.
    #[must_use]
    pub fn stands(&self) -> bool {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.id())) else {
            return false;
        };
        tasks.flatten().all(|task| {
            // The state follows the name, which is in parentheses and may hold anything.
            fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| {
                stat.rsplit_once(')')
                    .is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
            })
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last lines of a text.
pub(super) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(TAIL);
    lines.get(from..).unwrap_or_default().join("\n")
}
