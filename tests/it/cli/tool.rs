//! `pausegen` as a person runs it.

use std::{
    path::PathBuf,
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use pausegen::sandbox::Sandbox;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use crate::support::EXE;

/// The command with its cluster and rules.
pub(super) struct Tool {
    kubeconfig: PathBuf,
    rules: PathBuf,
    pub(super) folder: tempfile::TempDir,
}

/// A command that runs.
pub(super) struct Running(Child);

impl Tool {
    pub(super) fn new(sandbox: &Sandbox, rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        std::fs::write(&path, rules).unwrap();
        Self {
            kubeconfig: sandbox.kubeconfig().to_owned(),
            rules: path,
            folder,
        }
    }

    pub(super) fn rules(&self) -> &std::path::Path {
        &self.rules
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::from(self.std_command(args));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// For a terminal: what it reads and writes is not settled yet.
    pub(super) fn std_command(&self, args: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(EXE);
        command
            .args(args)
            .env("PAUSEGEN_KUBECONFIG", &self.kubeconfig)
            .env("PAUSEGEN_RULES", &self.rules)
            .env_remove("NO_COLOR");
        command
    }

    pub(super) async fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().await.unwrap()
    }

    pub(super) fn start(&self, args: &[&str]) -> Running {
        Running(self.command(args).spawn().unwrap())
    }

    /// Its exit code, and what it says on stdout.
    pub(super) async fn says(&self, args: &[&str]) -> (i32, String) {
        let output = self.run(args).await;
        (output.status.code().unwrap(), out(&output))
    }

    /// An audit as JSON, with its exit code.
    pub(super) async fn audit(&self, args: &[&str]) -> (i32, Value) {
        let args: Vec<&str> = ["audit", "-o", "json"].iter().chain(args).copied().collect();
        let output = self.run(&args).await;
        let value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {} {}", out(&output), err(&output)));
        (output.status.code().unwrap(), value)
    }

    /// Runs it and returns the exit code, the most memory that it had (KiB), and how long it took.
    pub(super) async fn measured(&self, args: &[&str]) -> (i32, u64, Duration) {
        measured(self.command(args)).await
    }
}

/// Runs a command and returns the exit code, the most memory that it had (KiB), and how long it took.
pub(super) async fn measured(mut command: Command) -> (i32, u64, Duration) {
    let begin = Instant::now();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id().unwrap());
    let mut most = 0;
    loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).map(str::trim);
        let peak = peak
            .and_then(|line| line.split(' ').next())
            .and_then(|n| n.parse().ok());
        most = most.max(peak.unwrap_or(0));
        match tokio::time::timeout(Duration::from_millis(10), child.wait()).await {
            Ok(status) => return (status.unwrap().code().unwrap(), most, begin.elapsed()),
            Err(_) => continue,
        }
    }
}

impl Running {
    /// The lines of its stdout.
    pub(super) fn lines(&mut self) -> Lines<BufReader<ChildStdout>> {
        BufReader::new(self.0.stdout.take().unwrap()).lines()
    }

    /// Whether it is still at it.
    pub(super) fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Its exit code, stdout and stderr, once it ends.
    pub(super) async fn ends(self) -> (i32, String, String) {
        let output = tokio::time::timeout(Duration::from_secs(90), self.0.wait_with_output()).await;
        let output = output.expect("it does not end").unwrap();
        (output.status.code().unwrap(), out(&output), err(&output))
    }
}

pub(super) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(super) fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
