//! Objects that are created: paused, restored, copied, under all kinds of names.

use kube::{
    ResourceExt as _,
    api::{DynamicObject, PostParams},
};
use pausegen::protocol::keys::{
    ACKNOWLEDGED, ACKNOWLEDGEMENT, GENERATION, GUARDED, OBSERVED_GENERATION, PENDING, STAMP, Why,
};
use serde_json::{Value, json};

use super::ground::{Ground, PAUSED, Place, acknowledgement, annotation, stamp};
use crate::support::eventually;

pub(super) async fn scenes(ground: &Ground) {
    let place = ground.place("create").await;
    place.paused(&["source"]).await;
    tokio::join!(
        paused(&place),
        restored(&place),
        copied(&place),
        generated(&place),
        recreated(&place),
        named(&place),
        namesakes(ground),
    );
}

fn spec(paused: bool) -> Value {
    json!({ "paused": paused, "clusterNetwork": { "serviceDomain": "mine" } })
}

fn fresh(object: &DynamicObject, generation: u64, why: Why) {
    let stamp = stamp(object);
    assert_eq!((stamp.generation, stamp.why), (generation, why), "{object:?}");
    assert_eq!(stamp.name, object.name_any());
    assert_eq!(annotation(object, GENERATION), Some(&*generation.to_string()));
    assert_eq!(annotation(object, ACKNOWLEDGED), Some(PENDING));
    assert_eq!(annotation(object, OBSERVED_GENERATION), None);
    assert_eq!(annotation(object, ACKNOWLEDGEMENT), None);
}

async fn paused(place: &Place<'_>) {
    let by_field = place.create("Cluster", "by-field", json!({ "spec": spec(true) })).await;
    fresh(&by_field, 1, Why::Created);
    let fields = json!({ "metadata": { "annotations": { PAUSED: "false" } }, "spec": spec(false) });
    let by_annotation = place.create("Cluster", "by-annotation", fields).await;
    fresh(&by_annotation, 1, Why::Created);
    // No stamp without a pause, whatever the request says.
    let forged = json!({ GENERATION: "3", ACKNOWLEDGED: "running", STAMP: "[" });
    let fields = json!({ "metadata": { "annotations": forged }, "spec": spec(false) });
    let running = place.create("Cluster", "running", fields).await;
    assert!(
        GUARDED.iter().all(|key| annotation(&running, key).is_none()),
        "{running:?}"
    );
    place.cluster_says("by-field", true).await;
    let echoed = place.acknowledged("by-field", "paused").await;
    assert_eq!(Some(acknowledgement(&echoed).uid), echoed.uid());
}

/// An object is created with its own former annotations, as a restore and `clusterctl move` do.
async fn restored(place: &Place<'_>) {
    for (name, is_paused) in [("restored", true), ("restored-running", false)] {
        place.paused(&[name]).await;
        let saved = place.get("Cluster", name).await;
        place.api("Cluster").delete(name, &Default::default()).await.unwrap();
        let fields = json!({ "metadata": { "annotations": saved.annotations() }, "spec": spec(is_paused) });
        let restored = place.create("Cluster", name, fields).await;
        fresh(&restored, 2, Why::Restored);
        place.cluster_says(name, is_paused).await;
        let word = if is_paused { "paused" } else { "running" };
        let echoed = place.acknowledged(name, word).await;
        let echo = acknowledgement(&echoed);
        assert_eq!((echo.generation, Some(echo.uid)), (2, echoed.uid()));
        // A number that was never clean needs the bound.
        assert_eq!(echo.bound_seconds, Some(2), "{echoed:?}");
    }
    // Numbers that nobody would reach are not continued.
    for (name, number) in [
        ("huge", "9007199254740992"),
        ("beyond", "9223372036854775807"),
        ("none", "-1"),
    ] {
        let mut text: Value = serde_json::to_value(stamp(&place.get("Cluster", "source").await)).unwrap();
        text["name"] = json!(name);
        text["generation"] = number.parse().map_or(json!(1), |number: u64| json!(number));
        let annotations = json!({ STAMP: text.to_string(), GENERATION: number, ACKNOWLEDGED: "paused" });
        let fields = json!({ "metadata": { "annotations": annotations }, "spec": spec(true) });
        let restored = place.create("Cluster", name, fields).await;
        let expected = if name == "none" { 2 } else { 1 };
        fresh(&restored, expected, Why::Restored);
    }
}

/// Another object's annotations, as whoever copies a manifest writes them.
async fn copied(place: &Place<'_>) {
    let source = place.get("Cluster", "source").await;
    let annotations = json!(source.annotations());
    let fields = |paused| json!({ "metadata": { "annotations": annotations }, "spec": spec(paused) });
    let copy = place.create("Cluster", "copy", fields(true)).await;
    fresh(&copy, 1, Why::Created);
    assert_eq!(annotation(&copy, "example.com/keep"), Some("mine"));
    let running = place.create("Cluster", "copy-running", fields(false)).await;
    assert!(
        GUARDED.iter().all(|key| annotation(&running, key).is_none()),
        "{running:?}"
    );
    assert_eq!(annotation(&running, "example.com/keep"), Some("mine"));
    // Nothing of the source's acknowledgement has come along.
    place.cluster_says("copy", true).await;
    let echoed = place.acknowledged("copy", "paused").await;
    assert_eq!(Some(acknowledgement(&echoed).uid), echoed.uid());
    // The same name under another kind.
    let mut fields = json!({ "metadata": { "annotations": annotations }, "spec": machine("source") });
    fields["metadata"]["annotations"][PAUSED] = json!("");
    let machine = place.create("Machine", "source", fields).await;
    fresh(&machine, 1, Why::Created);
}

fn machine(cluster: &str) -> Value {
    json!({
        "clusterName": cluster, "bootstrap": { "dataSecretName": "x" },
        "infrastructureRef": { "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevMachine", "name": "x" },
    })
}

/// The name comes after the webhook was asked.
async fn generated(place: &Place<'_>) {
    let source = place.get("Cluster", "source").await;
    let mut names = Vec::new();
    for annotations in [json!({}), json!({}), json!(source.annotations())] {
        let fields = json!({ "metadata": { "annotations": annotations }, "spec": spec(true) });
        let mut object = place.object("Cluster", "", fields);
        object.metadata.name = None;
        object.metadata.generate_name = Some("generated-".to_owned());
        let created = place
            .api("Cluster")
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        assert_eq!((stamp(&created).generation, stamp(&created).why), (1, Why::Created));
        assert_eq!(annotation(&created, ACKNOWLEDGED), Some(PENDING));
        names.push(created.name_any());
    }
    for name in &names {
        place.cluster_says(name, true).await;
    }
    for name in &names {
        place.acknowledged(name, "paused").await;
        // From here on it is like any other.
        let resumed = place
            .patch("Cluster", name, json!({ "spec": { "paused": false } }))
            .await
            .unwrap();
        assert_eq!((stamp(&resumed).generation, &*stamp(&resumed).name), (2, &**name));
    }
}

/// Deleted and created anew under its name, while paused: another object, of which nothing is known.
async fn recreated(place: &Place<'_>) {
    place.paused(&["again"]).await;
    let before = place.get("Cluster", "again").await;
    place.api("Cluster").delete("again", &Default::default()).await.unwrap();
    let created = place.create("Cluster", "again", json!({ "spec": spec(true) })).await;
    fresh(&created, 1, Why::Created);
    // Its controller has not answered, and the condition of the one before is not its own.
    eventually("it is said that it waits", async || {
        let object = place.get("Cluster", "again").await;
        assert_eq!(annotation(&object, ACKNOWLEDGED), Some(PENDING), "{object:?}");
        let conditions = object.data["status"]["conditions"].as_array()?.clone();
        conditions
            .iter()
            .any(|condition| condition["type"] == "PauseAcknowledged" && condition["status"] == "Unknown")
            .then_some(())
    })
    .await;
    place.cluster_says("again", true).await;
    let echoed = place.acknowledged("again", "paused").await;
    assert_eq!(Some(acknowledgement(&echoed).uid), echoed.uid());
    assert_ne!(echoed.uid(), before.uid());
}

async fn named(place: &Place<'_>) {
    let longest = format!("{}.{}", "a".repeat(63), "b".repeat(189));
    assert_eq!(longest.len(), 253);
    let names = ["dotted.name.example.com", "7", "0-1.2", &*longest];
    for name in names {
        let created = place.create("Cluster", name, json!({ "spec": spec(false) })).await;
        assert!(annotation(&created, STAMP).is_none());
        let flipped = place
            .patch("Cluster", name, json!({ "spec": { "paused": true } }))
            .await
            .unwrap();
        assert_eq!((stamp(&flipped).generation, &*stamp(&flipped).name), (1, name));
        place.cluster_says(name, true).await;
    }
    for name in names {
        place.acknowledged(name, "paused").await;
    }
}

/// Two Clusters of one name, each with a Machine, in two namespaces: neither is asked for the other.
async fn namesakes(ground: &Ground) {
    let (left, right) = (ground.place("left").await, ground.place("right").await);
    for place in [&left, &right] {
        place.create("Cluster", "same", json!({ "spec": spec(false) })).await;
        let owner = place.get("Cluster", "same").await.uid().unwrap();
        let fields = json!({
            "metadata": {
                "labels": { "cluster.x-k8s.io/cluster-name": "same" },
                "ownerReferences": [{
                    "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "same", "uid": owner,
                }],
            },
            "spec": machine("same"),
        });
        place.create("Machine", "same", fields).await;
        let infrastructure = json!({
            "metadata": {
                "labels": { "cluster.x-k8s.io/cluster-name": "same" },
                "ownerReferences": [{
                    "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "same", "uid": owner,
                }],
            },
            "spec": { "backend": { "inMemory": {} } },
        });
        place.create("DevMachine", "x", infrastructure).await;
        place
            .patch("Cluster", "same", json!({ "spec": { "paused": true } }))
            .await
            .unwrap();
    }
    for kind in ["Cluster", "Machine", "DevMachine"] {
        let name = if kind == "DevMachine" { "x" } else { "same" };
        left.says(kind, name, true, "Cluster spec.paused is set to true").await;
    }
    // Who on the right has not answered holds up the right alone.
    right.cluster_says("same", true).await;
    let echoed = left.acknowledged("same", "paused").await;
    assert_eq!(acknowledgement(&echoed).objects, 3, "{echoed:?}");
    let waiting = eventually("the right says for whom it waits", async || {
        let object = right.get("Cluster", "same").await;
        assert_eq!(annotation(&object, ACKNOWLEDGED), Some(PENDING), "{object:?}");
        let conditions = object.data["status"]["conditions"].as_array()?.clone();
        let condition = conditions
            .iter()
            .find(|condition| condition["type"] == "PauseAcknowledged")?;
        Some(condition["message"].as_str()?.to_owned())
    })
    .await;
    assert!(
        waiting.contains("right/same") && !waiting.contains("left/"),
        "{waiting}"
    );
}
