//! The Helm chart, rendered by a real Helm. What it renders is installed in [`crate::deployed`].

mod image;
mod render;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

use crate::support;

/// What every installation has to say.
pub(crate) const IMAGE: [&str; 2] = ["--set", "image.repository=registry.example.com/pausegen"];
pub(crate) const NAMESPACE: &str = "pausegen-system";

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/pausegen")
}

/// A `helm` command, without anything of the user's.
pub(crate) fn helm() -> Command {
    static HELM: OnceLock<PathBuf> = OnceLock::new();
    let helm = HELM.get_or_init(|| {
        support::options();
        pausegen::sandbox::helm(Path::new(support::EXE)).unwrap()
    });
    let nowhere = Path::new("/nonexistent");
    let mut command = Command::new(helm);
    for variable in ["HELM_CONFIG_HOME", "HELM_DATA_HOME", "HELM_CACHE_HOME", "KUBECONFIG"] {
        command.env(variable, nowhere);
    }
    command
}

pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    if status.success() {
        Ok(stdout)
    } else {
        Err(format!("{stdout}{stderr}"))
    }
}

pub(crate) fn pausegen(args: &[&str]) -> Result<String, String> {
    run(Command::new(support::EXE).args(args).env_remove("PAUSEGEN_RULES"))
}

/// What the chart renders as the release `pausegen`.
pub(crate) fn template(args: &[&str]) -> Result<Vec<Value>, String> {
    let mut command = helm();
    command.args(["template", "pausegen"]).arg(folder());
    command.args(["--namespace", NAMESPACE]).args(IMAGE).args(args);
    run(&mut command).map(|text| serde_saphyr::from_multiple(&text).unwrap())
}

/// The one object of a kind.
pub(crate) fn one<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found: Vec<&Value> = objects.iter().filter(|object| object["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "one {kind} in {objects:#?}");
    found[0]
}

/// A file with this text.
pub(crate) fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// The values that `pausegen manifests` prints for rules.
pub(crate) fn values(rules: &str, args: &[&str]) -> tempfile::NamedTempFile {
    let rules = file(rules);
    let args = [
        &[
            "manifests",
            "-o",
            "helm-values",
            "--rules",
            rules.path().to_str().unwrap(),
        ],
        args,
    ]
    .concat();
    file(&pausegen(&args).unwrap())
}
