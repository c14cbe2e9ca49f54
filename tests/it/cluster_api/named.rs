//! `pausegen audit` names exactly those who lag, held against what the controllers themselves say.

use std::collections::BTreeSet;

use pausegen::sandbox::answers::Answers;
use pausegen::sandbox::product::short_rules;
use serde_json::Value;

use super::rig::{BOUND, CLUSTER, NAMESPACE, Rig};
use crate::support::{EXE, eventually};

type Names = BTreeSet<(String, String)>;

/// The Cluster is pending for a flip to `paused`, and a manager is frozen. Whoever is not frozen answers sooner or later:
/// then both say the same, and go on doing so.
pub(super) async fn exactly_who_lags(rig: &Rig, paused: bool, of_it: &str) {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, short_rules(BOUND, BOUND)).unwrap();
    let mut last = String::new();
    let lagging = eventually("the audit names those who lag", async || {
        let before = by_controllers(rig, paused).await;
        let (code, named) = by_audit(rig, &rules).await;
        let after = by_controllers(rig, paused).await;
        let text = format!("audit {code} {named:?}, controllers {after:?}");
        if text != last {
            println!("        {text}");
            last = text;
        }
        assert_eq!(code, 1, "a pending flip is a finding");
        (before == after && named == after && !after.is_empty()).then_some(after)
    })
    .await;
    let kinds: BTreeSet<&str> = lagging.iter().map(|(kind, _)| kind.as_str()).collect();
    assert!(kinds.contains(of_it), "{of_it} is frozen: {lagging:?}");
}

async fn by_controllers(rig: &Rig, paused: bool) -> Names {
    let answers = Answers::now(&rig.client, NAMESPACE).await.unwrap();
    let missing = answers.against_cluster(paused);
    missing
        .map(|answer| (answer.kind.to_owned(), answer.name.clone()))
        .collect()
}

async fn by_audit(rig: &Rig, rules: &std::path::Path) -> (i32, Names) {
    let output = tokio::process::Command::new(EXE)
        .args(["audit", "-n", NAMESPACE, "-o", "json", "--rules"])
        .arg(rules)
        .arg("--kubeconfig")
        .arg(rig.sandbox.kubeconfig())
        .output()
        .await
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let row = rows
        .iter()
        .find(|row| row["kind"] == "Cluster" && row["name"] == CLUSTER)
        .unwrap();
    let laggards = row["waitsFor"].as_array().unwrap().iter().map(|laggard| {
        let kind = laggard["kind"].as_str().unwrap().split('.').next().unwrap();
        (kind.to_owned(), laggard["name"].as_str().unwrap().to_owned())
    });
    (output.status.code().unwrap(), laggards.collect())
}
