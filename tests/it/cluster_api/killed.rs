//! The companion is stopped, and killed between any two of its steps.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use pausegen::companion::failpoint;
use pausegen::protocol::keys;
use pausegen::rules::manifests;
use pausegen::sandbox::ManagerKind;
use pausegen::sandbox::product::{ProductOptions, short_rules};
use serde_json::json;

use super::rig::Change::{Annotation, Field};
use super::rig::{BOUND, IMPATIENCE, Rig, Target, annotation, generation, settled};
use super::{Scenes, audit};
use crate::support;

/// So that each of them soon says that it waits.
const GRACE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_companion_that_dies_acknowledges_nothing_false() {
    let scenes = Scenes::begin();
    let mut rig = Box::pin(Rig::start(
        ProductOptions {
            split: true,
            rules: Some(short_rules(BOUND, GRACE)),
            ..ProductOptions::default()
        },
        3,
    ))
    .await;
    scenes.scene("no companion");
    Box::pin(no_companion(&mut rig)).await;
    let bare = bare(&rig).await;
    for point in failpoint::ALL {
        scenes.scene(point);
        if point.ends_with("-pending") || point.ends_with("-touch") {
            Box::pin(killed_at_repair(&mut rig, &bare, point)).await;
        } else {
            Box::pin(killed_at(&mut rig, &bare, point)).await;
        }
    }
    audit::granted(&rig.sandbox, &short_rules(BOUND, GRACE));
    scenes.scene("done");
}

/// An annotation raises no `metadata.generation`: a condition that counted pause generations would run ahead of it now,
/// and the wait would be met.
async fn no_companion(rig: &mut Rig) {
    let cluster = rig.cluster();
    let first = rig.flip(&cluster, Field(true)).await;
    rig.acknowledged(&first).await;
    let second = rig.flip(&cluster, Field(false)).await;
    rig.acknowledged(&second).await;
    rig.product.kill_companion();
    rig.flip(&cluster, Annotation(true)).await;
    let flip = rig.flip(&cluster, Field(true)).await;
    rig.not_acknowledged(&flip, IMPATIENCE).await;
    rig.product.start_companion().await.unwrap();
    rig.acknowledged(&flip).await;
    rig.run(&cluster).await;
}

async fn bare(rig: &Rig) -> Target {
    let target = bare_cluster(rig).await;
    let flip = rig.flip(&target, Field(true)).await;
    rig.acknowledged(&flip).await;
    target
}

/// A Cluster without members (what it refers to is not there): it is acknowledged as soon as its own controller answers.
pub(super) async fn bare_cluster(rig: &Rig) -> Target {
    let target = Target {
        namespace: "bare",
        kind: "Cluster",
        name: "bare".to_owned(),
    };
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "bare" } });
    let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(rig.client.clone());
    namespaces
        .create(&PostParams::default(), &serde_json::from_value(namespace).unwrap())
        .await
        .unwrap();
    let cluster: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": { "name": "bare", "namespace": "bare" },
        "spec": { "infrastructureRef": {
            "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevCluster", "name": "nowhere",
        } },
    }))
    .unwrap();
    rig.of(&target).create(&PostParams::default(), &cluster).await.unwrap();
    target
}

/// One flip with a companion that dies at a point, and with the next one.
async fn killed_at(rig: &mut Rig, target: &Target, point: &str) {
    let paused = rig.is_paused(target).await;
    rig.product
        .start_companion_with(vec![("PAUSEGEN_FAILPOINT", point.to_owned())])
        .await
        .unwrap();
    rig.manager(ManagerKind::Core).freeze().unwrap();
    let flip = rig.flip(target, Field(!paused)).await;
    // It waits for the frozen manager until it says so, or has died before.
    support::eventually(
        &format!("{point}: an Unknown condition or a dead companion"),
        async || (rig.is_unknown(target).await || has_died(rig)).then_some(()),
    )
    .await;
    let word = annotation(&rig.get(target).await, keys::ACKNOWLEDGED)
        .unwrap()
        .to_owned();
    assert_eq!(word, keys::PENDING, "{point}: acknowledged for a frozen manager");
    rig.manager(ManagerKind::Core).thaw().unwrap();
    support::eventually(&format!("{point} is reached"), async || has_died(rig).then_some(())).await;
    rig.product.start_companion_with(Vec::new()).await.unwrap();
    rig.acknowledged(&flip).await;
}

/// A flip that no webhook has seen: the companion takes the word back, and has it stamped when the webhook is there again.
async fn killed_at_repair(rig: &mut Rig, target: &Target, point: &str) {
    let paused = rig.is_paused(target).await;
    let before = generation(&rig.get(target).await);
    rig.product
        .start_companion_with(vec![("PAUSEGEN_FAILPOINT", point.to_owned())])
        .await
        .unwrap();
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(rig.client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(rig.client.clone());
    let mut stamps = mutating.get(manifests::CONFIGURATION).await.unwrap();
    let mut checks = validating.get(manifests::CONFIGURATION).await.unwrap();
    // Without the stamp the other one denies the flip.
    validating
        .delete(manifests::CONFIGURATION, &DeleteParams::default())
        .await
        .unwrap();
    mutating
        .delete(manifests::CONFIGURATION, &DeleteParams::default())
        .await
        .unwrap();
    // The API server learns of it a moment later.
    support::eventually("a flip goes by unseen", async || {
        let answer = rig.dry_run(target, Field(!paused)).await.ok()?;
        (generation(&answer) == before).then_some(())
    })
    .await;
    rig.unseen(target, Field(!paused)).await;
    let dies = async |rig: &Rig| {
        support::eventually(&format!("{point} is reached"), async || has_died(rig).then_some(())).await;
    };
    if point.ends_with("-pending") {
        dies(rig).await;
    } else {
        // Where nobody would stamp it is taken back all the same.
        support::eventually("pending", async || {
            let object = rig.get(target).await;
            (annotation(&object, keys::ACKNOWLEDGED) == Some(keys::PENDING)).then_some(())
        })
        .await;
    }
    for metadata in [&mut stamps.metadata, &mut checks.metadata] {
        metadata.resource_version = None;
        metadata.uid = None;
    }
    mutating.create(&PostParams::default(), &stamps).await.unwrap();
    validating.create(&PostParams::default(), &checks).await.unwrap();
    if point.ends_with("-touch") {
        dies(rig).await;
    }
    rig.product.start_companion_with(Vec::new()).await.unwrap();
    // Its number says that something went by.
    let stamped = support::eventually("stamped anew", async || {
        Some(rig.get(target).await).filter(|object| generation(object) > before)
    })
    .await;
    let flip = rig.flip_of(target, Field(!paused), &stamped);
    assert_eq!(flip.generation, before + 2, "{point}: {flip:?} after {before}");
    let echo = rig.acknowledged(&flip).await;
    settled(&flip, &echo);
}

fn has_died(rig: &Rig) -> bool {
    rig.product
        .companion()
        .is_none_or(|companion| companion.ended().is_some())
}
