//! The rules file changes while everything runs.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use pausegen::{
    protocol::keys::{ACKNOWLEDGED, PENDING},
    rules::Rules,
};
use serde_json::json;

use super::ground::{Ground, acknowledgement, annotation, rules, stamp};
use crate::support::eventually;

/// An annotation that only the new rules know.
const HOLD: &str = "example.com/hold";

/// The rules with another bound, and a kind that is paused by something else.
fn others() -> String {
    format!(
        "{}- group: cluster.x-k8s.io
  kinds: [MachineDeployment]
  inherits: true
  inputs:
  - annotation: {HOLD}
    match: {{equals: \"yes\"}}
  attestedBy: bound
",
        rules(Duration::from_secs(3))
    )
}

pub(super) async fn scenes(ground: &mut Ground) {
    let place = ground.place("reload").await;
    for name in ["a", "b"] {
        place
            .create("Cluster", name, json!({ "spec": { "paused": false } }))
            .await;
    }
    let spec = json!({
        "clusterName": "c", "replicas": 1, "selector": { "matchLabels": { "a": "b" } },
        "template": { "spec": {
            "clusterName": "c", "bootstrap": { "dataSecretName": "x" },
            "infrastructureRef": {
                "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevMachineTemplate", "name": "x",
            },
        } },
    });
    place.create("MachineDeployment", "md", json!({ "spec": spec })).await;

    // A broken file changes nothing, and says so.
    ground
        .product
        .write_rules("apiVersion: pausegen.io/v1alpha1\nkind: Rules\nrules: [{group: 7")
        .unwrap();
    metric(ground, "pausegen_rules_refused 1").await;
    for process in [ground.product.admission(), ground.product.companion().unwrap()] {
        eventually("the log says what is wrong", async || {
            let log = std::fs::read_to_string(process.log()).unwrap();
            let told = log
                .lines()
                .find(|line| line.contains("the rules before it stay in force"))?;
            assert!(told.contains("ERROR") && told.contains("rules.yaml"), "{told}");
            Some(())
        })
        .await;
    }
    let flipped = place
        .patch("Cluster", "a", json!({ "spec": { "paused": true } }))
        .await
        .unwrap();
    assert_eq!(stamp(&flipped).generation, 1);
    place.cluster_says("a", true).await;
    place.acknowledged("a", "paused").await;

    // A good one is taken, and no flip is refused meanwhile, nor soon after.
    let taken = AtomicBool::new(false);
    let flips = async {
        let (mut generation, mut after) = (0, 0);
        while after < 10 {
            generation += 1;
            after += u8::from(taken.load(Ordering::Relaxed));
            let patch = json!({ "spec": { "paused": generation % 2 == 1 } });
            let flipped = place.patch("Cluster", "b", patch).await.unwrap();
            assert_eq!(stamp(&flipped).generation, generation);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let change = async {
        ground.product.write_rules(&others()).unwrap();
        metric(ground, "pausegen_rules_reloads_total{outcome=\"taken\"} 1").await;
        metric(ground, "pausegen_rules_refused 0").await;
        taken.store(true, Ordering::Relaxed);
    };
    tokio::join!(flips, change);

    // Both have the new rules: the webhook stamps what it did not know, the companion counts another bound.
    let parsed = Rules::parse(&others(), "test").unwrap();
    ground.product.install(&ground.client, &parsed).await.unwrap();
    let hold = json!({ "metadata": { "annotations": { HOLD: "yes" } } });
    let held = eventually("the new input is stamped", async || {
        let unhold = json!({ "metadata": { "annotations": { HOLD: null } } });
        let held = place.patch("MachineDeployment", "md", hold.clone()).await.unwrap();
        if annotation(&held, ACKNOWLEDGED) == Some(PENDING) {
            return Some(held);
        }
        place.patch("MachineDeployment", "md", unhold).await.unwrap();
        None
    })
    .await;
    assert_eq!(stamp(&held).after.to_string(), HOLD);
    let echoed = place.acknowledged_as("MachineDeployment", "md", "paused").await;
    assert_eq!(acknowledgement(&echoed).bound_seconds, Some(3));
}

async fn metric(ground: &Ground, line: &str) {
    eventually(line, async || {
        let metrics = ground.product.metrics().await.ok()?;
        metrics.lines().any(|found| found == line).then_some(())
    })
    .await;
}
