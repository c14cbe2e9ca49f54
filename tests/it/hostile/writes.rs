//! Every way in which people and tools write: the stamp survives, and nothing of theirs is lost.

use std::path::PathBuf;

use kube::api::{DynamicObject, Patch, PatchParams};
use pausegen::protocol::keys::{ACKNOWLEDGED, GENERATION, OBSERVED_GENERATION, PENDING, STAMP};
use serde_json::{Value, json};

use super::ground::{Ground, Place, annotation, keys, stamp};

pub(super) async fn scenes(ground: &Ground) {
    let place = ground.place("writes").await;
    let names = [
        "annotate",
        "label",
        "edit",
        "merge",
        "json",
        "null",
        "replace",
        "unconditional",
        "applied",
        "server-side",
        "server-side-keys",
        "old-version",
        "fight",
        "script",
    ];
    place.paused(&names).await;
    tokio::join!(
        imperative(&place),
        replaced(&place),
        applied(&place),
        backup(&place),
        fight(&place),
        old_version(&place),
        without_annotations(&place),
        scaled(&place),
        strategic(&place),
        gitops(ground),
    );
}

/// A file for `kubectl`, in the folder of the sandbox.
fn file(place: &Place<'_>, name: &str, content: &Value) -> String {
    let path: PathBuf = place
        .ground
        .sandbox
        .folder()
        .join(format!("{}-{name}.json", place.namespace));
    std::fs::write(&path, content.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What is in the way of nobody: a Cluster as somebody keeps it in a file.
fn manifest(place: &Place<'_>, name: &str, note: &str) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {
            "name": name, "namespace": place.namespace, "labels": { "example.com/keep": "mine" },
            "annotations": { "example.com/note": note, "example.com/keep": "mine" },
        },
        "spec": { "paused": true, "clusterNetwork": { "serviceDomain": "mine" } },
    })
}

fn forged() -> Value {
    json!({ GENERATION: "99", ACKNOWLEDGED: "running", STAMP: "{}" })
}

/// The keys are as they stood, and the user's annotation is what they wanted.
async fn survived(place: &Place<'_>, stood: &DynamicObject, note: Option<&str>) -> DynamicObject {
    let name = stood.metadata.name.as_deref().unwrap();
    let after = place.get("Cluster", name).await;
    assert_eq!(keys(&after), keys(stood), "{name}");
    assert_eq!(annotation(&after, "example.com/note"), note, "{name}");
    assert_eq!(
        after.metadata.labels.as_ref().unwrap()["example.com/keep"],
        "mine",
        "{name}"
    );
    assert_eq!(after.data["spec"]["paused"], true, "{name}");
    after
}

async fn imperative(place: &Place<'_>) {
    let stood = place.get("Cluster", "annotate").await;
    let (forge, remove) = (format!("{GENERATION}=99"), format!("{ACKNOWLEDGED}-"));
    place
        .kubectl(&[
            "annotate",
            "cluster",
            "annotate",
            "--overwrite",
            "example.com/note=1",
            &forge,
            &remove,
        ])
        .await;
    survived(place, &stood, Some("1")).await;

    let stood = place.get("Cluster", "label").await;
    place
        .kubectl(&["label", "cluster", "label", "example.com/more=1"])
        .await;
    survived(place, &stood, None).await;

    // Somebody cleans up what they do not know while they are at it.
    let stood = place.get("Cluster", "edit").await;
    let script = place.ground.sandbox.folder().join("editor.sh");
    let text = "#!/bin/sh\nsed -i -e '/pausegen\\.io\\//d' -e 's/example.com\\/keep: mine/example.com\\/keep: mine\\n    example.com\\/note: edited/' \"$1\"\n";
    std::fs::write(&script, text).unwrap();
    let editor = format!("/bin/sh {}", script.display());
    let mut command = place
        .ground
        .sandbox
        .kubectl_command(["-n", &place.namespace, "edit", "cluster", "edit"]);
    command.env("KUBE_EDITOR", &editor);
    let output = tokio::process::Command::from(command).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let after = place.get("Cluster", "edit").await;
    assert_eq!(keys(&after), keys(&stood));
    assert!(
        after
            .metadata
            .annotations
            .as_ref()
            .unwrap()
            .values()
            .any(|value| value == "edited"),
        "{after:?}"
    );

    for (name, kind, patch) in [
        (
            "merge",
            "merge",
            json!({ "metadata": { "annotations": { "example.com/note": "1", GENERATION: null, STAMP: "" } } }),
        ),
        (
            "json",
            "json",
            json!([
                { "op": "add", "path": "/metadata/annotations/example.com~1note", "value": "1" },
                { "op": "remove", "path": "/metadata/annotations/pausegen.io~1stamp" },
                { "op": "replace", "path": "/metadata/annotations/pausegen.io~1acknowledged", "value": "running" },
            ]),
        ),
    ] {
        let stood = place.get("Cluster", name).await;
        let (kind, patch) = (format!("--type={kind}"), patch.to_string());
        place.kubectl(&["patch", "cluster", name, &kind, "-p", &patch]).await;
        survived(place, &stood, Some("1")).await;
    }

    // All annotations: the user's own go, as they wanted.
    let stood = place.get("Cluster", "null").await;
    let patch = json!({ "metadata": { "annotations": null } }).to_string();
    place
        .kubectl(&["patch", "cluster", "null", "--type=merge", "-p", &patch])
        .await;
    let after = survived(place, &stood, None).await;
    assert_eq!(annotation(&after, "example.com/keep"), None);
    assert_eq!(after.metadata.annotations.as_ref().unwrap().len(), 5, "{after:?}");
}

async fn replaced(place: &Place<'_>) {
    for name in ["replace", "unconditional"] {
        let stood = place.get("Cluster", name).await;
        let mut whole = manifest(place, name, "1");
        if name == "replace" {
            whole["metadata"]["resourceVersion"] = json!(stood.metadata.resource_version);
        }
        let path = file(place, name, &whole);
        place.kubectl(&["replace", "-f", &path]).await;
        survived(place, &stood, Some("1")).await;
        whole["metadata"].as_object_mut().unwrap().remove("annotations");
        whole["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        let path = file(place, name, &whole);
        place.kubectl(&["replace", "-f", &path]).await;
        survived(place, &stood, None).await;
    }
}

async fn applied(place: &Place<'_>) {
    let stood = place.get("Cluster", "applied").await;
    for (note, forge) in [("1", false), ("2", true), ("3", false)] {
        let mut whole = manifest(place, "applied", note);
        if forge {
            merge(&mut whole["metadata"]["annotations"], &forged());
        }
        let path = file(place, "applied", &whole);
        place.kubectl(&["apply", "-f", &path]).await;
        survived(place, &stood, Some(note)).await;
    }
    for name in ["server-side", "server-side-keys"] {
        let stood = place.get("Cluster", name).await;
        for note in ["1", "2", "3"] {
            let mut whole = manifest(place, name, note);
            // Once with our keys, then without: who owned a field and leaves it out removes it.
            if name == "server-side-keys" && note != "3" {
                merge(&mut whole["metadata"]["annotations"], &forged());
            }
            let path = file(place, name, &whole);
            let args = [
                "apply",
                "--server-side",
                "--force-conflicts",
                "--field-manager=me",
                "-f",
                &path,
            ];
            place.kubectl(&args).await;
            survived(place, &stood, Some(note)).await;
        }
    }
}

fn merge(into: &mut Value, from: &Value) {
    for (key, value) in from.as_object().unwrap() {
        into[key] = value.clone();
    }
}

/// An old copy of an object is applied: what it says in our keys is history.
async fn backup(place: &Place<'_>) {
    let saved = place.kubectl(&["get", "cluster", "script", "-o", "json"]).await;
    let running = place
        .patch("Cluster", "script", json!({ "spec": { "paused": false } }))
        .await
        .unwrap();
    assert_eq!(stamp(&running).generation, 2);
    let mut saved: Value = serde_json::from_str(&saved).unwrap();
    saved["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let path = file(place, "script", &saved);
    place.kubectl(&["replace", "-f", &path]).await;
    let after = place.get("Cluster", "script").await;
    assert_eq!(stamp(&after).generation, 3);
    assert_eq!(annotation(&after, ACKNOWLEDGED), Some(PENDING));
}

/// Two who want different things of our keys, by force, in turn.
async fn fight(place: &Place<'_>) {
    let stood = place.get("Cluster", "fight").await;
    for round in 0..6 {
        let me = round % 2;
        let mut whole = manifest(place, "fight", &me.to_string());
        merge(
            &mut whole["metadata"]["annotations"],
            &json!({ GENERATION: me.to_string(), ACKNOWLEDGED: if me == 0 { "running" } else { "paused" } }),
        );
        let parameters = PatchParams::apply(&format!("fighter-{me}")).force();
        place
            .api("Cluster")
            .patch("fight", &parameters, &Patch::Apply(&whole))
            .await
            .unwrap();
        survived(place, &stood, Some(&me.to_string())).await;
    }
}

/// A client that knows the version before.
async fn old_version(place: &Place<'_>) {
    let stood = place.get("Cluster", "old-version").await;
    let kind = "clusters.v1beta1.cluster.x-k8s.io";
    let mut whole: Value =
        serde_json::from_str(&place.kubectl(&["get", kind, "old-version", "-o", "json"]).await).unwrap();
    assert_eq!(whole["apiVersion"], "cluster.x-k8s.io/v1beta1");
    whole["metadata"]["annotations"] = json!({ "example.com/note": "1", GENERATION: "99" });
    let path = file(place, "old-version", &whole);
    place.kubectl(&["replace", "-f", &path]).await;
    survived(place, &stood, Some("1")).await;
    let patch = json!({ "spec": { "paused": false } }).to_string();
    place
        .kubectl(&["patch", kind, "old-version", "--type=merge", "-p", &patch])
        .await;
    let flipped = place.get("Cluster", "old-version").await;
    assert_eq!(stamp(&flipped).generation, stamp(&stood).generation + 1);
    assert_eq!(annotation(&flipped, ACKNOWLEDGED), Some(PENDING));
    place.cluster_says("old-version", false).await;
    place.acknowledged("old-version", "running").await;
}

/// The map has to be made first.
async fn without_annotations(place: &Place<'_>) {
    let fields = json!({ "spec": { "clusterNetwork": { "serviceDomain": "mine" } } });
    let bare = place.create("Cluster", "no-annotations", fields).await;
    assert_eq!(bare.metadata.annotations, None);
    let patch = json!([{ "op": "add", "path": "/spec/paused", "value": true }]).to_string();
    place
        .kubectl(&["patch", "cluster", "no-annotations", "--type=json", "-p", &patch])
        .await;
    let flipped = place.get("Cluster", "no-annotations").await;
    assert_eq!(stamp(&flipped).generation, 1);
    assert_eq!(annotation(&flipped, OBSERVED_GENERATION), Some("0"));
}

/// `scale` writes a subresource, whose metadata is none of the object's.
async fn scaled(place: &Place<'_>) {
    let template = json!({ "spec": {
        "clusterName": "c", "bootstrap": { "dataSecretName": "x" },
        "infrastructureRef": { "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevMachineTemplate", "name": "x" },
    } });
    let fields = json!({ "spec": {
        "clusterName": "c", "replicas": 1, "selector": { "matchLabels": { "a": "b" } }, "template": template,
    } });
    place.create("MachineDeployment", "md", fields).await;
    let pause = json!({ "metadata": { "annotations": { super::ground::PAUSED: "" } } });
    let stood = place.patch("MachineDeployment", "md", pause).await.unwrap();
    assert_eq!(stamp(&stood).generation, 1);
    place
        .kubectl(&["scale", "machinedeployment", "md", "--replicas=3"])
        .await;
    let after = place.get("MachineDeployment", "md").await;
    assert_eq!(after.data["spec"]["replicas"], 3);
    assert_eq!(keys(&after), keys(&stood));
}

/// Strategic patches are for built-in kinds alone.
async fn strategic(place: &Place<'_>) {
    let fields = json!({ "spec": { "schedule": "@hourly", "jobTemplate": { "spec": { "template": { "spec": {
        "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }],
    } } } } } });
    place.create("CronJob", "c", fields).await;
    let patch = json!({ "spec": { "suspend": true } }).to_string();
    place.kubectl(&["patch", "cronjob", "c", "-p", &patch]).await;
    let stood = place.get("CronJob", "c").await;
    assert_eq!(stamp(&stood).generation, 1);
    for annotations in [
        json!({ "example.com/note": "1", GENERATION: "99", STAMP: null }),
        json!({ "$patch": "replace", "example.com/note": "1" }),
    ] {
        let patch = json!({ "metadata": { "annotations": annotations } }).to_string();
        place.kubectl(&["patch", "cronjob", "c", "-p", &patch]).await;
        let after = place.get("CronJob", "c").await;
        assert_eq!(keys(&after), keys(&stood), "{patch}");
        assert_eq!(annotation(&after, "example.com/note"), Some("1"), "{patch}");
    }
}

/// What is in the repository is applied again and again, and what is not is pruned.
async fn gitops(ground: &Ground) {
    let place = ground.place("gitops").await;
    let names = ["one", "two", "server-side"];
    for name in names {
        let mut whole = manifest(&place, name, "git");
        whole["metadata"]["labels"]["gitops"] = json!("yes");
        let server_side = name == "server-side";
        let path = file(&place, name, &whole);
        let mut args = vec!["apply", "-f", &path];
        if server_side {
            args.extend(["--server-side", "--force-conflicts", "--field-manager=gitops"]);
        }
        place.kubectl(&args).await;
        place.cluster_says(name, true).await;
    }
    let mut stood = Vec::new();
    for name in names {
        place.acknowledged(name, "paused").await;
        // The condition follows.
        let object = crate::support::eventually("the condition is there", async || {
            let object = place.get("Cluster", name).await;
            let conditions = object.data["status"]["conditions"].as_array()?.clone();
            conditions
                .iter()
                .any(|condition| condition["type"] == "PauseAcknowledged" && condition["status"] == "True")
                .then_some(object)
        })
        .await;
        stood.push(object);
    }
    let files = names.map(|name| {
        let path = ground.sandbox.folder().join(format!("gitops-{name}.json"));
        path.to_str().unwrap().to_owned()
    });
    let prune = [
        "apply",
        "-l",
        "gitops=yes",
        "--prune",
        "--prune-allowlist=cluster.x-k8s.io/v1beta2/Cluster",
        "-f",
        &files[0],
        "-f",
        &files[1],
    ];
    for _ in 0..3 {
        let all: Vec<&str> = prune.iter().copied().chain(["-f", &files[2]]).collect();
        place.kubectl(&all).await;
        place
            .kubectl(&[
                "apply",
                "--server-side",
                "--force-conflicts",
                "--field-manager=gitops",
                "-f",
                &files[2],
            ])
            .await;
    }
    for object in &stood {
        survived(&place, object, Some("git")).await;
    }
    // The loops have nothing to do: nothing of ours is a difference to them.
    let versions = async || {
        let mut versions = Vec::new();
        for name in &names[..2] {
            versions.push(place.get("Cluster", name).await.metadata.resource_version);
        }
        versions
    };
    let before = versions().await;
    let all: Vec<&str> = prune.iter().copied().chain(["-f", &files[2]]).collect();
    place.kubectl(&all).await;
    assert_eq!(versions().await, before);
    // Gone from the repository, gone from the cluster, paused or not.
    let rest: Vec<&str> = prune[..7].to_vec();
    place.kubectl(&rest).await;
    assert!(place.api("Cluster").get_opt("two").await.unwrap().is_none());
    survived(&place, &stood[0], Some("git")).await;
}
