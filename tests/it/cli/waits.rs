//! `pausegen wait` is never early, and says what has become of what it waited for.

use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pausegen::sandbox::Sandbox;
use serde_json::json;

use super::audits::row;
use super::tool::{Running, Tool, err, out};
use crate::companion::{Sea, annotation, says};
use crate::support::eventually;

const PAUSED: [&str; 3] = ["wait", "fleet/armada", "--for=paused"];

/// A wait that stands while nothing is acknowledged.
async fn stands(tool: &Tool, sea: &Sea, args: &[&str]) -> Running {
    let mut wait = tool.start(args);
    let version = sea.fleet().await.metadata.resource_version;
    // It has had the time to read, and more than once.
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    assert!(
        wait.is_running(),
        "{args:?} is over while nothing is acknowledged: {:?}",
        wait.ends().await
    );
    assert_eq!(
        annotation(&sea.fleet().await, "acknowledged"),
        "pending",
        "since {version:?}"
    );
    wait
}

async fn annotate(sea: &Sea, paused: bool) -> u64 {
    let value = if paused { json!("") } else { json!(null) };
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"sea.example.org/paused": value}}}));
    let fleet = sea
        .fleets
        .patch("armada", &PatchParams::default(), &patch)
        .await
        .unwrap();
    annotation(&fleet, "generation").parse().unwrap()
}

async fn generation(sea: &Sea) -> u64 {
    annotation(&sea.fleet().await, "generation").parse().unwrap()
}

async fn resume(sea: &Sea) {
    sea.pause(false).await;
    sea.answer("armada", "nina", "pinta", false).await;
    sea.acknowledged("running").await;
}

pub(super) async fn pause_and_resume(tool: &Tool, sea: &Sea) {
    let before = sea.fleet().await;
    let (code, text) = tool
        .says(&["pause", "fleet/armada", "--reason", "CHG-7", "--dry-run"])
        .await;
    assert_eq!(code, 0);
    let next = generation(sea).await + 1;
    assert!(
        text.contains(&format!(
            "paused by spec.paused: generation {next}, pending (server dry run)"
        )),
        "{text}"
    );
    // The condition may still be on its way.
    let written = |fleet: &kube::api::DynamicObject| (fleet.metadata.generation, fleet.metadata.annotations.clone());
    assert_eq!(written(&before), written(&sea.fleet().await));

    let wait = tool.start(&["pause", "--all", "--reason", "CHG-7", "--wait"]);
    eventually("it is paused", async || (generation(sea).await == next).then_some(())).await;
    sea.answer("armada", "nina", "pinta", true).await;
    let (code, text, errors) = wait.ends().await;
    assert_eq!(code, 0, "{text} {errors}");
    let fleet = sea.fleet().await;
    assert_eq!(annotation(&fleet, "acknowledged"), "paused");
    assert_eq!(annotation(&fleet, "reason"), "CHG-7");
    assert!(annotation(&fleet, "stamp").contains("CHG-7"));
    // A reason that was not recorded is told, one that stands is not.
    for (reason, note) in [("again", true), ("CHG-7", false)] {
        let output = tool.run(&["pause", "fleet/armada", "--reason", reason]).await;
        assert_eq!(
            (output.status.code(), out(&output).as_str()),
            (Some(0), "fleet.sea.example.org/armada is paused already\n")
        );
        let said = err(&output);
        assert_eq!(said.contains("the reason `again` was not recorded"), note, "{said}");
        assert_eq!(said.is_empty(), !note, "{said}");
    }
    assert_eq!(annotation(&sea.fleet().await, "reason"), "CHG-7");

    let (code, text) = tool
        .says(&["pause", "ship", "nina", "pinta", "--reason", "CHG-8"])
        .await;
    assert_eq!(code, 0);
    assert_eq!(
        text.matches("paused by sea.example.org/paused: generation 1, pending")
            .count(),
        2,
        "{text}"
    );
    let (code, _) = tool.says(&["resume", "ships", "--all"]).await;
    assert_eq!(code, 0);
    let (code, text) = tool.says(&["resume", "fleets", "-l", "none=such"]).await;
    assert_eq!((code, text.as_str()), (1, ""));
    let output = tool.run(&["resume", "fleet/armada", "fleet/gone"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(out(&output).contains("resumed by spec.paused"), "{}", out(&output));
    assert!(
        err(&output).contains("fleet.sea.example.org/gone: it is not there"),
        "{}",
        err(&output)
    );
    assert_eq!(
        annotation(&sea.fleet().await, "reason"),
        "",
        "a reason goes with its pause"
    );
    sea.answer("armada", "nina", "pinta", false).await;
    sea.acknowledged("running").await;
}

pub(super) async fn before_during_and_after_the_echo(tool: &Tool, sea: &Sea) {
    let output = tool.run(&PAUSED).await;
    assert_eq!(
        output.status.code(),
        Some(1),
        "it runs, and nothing is there to wait for"
    );
    assert!(err(&output).contains("it is running (generation"), "{}", err(&output));

    sea.pause(true).await;
    says(&sea.fleets, "armada", true).await;
    says(&sea.ships, "nina", true).await;
    let output = tool.run(&[PAUSED.as_slice(), &["--timeout", "0"]].concat()).await;
    assert_eq!(output.status.code(), Some(1));
    let said = err(&output);
    assert!(
        said.contains("timed out") && said.contains("default/pinta") && !said.contains("default/nina"),
        "{said}"
    );

    let before = stands(tool, sea, &PAUSED).await;
    says(&sea.ships, "pinta", true).await;
    let during = tool.start(&PAUSED);
    for wait in [before, during] {
        let (code, text, errors) = wait.ends().await;
        assert_eq!(code, 0, "{errors}");
        assert_eq!(annotation(&sea.fleet().await, "acknowledged"), "paused");
        assert!(
            text.contains(&format!("paused: generation {}, ", generation(sea).await)),
            "{text}"
        );
    }
    let (code, _) = tool.says(&PAUSED).await;
    assert_eq!(code, 0, "after the echo");
    for word in ["resumed", "running"] {
        let goal = format!("--for={word}");
        let output = tool.run(&["wait", "fleet/armada", &goal]).await;
        assert_eq!(output.status.code(), Some(1), "{word}");
        assert!(err(&output).contains("it is paused (generation"), "{}", err(&output));
    }
    let next = (generation(sea).await + 1).to_string();
    let output = tool
        .run(&[PAUSED.as_slice(), &["--generation", &next, "--timeout", "1s"]].concat())
        .await;
    assert_eq!(output.status.code(), Some(1), "a generation that has not been given");
    resume(sea).await;

    // A hasty flip rests on the bound: who wants answers is told at once that there are none.
    sea.pause(true).await;
    sea.pause(false).await;
    sea.pause(true).await;
    sea.answer("armada", "nina", "pinta", true).await;
    let (code, text) = tool.says(&PAUSED).await;
    assert_eq!(code, 0);
    assert!(text.contains("Settled (3s)"), "{text}");
    let output = tool
        .run(&[PAUSED.as_slice(), &["--evidence", "attested"]].concat())
        .await;
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("by the staleness bound"), "{}", err(&output));
    resume(sea).await;
}

pub(super) async fn flips_during_a_wait(tool: &Tool, sea: &Sea) {
    // A colleague resumes.
    sea.pause(true).await;
    let wait = stands(tool, sea, &PAUSED).await;
    sea.pause(false).await;
    let (code, text, errors) = wait.ends().await;
    assert_eq!((code, text.as_str()), (1, ""), "{errors}");
    assert!(
        errors.contains("it is running") && errors.contains("by admin"),
        "{errors}"
    );
    sea.answer("armada", "nina", "pinta", false).await;
    sea.acknowledged("running").await;

    // Another pause on top: the later generation will do, and only that.
    sea.pause(true).await;
    let first = generation(sea).await;
    let wait = stands(tool, sea, &PAUSED).await;
    let second = annotate(sea, true).await;
    assert!(second > first);
    let mut wait_for_second = stands(
        tool,
        sea,
        &[PAUSED.as_slice(), &["--generation", &second.to_string()]].concat(),
    )
    .await;
    assert!(wait_for_second.is_running());
    for (api, name) in [(&sea.fleets, "armada"), (&sea.ships, "nina"), (&sea.ships, "pinta")] {
        says(api, name, true).await;
    }
    // The Fleet says nothing of its annotation yet.
    let patch = json!({"status": {"conditions": [{"type": "Paused", "status": "True", "reason": "Paused",
        "message": "spec.paused, annotation", "lastTransitionTime": "2024-01-01T00:00:00Z"}]}});
    sea.fleets
        .patch_status("armada", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    for wait in [wait, wait_for_second] {
        let (code, text, errors) = wait.ends().await;
        assert_eq!(code, 0, "{errors}");
        assert!(text.contains(&format!("generation {second},")), "{text}");
    }
    annotate(sea, false).await;
    resume(sea).await;
}

pub(super) async fn two_objects_and_a_deletion(tool: &Tool, sea: &Sea) {
    let ship = sea.ships.get("nina").await.unwrap();
    let mut other = ship.clone();
    other.metadata = kube::api::ObjectMeta {
        name: Some("santa-maria".to_owned()),
        ..Default::default()
    };
    sea.ships.create(&PostParams::default(), &other).await.unwrap();
    says(&sea.ships, "santa-maria", false).await;
    let both = ["wait", "ship/santa-maria", "fleet/armada", "--for=paused"];
    let (code, _) = tool
        .says(&["pause", "ship/santa-maria", "fleet/armada", "--reason", "x"])
        .await;
    assert_eq!(code, 0);
    sea.answer("armada", "nina", "pinta", true).await;
    sea.acknowledged("paused").await;
    let mut wait = tool.start(&both);
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    assert!(wait.is_running(), "one of the two is not acknowledged");
    sea.ships.delete("santa-maria", &DeleteParams::default()).await.unwrap();
    let (code, text, errors) = wait.ends().await;
    assert_eq!(code, 1);
    assert!(text.contains("fleet.sea.example.org/armada paused"), "{text}");
    assert!(
        errors.contains("ship.sea.example.org/santa-maria: it was deleted"),
        "{errors}"
    );
    let output = tool.run(&["wait", "ship/santa-maria", "--for=paused"]).await;
    assert!(err(&output).contains("it is not there"), "{}", err(&output));
    let (_, report) = tool.audit(&[]).await;
    assert_eq!(row(&report, "armada")["status"], "Acknowledged");
}

pub(super) async fn while_the_server_restarts(tool: &Tool, sea: &Sea, sandbox: &Sandbox) {
    resume(sea).await;
    sea.pause(true).await;
    let mut wait = stands(tool, sea, &PAUSED).await;
    sandbox.restart_api_server().await.unwrap();
    assert!(wait.is_running());
    eventually("the server answers", async || sea.fleets.get("armada").await.ok()).await;
    sea.answer("armada", "nina", "pinta", true).await;
    let (code, _, errors) = wait.ends().await;
    assert_eq!(code, 0, "{errors}");
    assert_eq!(annotation(&sea.fleet().await, "acknowledged"), "paused");
    // Not there at all: a clear error when the time is up.
    sandbox.stop_api_server();
    let output = tool.run(&[PAUSED.as_slice(), &["--timeout", "1s"]].concat()).await;
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    sandbox.start_api_server().await.unwrap();
}
