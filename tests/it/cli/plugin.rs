//! `kubectl pausegen`, with its completion, by the real kubectl.

use std::os::unix::fs::symlink;

use pausegen::sandbox::Sandbox;
use tokio::process::Command;

use super::tool::{Tool, err, out};
use crate::support::EXE;

pub(super) async fn by_kubectl(tool: &Tool, sandbox: &Sandbox) {
    let bin = tool.folder.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for name in ["kubectl-pausegen", "kubectl_complete-pausegen"] {
        symlink(EXE, bin.join(name)).unwrap();
    }
    let kubectl = |args: &[&str]| {
        let mut command = Command::new(&sandbox.binaries().kubectl);
        command
            .args(args)
            .env("PATH", &bin)
            .env("HOME", tool.folder.path())
            .env("KUBECONFIG", sandbox.kubeconfig())
            .env("PAUSEGEN_RULES", tool.rules());
        command
    };
    let output = kubectl(&["pausegen", "audit", "-A", "--kind", "fleet", "-o", "name"])
        .output()
        .await
        .unwrap();
    assert_eq!(out(&output), "fleet.sea.example.org/armada\n", "{}", err(&output));
    let output = kubectl(&["pausegen", "--help"]).output().await.unwrap();
    assert!(out(&output).contains("Usage: kubectl pausegen"), "{}", out(&output));
    let output = kubectl(&["__complete", "pausegen", "aud"]).output().await.unwrap();
    assert!(out(&output).starts_with("audit\t"), "{} {}", out(&output), err(&output));

    let folder = tool.folder.path().join("man");
    let (code, _) = tool.says(&["man", folder.to_str().unwrap()]).await;
    assert_eq!(code, 0);
    let page = std::fs::read_to_string(folder.join("pausegen-audit.1")).unwrap();
    assert!(page.contains("unacknowledged"), "{page}");
    for shell in ["bash", "zsh", "fish"] {
        let (code, script) = tool.says(&["completion", shell]).await;
        assert_eq!(code, 0, "{shell}");
        assert!(script.contains("unacknowledged"), "{shell}");
    }
}
