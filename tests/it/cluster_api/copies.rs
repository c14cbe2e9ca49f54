//! Cluster API copies a MachineDeployment's annotations onto its MachineSets, by force, and so our keys with them.

use kube::ResourceExt as _;
use kube::api::{DynamicObject, Patch, PatchParams};
use pausegen::protocol::keys::{self, GUARDED, Stamp};
use pausegen::sandbox::product::{ProductOptions, short_rules};
use serde_json::json;

use super::rig::Change::Annotation;
use super::rig::{BOUND, PATIENCE, Rig, Target, annotation, options};
use super::{Scenes, audit};
use crate::support::eventually_within;

/// A MachineDeployment that carries a stamp is rolled out and scaled, with the webhook and without it.
#[tokio::test]
async fn no_copy_is_taken_for_a_stamp() {
    let scenes = Scenes::begin();
    let split = ProductOptions {
        split: true,
        ..options()
    };
    let mut rig = Box::pin(Rig::start(split, 3)).await;
    scenes.scene("ready");
    let deployment = rig.first("MachineDeployment").await;
    for paused in [true, false] {
        let flip = rig.flip(&deployment, Annotation(paused)).await;
        rig.acknowledged(&flip).await;
    }
    scenes.scene("scale");
    scale(&rig, 2).await;
    scenes.scene("roll out");
    roll_out(&rig, &deployment).await;
    let copies = copies_on_sets(&rig).await;
    assert!(copies.is_empty(), "copied past the webhook: {copies:?}");

    rig.product.kill_admission();
    scenes.scene("scale without the webhook");
    scale(&rig, 3).await;
    scenes.scene("roll out without the webhook");
    roll_out(&rig, &deployment).await;
    scenes.scene("the webhook is back");
    let copies = copies_on_sets(&rig).await;
    assert!(
        !copies.is_empty(),
        "without the webhook they are copied, or this shows nothing"
    );
    rig.product.start_admission().await.unwrap();
    eventually_within(PATIENCE, "the copies are repaired", async || {
        copies_on_sets(&rig).await.is_empty().then_some(())
    })
    .await;
    let flip = rig.flip(&deployment, Annotation(true)).await;
    rig.acknowledged(&flip).await;
    rig.run(&deployment).await;
    audit::granted(&rig.sandbox, &short_rules(BOUND, BOUND));
    scenes.scene("done");
}

/// The MachineSets with keys that are not their own.
async fn copies_on_sets(rig: &Rig) -> Vec<String> {
    let is_copy = |set: &DynamicObject| {
        let stamp = annotation(set, keys::STAMP).and_then(|text| serde_json::from_str::<Stamp>(text).ok());
        let has_keys = GUARDED.iter().any(|key| annotation(set, key).is_some());
        has_keys && stamp.is_none_or(|stamp| stamp.name != set.name_any())
    };
    let sets = rig.api("MachineSet").list(&Default::default()).await.unwrap();
    sets.iter()
        .filter(|set| is_copy(set))
        .map(|set| set.name_any())
        .collect()
}

async fn scale(rig: &Rig, replicas: u32) {
    let patch =
        json!([{ "op": "replace", "path": "/spec/topology/workers/machineDeployments/0/replicas", "value": replicas }]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
    let cluster = rig.cluster();
    rig.of(&cluster)
        .patch(&cluster.name, &PatchParams::default(), &patch)
        .await
        .unwrap();
    eventually_within(PATIENCE, "the scale is handed down", async || {
        let deployment = rig.first("MachineDeployment").await;
        (rig.get(&deployment).await.data["spec"]["replicas"] == json!(replicas)).then_some(())
    })
    .await;
}

/// As `clusterctl alpha rollout restart` does it, and waits for its end.
async fn roll_out(rig: &Rig, deployment: &Target) {
    let before: Vec<String> = rig.names("MachineSet").await;
    let now = format!("{:.0}", jiff::Timestamp::now());
    let patch = Patch::Merge(json!({ "spec": { "rollout": { "after": now } } }));
    rig.of(deployment)
        .patch(&deployment.name, &PatchParams::default(), &patch)
        .await
        .unwrap();
    eventually_within(PATIENCE, "the rollout is complete", async || {
        let object = rig.get(deployment).await;
        let replicas = object.data["spec"]["replicas"].as_i64();
        let is = |name: &str| object.data["status"][name].as_i64() == replicas;
        let is_seen = object.data["status"]["observedGeneration"].as_i64() >= object.metadata.generation;
        let has_new_set = rig.names("MachineSet").await.iter().any(|name| !before.contains(name));
        (is_seen && has_new_set && is("upToDateReplicas") && is("replicas")).then_some(())
    })
    .await;
}
