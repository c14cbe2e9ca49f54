//! What is refused before anybody is asked: there is no cluster here at all.

use std::process::{Command, Output};

use super::tool::{err, out};
use crate::support::EXE;

fn pausegen(args: &[&str]) -> Output {
    Command::new(EXE)
        .args(args)
        .env("PAUSEGEN_KUBECONFIG", "/nonexistent/kubeconfig")
        .env_remove("PAUSEGEN_RULES")
        .output()
        .unwrap()
}

#[test]
fn names_that_no_object_can_have() {
    let commands: [&[&str]; 5] = [
        &["wait", "--for=paused"],
        &["describe"],
        &["pause", "--reason=x"],
        &["resume"],
        &["unacknowledge", "--dry-run"],
    ];
    for name in ["", "..", "a/b", "../../machines/m", "a?dryRun=All", "a%2fb", "A"] {
        for command in commands {
            let object = format!("cluster/{name}");
            let output = pausegen(&[command, &[&object]].concat());
            let said = err(&output);
            assert_eq!(output.status.code(), Some(1), "{command:?} {name}: {said}");
            assert!(
                said.contains("is no name of an object: that is a DNS subdomain"),
                "{command:?} {name}: {said}"
            );
        }
        let output = pausegen(&["audit", "--cluster", name]);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", err(&output));
        assert!(
            err(&output).contains("is no name of an object"),
            "{name}: {}",
            err(&output)
        );
    }
    let output = pausegen(&["describe", "cluster", "good", "b?d"]);
    assert!(
        err(&output).contains("`b?d` is no name of an object"),
        "{}",
        err(&output)
    );
    let output = pausegen(&["describe", "cluster/good", "-n", "a/b"]);
    assert!(
        err(&output).contains("`a/b` is no name of a namespace"),
        "{}",
        err(&output)
    );
    // With a good one it goes on to what is missing here.
    for command in commands {
        let said = err(&pausegen(&[command, &["cluster/good-1.x"]].concat()));
        assert!(said.contains("/nonexistent/kubeconfig"), "{command:?}: {said}");
    }
}

#[test]
fn files_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backup.gz");
    std::fs::write(&path, b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03").unwrap();
    let path = path.to_str().unwrap();
    let output = pausegen(&["audit", "-f", path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        err(&output).contains(&format!("{path} is not UTF-8 text")),
        "{}",
        err(&output)
    );
    for path in ["/nonexistent", "/nonexistent/history.jsonl"] {
        let output = pausegen(&["history", "verify", path]);
        assert_eq!(output.status.code(), Some(2));
        let said = err(&output);
        assert!(
            said.contains(&format!("{path} cannot be opened")) && said.contains("No such file or directory"),
            "{said}"
        );
    }
}

#[test]
fn the_usage_says_what_has_to_be_named() {
    let output = pausegen(&["unacknowledge", "--help"]);
    let usage = out(&output)
        .lines()
        .find(|line| line.starts_with("Usage:"))
        .unwrap()
        .to_owned();
    assert!(usage.contains("--all") && usage.contains("KIND/NAME"), "{usage}");
    for args in [&["unacknowledge"][..], &["unacknowledge", "cluster/c", "--all"]] {
        assert_eq!(pausegen(args).status.code(), Some(2), "{args:?}");
    }
}
