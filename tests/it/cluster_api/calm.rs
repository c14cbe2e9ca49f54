//! Nothing is frozen and nothing is killed: pauses and resumes of a Cluster with 21 machines and of its objects.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use pausegen::protocol::keys::{self, Acknowledgement, Evidence};
use serde_json::json;

use super::rig::Change::{Annotation, Field};
use super::rig::{NAMESPACE, Rig, annotation, generation, options, settled};
use super::{Scenes, audit, unruled};
use crate::support;

#[tokio::test]
async fn everybody_has_seen_what_is_acknowledged() {
    let scenes = Scenes::begin();
    let mut rig = Box::pin(Rig::start(options(), 20)).await;
    scenes.scene("a Cluster is paused and resumed");
    Box::pin(field(&rig)).await;
    scenes.scene("a dry run, and writes that are none of our business");
    Box::pin(dry_run(&rig)).await;
    Box::pin(unrelated(&rig)).await;
    scenes.scene("annotations");
    Box::pin(annotations(&rig)).await;
    scenes.scene("hasty flips");
    Box::pin(hasty(&rig)).await;
    scenes.scene("field and annotation, one after the other");
    Box::pin(field_and_annotation(&rig)).await;
    scenes.scene("idle for a minute");
    Box::pin(idle(&rig)).await;
    scenes.scene("the audit log");
    audit::check(&rig.sandbox, &flips(&rig).await);
    scenes.scene("an infrastructure kind without a rule, and one that says nothing");
    let rules = Box::pin(unruled::not_reporting(&mut rig)).await;
    audit::granted(&rig.sandbox, &rules);
    scenes.scene("done");
}

/// Pause, resume, pause, resume. The first pause finds no process that has known anybody for long, the later ones do.
async fn field(rig: &Rig) {
    let cluster = rig.cluster();
    let mut before = audit::quiet(&rig.sandbox).await;
    for paused in [true, false, true, false] {
        let flip = rig.flip(&cluster, Field(paused)).await;
        let echo = rig.acknowledged(&flip).await;
        assert_eq!(echo.objects, rig.members().await, "{echo:?}");
        let after = audit::quiet(&rig.sandbox).await;
        assert!(
            after.0 - before.0 <= 3,
            "{} writes for one flip: {:#?}",
            after.0 - before.0,
            audit::writes(&rig.sandbox)
        );
        assert!(after.1 - before.1 <= 2, "{} Events for one flip", after.1 - before.1);
        before = after;
    }
    let object = rig.get(&cluster).await;
    let echo: Acknowledgement = serde_json::from_str(annotation(&object, keys::ACKNOWLEDGEMENT).unwrap()).unwrap();
    assert_eq!(
        echo.evidence,
        Evidence::Attested,
        "clean flips of a Cluster that is well known need no bound: {echo:?}"
    );
}

/// Each kind of object has its own input.
async fn annotations(rig: &Rig) {
    let mut targets = vec![rig.cluster()];
    for kind in ["MachineDeployment", "Machine"] {
        targets.push(rig.first(kind).await);
    }
    for paused in [true, false] {
        for target in &targets {
            let flip = rig.flip(target, Annotation(paused)).await;
            rig.acknowledged(&flip).await;
        }
    }
}

/// Flips that come before the last one is acknowledged: time has to answer.
async fn hasty(rig: &Rig) {
    let deployment = rig.first("MachineDeployment").await;
    rig.flip(&deployment, Annotation(true)).await;
    rig.flip(&deployment, Annotation(false)).await;
    let flip = rig.flip(&deployment, Annotation(true)).await;
    let echo = rig.acknowledged(&flip).await;
    settled(&flip, &echo);
    rig.run(&deployment).await;
}

/// The second flip is about the Cluster alone, and yet everybody has to be asked about the first one.
async fn field_and_annotation(rig: &Rig) {
    let cluster = rig.cluster();
    rig.flip(&cluster, Field(true)).await;
    let second = rig.flip(&cluster, Annotation(true)).await;
    let echo = rig.acknowledged(&second).await;
    assert_eq!(echo.objects, rig.members().await, "{echo:?}");
    rig.flip(&cluster, Annotation(false)).await;
    let second = rig.flip(&cluster, Field(false)).await;
    rig.acknowledged(&second).await;
}

/// A dry run is answered as the write would be, and leaves nothing.
async fn dry_run(rig: &Rig) {
    let cluster = rig.cluster();
    let before = rig.get(&cluster).await;
    let patch = r#"{"spec":{"paused":true}}"#;
    let args = [
        "patch",
        "cluster",
        &cluster.name,
        "-n",
        NAMESPACE,
        "--type=merge",
        "-p",
        patch,
        "--dry-run=server",
    ];
    let answer = rig.sandbox.kubectl_object(&args).await.unwrap();
    assert_eq!(generation(&answer), generation(&before) + 1);
    assert_eq!(annotation(&answer, keys::ACKNOWLEDGED), Some(keys::PENDING));
    let after = rig.get(&cluster).await;
    assert_eq!(before.annotations(), after.annotations());
    assert_eq!(before.metadata.generation, after.metadata.generation);
}

/// No webhook is called for labels, spec edits and status.
async fn unrelated(rig: &Rig) {
    let before = reviews(rig).await;
    assert!(before > 0, "there were flips: {before}");
    let (cluster, machine, check) = (
        rig.cluster(),
        rig.first("Machine").await,
        rig.first("MachineHealthCheck").await,
    );
    let patches = [
        (
            &cluster,
            json!({ "metadata": { "labels": { "example.com/team": "racks" } } }),
        ),
        (
            &machine,
            json!({ "metadata": { "annotations": { "example.com/note": "hello" } } }),
        ),
        (
            &machine,
            json!({ "spec": { "deletion": { "nodeDrainTimeoutSeconds": 77 } } }),
        ),
    ];
    for (target, patch) in patches {
        let version = rig.get(target).await.resource_version();
        let api = rig.api(target.kind);
        let written = api
            .patch(&target.name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
        assert_ne!(version, written.resource_version(), "it must be a write: {target:?}");
    }
    let status = Patch::Merge(json!({ "status": { "expectedMachines": 77 } }));
    rig.api("MachineHealthCheck")
        .patch_status(&check.name, &PatchParams::default(), &status)
        .await
        .unwrap();
    assert_eq!(reviews(rig).await, before);
}

/// Nothing is written where nothing happens, and there is little in memory: both are one process here. What is not counted
/// is the program itself, which is many times as large without optimization.
async fn idle(rig: &Rig) {
    let before = audit::quiet(&rig.sandbox).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let (objects, events) = audit::writes(&rig.sandbox);
    assert_eq!((objects.len(), events.len()), before, "{objects:#?} {events:#?}");
    let memory = support::memory(rig.product.admission().id(), "RssAnon");
    assert!(memory < 20 * 1024, "{memory} kB");
    println!("idle: {memory} kB of anonymous memory");
}

/// How often a webhook was called.
async fn reviews(rig: &Rig) -> u64 {
    let metrics = rig.product.metrics().await.unwrap();
    let counts = metrics.lines().filter(|line| line.contains("reviews_total{"));
    counts
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64)
        .sum()
}

/// How often each object was flipped.
async fn flips(rig: &Rig) -> BTreeMap<(String, String), u64> {
    let mut flips = BTreeMap::new();
    for kind in pausegen::sandbox::answers::kinds() {
        for object in rig.api(kind).list(&Default::default()).await.unwrap() {
            // Objects of different kinds may have the same name.
            *flips.entry((NAMESPACE.to_owned(), object.name_any())).or_default() += generation(&object);
        }
    }
    flips
}
