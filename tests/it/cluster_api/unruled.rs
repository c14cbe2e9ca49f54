//! Kinds that nobody answers for.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use pausegen::protocol::condition::NOT_REPORTING;
use pausegen::sandbox::product::{ProductOptions, short_rules};
use serde_json::{Value, json};

use super::rig::Change::Field;
use super::rig::{BOUND, CLUSTER, NAMESPACE, Rig};
use crate::support;

/// In a group that no rule is for.
const UNRULED: (&str, &str) = ("toys.example.com", "ToyMachine");
/// In a group with a rule, but no controller writes its condition.
const SILENT: (&str, &str) = ("infrastructure.cluster.x-k8s.io", "SilentMachine");

/// It says who does not report and what to do, and does not acknowledge; when the rules leave them out it does, and
/// the record names them. Returns the rules at the end.
pub(super) async fn not_reporting(rig: &mut Rig) -> String {
    for (index, (group, kind)) in [UNRULED, SILENT].into_iter().enumerate() {
        infrastructure(rig, group, kind, &format!("odd-{index}")).await;
    }
    let cluster = rig.cluster();
    rig.run(&cluster).await;
    let flip = rig.flip(&cluster, Field(true)).await;
    let names = |message: &str| {
        [
            "ToyMachine.toys.example.com default/odd-0",
            "SilentMachine.infrastructure.cluster.x-k8s.io",
            "default/odd-1",
        ]
        .iter()
        .all(|name| message.contains(name))
    };
    let message = rig.unknown(&cluster, NOT_REPORTING, names).await;
    assert!(message.contains("attestedBy: none"), "no remedy: {message}");
    nudge(rig).await;

    let rules = format!(
        "{}rules:\n{}{}",
        short_rules(BOUND, BOUND),
        left_out(UNRULED),
        left_out(SILENT)
    );
    rig.replace_product(ProductOptions {
        rules: Some(rules.clone()),
        ..ProductOptions::default()
    })
    .await;
    nudge(rig).await;
    let echo = rig.acknowledged(&flip).await;
    for kind in ["ToyMachine", "SilentMachine"] {
        assert!(
            echo.excluded.iter().any(|excluded| excluded.contains(kind)),
            "{kind} is not named: {echo:?}"
        );
    }
    rules
}

fn left_out((group, kind): (&str, &str)) -> String {
    format!("- group: {group}\n  kinds: [{kind}]\n  inherits: true\n  attestedBy: none\n")
}

/// A Machine's controller does not notice a flip of its Cluster where its infrastructure says nothing: not before the
/// next resync. A write makes it look.
async fn nudge(rig: &Rig) {
    for name in ["odd-0", "odd-1"] {
        let patch = json!({ "metadata": { "labels": { "example.com/nudge": format!("{}", jiff::Timestamp::now().as_second()) } } });
        rig.api("Machine")
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }
}

/// A kind of infrastructure, an object of it, and a Machine of the Cluster that refers to it.
async fn infrastructure(rig: &Rig, group: &str, kind: &str, name: &str) {
    let plural = format!("{}s", kind.to_lowercase());
    let crds: Api<CustomResourceDefinition> = Api::all(rig.client.clone());
    let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {
            "name": format!("{plural}.{group}"),
            "labels": { "cluster.x-k8s.io/v1beta1": "v1beta2", "cluster.x-k8s.io/v1beta2": "v1beta2" },
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "versions": [{
                "name": "v1beta2", "served": true, "storage": true,
                "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": open, "status": open } } },
            }],
        },
    }))
    .unwrap();
    crds.create(&PostParams::default(), &definition).await.unwrap();
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1beta2", kind), &plural);
    let objects: Api<DynamicObject> = Api::namespaced_with(rig.client.clone(), NAMESPACE, &resource);
    let object = object(json!({
        "apiVersion": format!("{group}/v1beta2"), "kind": kind,
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {},
    }));
    support::eventually(&format!("{kind} is served"), async || {
        objects.create(&PostParams::default(), &object).await.ok()
    })
    .await;
    let machine = self::object(json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "clusterName": CLUSTER,
            "bootstrap": { "dataSecretName": "none" },
            "infrastructureRef": { "apiGroup": group, "kind": kind, "name": name },
        },
    }));
    rig.api("Machine")
        .create(&PostParams::default(), &machine)
        .await
        .unwrap();
    support::eventually(
        &format!("the Machine {name} has its owner, and its infrastructure too"),
        async || {
            let owned =
                |object: &DynamicObject| object.metadata.owner_references.as_ref().is_some_and(|o| !o.is_empty());
            let (machine, object) = (rig.api("Machine").get(name).await.ok()?, objects.get(name).await.ok()?);
            (owned(&machine) && owned(&object)).then_some(())
        },
    )
    .await;
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}
