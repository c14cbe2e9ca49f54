//! Two management clusters, and a Cluster that moves from one to the other. On the way: a scope that moves, and Cluster
//! API's own webhooks out of order.

use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::Api;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use pausegen::protocol::condition::AWAITING_CONTROLLERS;
use pausegen::protocol::keys::{self, Acknowledgement, Why};
use pausegen::sandbox::ManagerKind;
use pausegen::sandbox::product::{self, ProductOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::Scenes;
use super::rig::Change::{self, Annotation, Field};
use super::rig::{
    ANNOTATION, CLUSTER, Flip, IMPATIENCE, NAMESPACE, PATIENCE, Rig, Target, annotation, generation, options, settled,
};
use crate::support;

/// Whoever runs `clusterctl move`.
const MOVER: &str = "mover";

/// A product that lets nobody pause without a reason, or in a hurry, but the mover.
fn strict() -> ProductOptions {
    ProductOptions {
        env: [
            ("PAUSEGEN_HASTY", "deny"),
            ("PAUSEGEN_REQUIRE_REASON", "deny"),
            ("PAUSEGEN_EXEMPT_USERS", MOVER),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .to_vec(),
        ..options()
    }
}

#[tokio::test]
async fn stamps_move_with_their_objects() {
    let scenes = Scenes::begin();
    let source = async {
        let mut source = Box::pin(Rig::start(options(), 2)).await;
        scenes.scene("Machines come and go during a pending flip");
        Box::pin(members_come_and_go(&source)).await;
        scenes.scene("infrastructure that is managed elsewhere");
        Box::pin(managed_elsewhere(&source)).await;
        scenes.scene("Cluster API's webhooks do not answer");
        Box::pin(webhooks_away(&source)).await;
        scenes.scene("a policy refuses the acknowledgement");
        Box::pin(refused(&source)).await;
        source.replace_product(strict()).await;
        source
    };
    let (source, target) = tokio::join!(Box::pin(source), Box::pin(Rig::empty(strict())));
    let tool = Clusterctl::new(&source, &target).await;
    scenes.scene("a backup by kubectl");
    Box::pin(plain_backup(&source)).await;
    scenes.scene("machines are flipped");
    let before = Box::pin(flipped(&source)).await;
    scenes.scene("to a directory");
    source.running().await;
    collect_garbage(&source).await;
    tool.refused(&source).await;
    tool.run(&["--kubeconfig", &tool.source, "--to-directory", &tool.directory])
        .await;
    let cluster = source.standing(&source.cluster(), Field(false)).await;
    assert_eq!((cluster.stamp.by.as_str(), cluster.stamp.why), (MOVER, Why::Flip));
    source.acknowledged(&cluster).await;
    scenes.scene("a move");
    Box::pin(moved(&source, &target, &tool, &before)).await;
    scenes.scene("from the directory");
    tool.run(&["--to-kubeconfig", &tool.source, "--from-directory", &tool.directory])
        .await;
    // The backup was made between pause and resume.
    Box::pin(arrived(&source, &before, cluster.generation - 2)).await;
    scenes.scene("done");
}

impl Rig {
    /// The flip that an object stands at.
    async fn standing(&self, target: &Target, change: Change) -> Flip {
        self.flip_of(target, change, &self.get(target).await)
    }
}

/// A pause that a frozen manager has not seen. Meanwhile a Machine is created, and one is deleted, which stays as long
/// as the Cluster is paused.
async fn members_come_and_go(rig: &Rig) {
    let cluster = rig.cluster();
    let deleted = worker(rig).await;
    rig.manager(ManagerKind::Dev).freeze().unwrap();
    let flip = rig.flip(&cluster, Field(true)).await;
    rig.unknown(&cluster, AWAITING_CONTROLLERS, |message| {
        message.contains("DevMachine.")
    })
    .await;
    extra(rig).await;
    let delete = DeleteParams::default();
    rig.api("Machine").delete(&deleted, &delete).await.unwrap();
    rig.not_acknowledged(&flip, IMPATIENCE).await;
    rig.capi().thaw(ManagerKind::Dev).await.unwrap();
    let echo = rig.acknowledged(&flip).await;
    let names = rig.names("Machine").await;
    assert!(
        names.contains(&deleted) && names.contains(&"extra".to_owned()),
        "{names:?}"
    );
    // A Machine, its infrastructure and its bootstrap for each of three, the extra one without bootstrap, and the
    // Cluster with its infrastructure, control plane, MachineDeployment, MachineSet and two MachineHealthChecks.
    assert_eq!(echo.objects, 3 * 3 + 2 + 7, "{echo:?}");

    let resume = rig.flip(&cluster, Field(false)).await;
    rig.api("Machine").delete("extra", &delete).await.unwrap();
    rig.acknowledged(&resume).await;
    support::eventually("the deleted Machines are gone", async || {
        let names = rig.names("Machine").await;
        (!names.contains(&deleted) && !names.contains(&"extra".to_owned())).then_some(())
    })
    .await;
}

/// The name of a Machine of the MachineDeployment.
async fn worker(rig: &Rig) -> String {
    let workers = ListParams::default().labels("cluster.x-k8s.io/deployment-name");
    let list = rig.api("Machine").list(&workers).await.unwrap();
    list.items.first().unwrap().metadata.name.clone().unwrap()
}

/// A Machine of its own, with infrastructure that it owns: its controller is paused, and would not see to that.
async fn extra(rig: &Rig) {
    let post = PostParams::default();
    let object = |value: Value| -> DynamicObject { serde_json::from_value(value).unwrap() };
    let mut metadata = json!({
        "name": "extra", "namespace": NAMESPACE, "labels": { "cluster.x-k8s.io/cluster-name": CLUSTER },
    });
    let machine = object(json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": metadata,
        "spec": {
            "clusterName": CLUSTER,
            "bootstrap": { "dataSecretName": "none" },
            "infrastructureRef": {
                "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevMachine", "name": "extra",
            },
        },
    }));
    let machine = rig.api("Machine").create(&post, &machine).await.unwrap();
    metadata["ownerReferences"] = json!([{
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "extra", "uid": machine.metadata.uid,
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let infrastructure = object(json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "DevMachine", "metadata": metadata,
        "spec": { "backend": { "inMemory": {} } },
    }));
    rig.api("DevMachine").create(&post, &infrastructure).await.unwrap();
}

/// An infrastructure cluster that somebody else manages: its controller skips it, so it is left out, by name.
async fn managed_elsewhere(rig: &Rig) {
    let cluster = rig.cluster();
    let infrastructure = rig.first("DevCluster").await;
    let manage = async |by: Option<&str>| {
        let patch = json!({ "metadata": { "annotations": { "cluster.x-k8s.io/managed-by": by } } });
        let patch = Patch::Merge(patch);
        let name = &infrastructure.name;
        rig.of(&infrastructure)
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    };
    manage(Some("terraform")).await;
    let flip = rig.flip(&cluster, Field(true)).await;
    let met = rig.word_wait(&flip, PATIENCE).await.expect("acknowledged");
    let echo: Acknowledgement = serde_json::from_str(annotation(&met, keys::ACKNOWLEDGEMENT).unwrap()).unwrap();
    let name = format!(
        "DevCluster.infrastructure.cluster.x-k8s.io {NAMESPACE}/{}",
        infrastructure.name
    );
    assert!(
        echo.excluded.iter().any(|what| what.contains(&name)),
        "{name} is not named: {echo:?}"
    );
    let answer = rig.get(&infrastructure).await;
    let conditions = answer.data.pointer("/status/conditions").unwrap().as_array().unwrap();
    let paused = conditions
        .iter()
        .find(|condition| condition["type"] == "Paused")
        .unwrap();
    assert_eq!(
        paused["status"], "False",
        "its controller does look at it: nothing was tested"
    );
    manage(None).await;
    let resume = rig.flip(&cluster, Field(false)).await;
    rig.acknowledged(&resume).await;
}

/// Cluster API's own webhooks are called for our annotation: while they hang it waits, and says why.
async fn webhooks_away(rig: &Rig) {
    let cluster = rig.cluster();
    let core = rig.manager(ManagerKind::Core);
    core.freeze().unwrap();
    let flip = rig.flip(&cluster, Field(true)).await;
    core.standby().freeze().unwrap();
    core.thaw().unwrap();
    let says = |message: &str| message.contains("is seen by everybody") && message.contains("failed calling webhook");
    rig.unknown(&cluster, AWAITING_CONTROLLERS, says).await;
    let word = annotation(&rig.get(&cluster).await, keys::ACKNOWLEDGED)
        .unwrap()
        .to_owned();
    assert_eq!(word, keys::PENDING);
    core.standby().thaw().unwrap();
    rig.acknowledged(&flip).await;
}

/// A policy of somebody's that lets us write nothing.
async fn refused(rig: &Rig) {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(rig.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(rig.client.clone());
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": { "name": "nobody-else" },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["cluster.x-k8s.io"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["clusters"],
            }] },
            "validations": [{ "expression": format!("request.userInfo.username != '{}'", product::USER) }],
        },
    }))
    .unwrap();
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": { "name": "nobody-else" },
        "spec": { "policyName": "nobody-else", "validationActions": ["Deny"] },
    }))
    .unwrap();
    let post = PostParams::default();
    policies.create(&post, &policy).await.unwrap();
    bindings.create(&post, &binding).await.unwrap();
    let ours = rig
        .sandbox
        .client_for(product::USER, &["system:masters"])
        .await
        .unwrap();
    let ours: Api<DynamicObject> = Api::namespaced_with(
        ours,
        NAMESPACE,
        &pausegen::sandbox::answers::resource("Cluster").unwrap(),
    );
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    support::eventually("the policy is in force", async || {
        let label = Patch::Merge(json!({ "metadata": { "labels": { "example.com/x": "y" } } }));
        ours.patch(CLUSTER, &dry_run, &label).await.err().map(drop)
    })
    .await;
    let cluster = rig.cluster();
    let flip = rig.flip(&cluster, Field(false)).await;
    let says = |message: &str| message.contains("is seen by everybody") && message.contains("nobody-else");
    rig.unknown(&cluster, AWAITING_CONTROLLERS, says).await;
    bindings.delete("nobody-else", &DeleteParams::default()).await.unwrap();
    rig.acknowledged(&flip).await;
}

/// `kubectl get -o yaml`, delete, create: the generation goes on, pending, and is acknowledged anew.
async fn plain_backup(rig: &Rig) {
    let target = super::killed::bare_cluster(rig).await;
    let flip = flip(rig, &target, Field(true)).await;
    rig.acknowledged(&flip).await;
    let saved = rig
        .sandbox
        .kubectl_ok(&["get", "cluster", &target.name, "-n", target.namespace, "-o", "yaml"])
        .await
        .unwrap();
    // kubectl asks for this itself: "resourceVersion should not be set on objects to be created".
    let saved: Vec<&str> = saved
        .lines()
        .filter(|line| !line.starts_with("  resourceVersion:"))
        .collect();
    let file = rig.sandbox.folder().join("backup.yaml");
    std::fs::write(&file, saved.join("\n")).unwrap();
    rig.of(&target)
        .delete(&target.name, &DeleteParams::default())
        .await
        .unwrap();
    // Its controller is paused, and does not let it go.
    let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    rig.of(&target)
        .patch(&target.name, &PatchParams::default(), &release)
        .await
        .unwrap();
    rig.sandbox
        .kubectl_ok(&["create", "-f", file.to_str().unwrap()])
        .await
        .unwrap();
    let restored = rig.standing(&target, Field(true)).await;
    assert_eq!(
        (restored.generation, restored.stamp.why),
        (flip.generation + 1, Why::Restored)
    );
    let echo = rig.acknowledged(&restored).await;
    settled(&restored, &echo);
}

/// A flip with a reason.
async fn flip(rig: &Rig, target: &Target, change: Change) -> Flip {
    let reason = json!({ "metadata": { "annotations": { keys::REASON: format!("CHG-{}", generation(&rig.get(target).await)) } } });
    let mut patch = change.patch();
    merge(&mut patch, &reason);
    let patch = Patch::Merge(patch);
    let written = rig
        .of(target)
        .patch(&target.name, &PatchParams::default(), &patch)
        .await
        .unwrap();
    rig.flip_of(target, change, &written)
}

fn merge(into: &mut Value, other: &Value) {
    match (into, other) {
        (Value::Object(into), Value::Object(other)) => {
            for (key, value) in other {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, other) => *into = other.clone(),
    }
}

/// What was flipped before the move.
struct Before {
    paused: Flip,
    running: Flip,
}

/// A Machine that is paused by its annotation, and one that was. `clusterctl move` takes both.
async fn flipped(rig: &Rig) -> Before {
    let names = rig.names("Machine").await;
    let machine = |name: &String| Target {
        namespace: NAMESPACE,
        kind: "Machine",
        name: name.clone(),
    };
    let (paused, running) = (machine(&names[0]), machine(&names[1]));
    let denied = rig.dry_run(&paused, Annotation(true)).await.unwrap_err().to_string();
    assert!(denied.contains(keys::REASON), "{denied}");
    let first = flip(rig, &running, Annotation(true)).await;
    rig.acknowledged(&first).await;
    let (paused, running) = tokio::join!(
        flip(rig, &paused, Annotation(true)),
        flip(rig, &running, Annotation(false))
    );
    tokio::join!(rig.acknowledged(&paused), rig.acknowledged(&running));
    Before { paused, running }
}

/// What the garbage collector of a whole control plane does: the Secret that owned these while they were made is gone.
/// `clusterctl` moves nothing whose owner it does not move.
async fn collect_garbage(rig: &Rig) {
    for kind in ["KubeadmControlPlane", "DevCluster"] {
        let target = rig.first(kind).await;
        let mut owners = rig.get(&target).await.metadata.owner_references.unwrap();
        owners.retain(|owner| owner.kind != "Secret");
        let patch = Patch::Merge(json!({ "metadata": { "ownerReferences": owners } }));
        rig.of(&target)
            .patch(&target.name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
}

/// The move itself, while a manager of the target is frozen.
async fn moved(source: &Rig, target: &Rig, tool: &Clusterctl, before: &Before) {
    let cluster = generation(&source.get(&source.cluster()).await);
    target.manager(ManagerKind::Core).freeze().unwrap();
    // As docs/operations.md says: it does not wait for anybody by itself.
    let infrastructure = source.first("DevCluster").await;
    let block = async |value: Option<&str>| {
        let patch = json!({ "metadata": { "annotations": { "clusterctl.cluster.x-k8s.io/block-move": value } } });
        let (api, patch) = (source.of(&infrastructure), Patch::Merge(patch));
        api.patch(&infrastructure.name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    };
    block(Some("")).await;
    let args = ["--kubeconfig", &tool.source, "--to-kubeconfig", &tool.target];
    tokio::join!(tool.run(&args), async {
        support::eventually("it is paused", async || {
            source.is_paused(&source.cluster()).await.then_some(())
        })
        .await;
        let pause = source.standing(&source.cluster(), Field(true)).await;
        source.acknowledged(&pause).await;
        assert_eq!(target.names("Cluster").await, [""; 0], "it did not wait");
        block(None).await;
    });
    assert_eq!(source.names("Cluster").await, [""; 0]);
    for (flip, change) in [(&before.paused, Annotation(true)), (&before.running, Annotation(false))] {
        let moved = target.standing(&flip.target, change).await;
        assert_eq!(
            (moved.generation, moved.stamp.why),
            (flip.generation + 1, Why::Restored)
        );
        assert_eq!(moved.stamp.by, MOVER);
        let object = target.get(&flip.target).await;
        assert_eq!(annotation(&object, keys::OBSERVED_GENERATION), None);
        // What the source's controllers have seen is no answer here.
        target.not_acknowledged(&moved, IMPATIENCE).await;
    }
    target.capi().thaw(ManagerKind::Core).await.unwrap();
    arrived(target, before, cluster).await;
}

/// The stamps go on where they were, and are acknowledged by whom they concern here. `cluster` is the generation that the
/// Cluster had before it was paused for its journey.
async fn arrived(rig: &Rig, before: &Before, cluster: u64) {
    for (flip, change) in [(&before.paused, Annotation(true)), (&before.running, Annotation(false))] {
        let moved = rig.standing(&flip.target, change).await;
        assert_eq!(
            (moved.generation, moved.stamp.why),
            (flip.generation + 1, Why::Restored)
        );
        let echo = rig.acknowledged(&moved).await;
        settled(&moved, &echo);
        assert_eq!(echo.uid, rig.get(&flip.target).await.metadata.uid.unwrap());
    }
    let resumed = rig.standing(&rig.cluster(), Field(false)).await;
    // Paused on the one side, created and resumed on the other.
    assert_eq!(resumed.generation, cluster + 3, "{resumed:?}");
    let echo = rig.acknowledged(&resumed).await;
    settled(&resumed, &echo);
    let object = rig.get(&before.paused.target).await;
    assert_eq!(annotation(&object, ANNOTATION), Some(""));
}

/// The real `clusterctl`, run by the mover.
struct Clusterctl {
    source: String,
    target: String,
    directory: String,
    config: String,
    program: std::path::PathBuf,
}

impl Clusterctl {
    /// Makes both sides ready: it looks for an inventory of providers.
    async fn new(source: &Rig, target: &Rig) -> Self {
        let folder = source.sandbox.folder();
        let provider: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3", "kind": "Provider",
            "metadata": {
                "name": "cluster-api", "namespace": "capi-system",
                "labels": {
                    "clusterctl.cluster.x-k8s.io": "", "clusterctl.cluster.x-k8s.io/core": "inventory",
                    "cluster.x-k8s.io/provider": "cluster-api",
                },
            },
            "providerName": "cluster-api", "type": "CoreProvider", "version": "v1.14.2",
        }))
        .unwrap();
        let kind = GroupVersionKind::gvk("clusterctl.cluster.x-k8s.io", "v1alpha3", "Provider");
        let resource = ApiResource::from_gvk(&kind);
        for rig in [source, target] {
            let api: Api<DynamicObject> = Api::namespaced_with(rig.client.clone(), "capi-system", &resource);
            api.create(&PostParams::default(), &provider).await.unwrap();
        }
        let kubeconfig = |rig: &Rig| rig.sandbox.kubeconfig_for(MOVER, &["system:masters"]).unwrap();
        let text = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
        let (config, directory) = (folder.join("clusterctl.yaml"), folder.join("moved"));
        std::fs::write(&config, "{}\n").unwrap();
        std::fs::create_dir(&directory).unwrap();
        Self {
            source: text(kubeconfig(source)),
            target: text(kubeconfig(target)),
            directory: text(directory),
            config: text(config),
            program: source.sandbox.binaries().capi.as_ref().unwrap().clusterctl(),
        }
    }

    fn command(&self, args: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.program);
        command
            .args(["move", "-n", NAMESPACE, "--config", &self.config])
            .args(args);
        command
            .env("CLUSTERCTL_DISABLE_VERSIONCHECK", "true")
            .env(
                "XDG_CONFIG_HOME",
                std::path::Path::new(&self.config).with_extension("d"),
            )
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, args: &[&str]) {
        let output = self.command(args).output();
        let output = tokio::time::timeout(Duration::from_secs(180), output)
            .await
            .expect("it ends")
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "clusterctl move {args:?}: {said}");
    }

    /// Somebody who is not exempted gets nowhere, and nothing is changed. It tries for minutes: its log tells enough.
    async fn refused(&self, source: &Rig) {
        let before = generation(&source.get(&source.cluster()).await);
        let kubeconfig = source.sandbox.kubeconfig().to_str().unwrap();
        let mut command = self.command(&["--kubeconfig", kubeconfig, "--to-directory", &self.directory, "-v", "9"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let refusal = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if line.contains("denied the request") && line.contains(keys::REASON) {
                    return;
                }
            }
            panic!("it was not refused");
        };
        tokio::time::timeout(Duration::from_secs(60), refusal)
            .await
            .expect("a refusal");
        child.kill().await.unwrap();
        let cluster = source.get(&source.cluster()).await;
        assert_eq!(generation(&cluster), before);
        assert!(!source.is_paused(&source.cluster()).await);
    }
}
