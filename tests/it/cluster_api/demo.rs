//! The demo finds out a companion that lies.

use std::process::Stdio;

use crate::support;

#[tokio::test]
async fn the_demo_fails_with_a_companion_that_acknowledges_at_once() {
    let mut command = tokio::process::Command::new(support::EXE);
    command
        .args(["demo", "--machines", "4"])
        .env("PAUSEGEN_TEST_ACKNOWLEDGE_AT_ONCE", "1");
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        output.status.code(),
        Some(1),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Which of them depends on how quick the others are, but for the manager that is frozen.
    assert!(said.lines().any(|line| line.starts_with("  FAILED  ")), "{said}");
}
