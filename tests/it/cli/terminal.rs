//! What a terminal gets that a pipe does not, what a pipe may bring, and an API server that never answers.

use std::process::Stdio;

use pausegen::sandbox::Sandbox;
use tokio::io::AsyncWriteExt as _;

use super::tool::{Tool, err, out};
use crate::companion::{Sea, condition, says};
use crate::support::{eventually, on_a_terminal};

/// What is between two escape sequences.
fn plain(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.split_once(['m', 'K']).map_or("", |(_, rest)| rest)
    })
}

/// The Fleet is paused, pending, and waits for pinta.
pub(super) async fn colours_width_and_progress(tool: &Tool, sea: &Sea) {
    sea.pause(true).await;
    says(&sea.fleets, "armada", true).await;
    says(&sea.ships, "nina", true).await;
    let (code, coloured) = on_a_terminal(tool.std_command(&["audit", "-A"]), "", 100);
    assert_eq!(code, Some(1), "{coloured}");
    assert!(coloured.contains("\u{1b}[33m"), "{coloured:?}");
    let table: Vec<String> = plain(&coloured).lines().map(str::to_owned).collect();
    let table: Vec<&String> = table.iter().take_while(|line| !line.trim().is_empty()).collect();
    assert!(table.len() >= 4, "{coloured}");
    assert!(
        table.iter().all(|line| line.trim_end().chars().count() <= 100),
        "{table:#?}"
    );
    let mut command = tool.std_command(&["audit", "-A"]);
    command.env("NO_COLOR", "1");
    let (_, colourless) = on_a_terminal(command, "", 100);
    assert!(!colourless.contains('\u{1b}'), "{colourless:?}");
    assert_eq!(colourless.lines().next(), plain(&coloured).lines().next());
    let (_, piped) = tool.says(&["audit", "-A"]).await;
    assert!(
        !piped.contains('\u{1b}') && piped.lines().any(|line| line.chars().count() > 100),
        "{piped}"
    );

    // Who is missing is said while it waits.
    let wait = tool.std_command(&["wait", "fleet/armada", "--for=paused"]);
    let wait = tokio::task::spawn_blocking(move || on_a_terminal(wait, "", 200));
    eventually("the condition says who is missing", async || {
        let fleet = sea.fleet().await;
        let message = condition(&fleet)?["message"].as_str()?;
        message.contains("default/pinta").then_some(())
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert!(!wait.is_finished(), "nothing is acknowledged");
    says(&sea.ships, "pinta", true).await;
    let (code, shown) = wait.await.unwrap();
    assert_eq!(code, Some(0), "{shown}");
    let missing = "waits for Ship.sea.example.org default/pinta (ship has not answered)";
    assert!(shown.contains(missing), "{shown:?}");
    assert!(!shown.contains("default/nina"), "{shown:?}");

    sea.pause(false).await;
    sea.answer("armada", "nina", "pinta", false).await;
    sea.acknowledged("running").await;
}

/// An audit of what `kubectl get -o yaml` writes, on standard input.
pub(super) async fn from_a_pipe(tool: &Tool, sandbox: &Sandbox) {
    let yaml = sandbox
        .kubectl(["get", "fleets,ships", "-A", "-o", "yaml"])
        .await
        .unwrap();
    let mut child = tokio::process::Command::from(tool.std_command(&["audit", "-f", "-", "-o", "name"]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&yaml.stdout).await.unwrap();
    drop(stdin);
    let output = child.wait_with_output().await.unwrap();
    let (code, online) = tool.says(&["audit", "-A", "-o", "name"]).await;
    assert_eq!(
        (output.status.code(), out(&output)),
        (Some(code), online),
        "{}",
        err(&output)
    );
    assert!(err(&output).contains("this is what the files say"), "{}", err(&output));
}

/// An API server that takes calls and never answers.
pub(super) async fn no_answer(tool: &Tool) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let kubeconfig = tool.folder.path().join("silent.kubeconfig");
    let port = listener.local_addr().unwrap().port();
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "silent",
        "clusters": [{"name": "silent", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "silent", "context": {"cluster": "silent", "user": "nobody"}},
                     {"name": "other", "context": {"cluster": "gone", "user": "nobody"}}],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let silent = ["audit", "-A", "--request-timeout", "1s", "--kubeconfig", kubeconfig];
    // Without the limit it would be minutes.
    let (code, _, errors) = tool.start(&silent).ends().await;
    assert_eq!(code, 2, "{errors}");
    assert!(
        errors.contains("cannot read the API groups from the cluster"),
        "{errors}"
    );
    let output = tool
        .run(&["audit", "-A", "--kubeconfig", kubeconfig, "--context", "other"])
        .await;
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("cannot be used"), "{}", err(&output));
}
