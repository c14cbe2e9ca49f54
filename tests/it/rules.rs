//! The manifests and the comparison of rules with a cluster, on a real API server.

use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    rbac::v1::ClusterRole,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use pausegen::{
    protocol::{
        GroupKind,
        object::ObjectView,
        stamp::{Concern, concern},
    },
    rules::{
        Rules,
        manifests::{Access, CLUSTER_ROLE, CONFIGURATION, Endpoint, Target, cluster_role, webhooks},
        server::{Cluster, ConditionHome, compare},
    },
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::support;

/// Every kind of input, kinds that gate each other, and names that have to be quoted.
const ODD: &str = r#"
apiVersion: pausegen.io/v1alpha1
kind: Rules
rules:
- group: a.example.com
  kinds: [Foo]
  inputs:
  - {field: spec.active, match: false}
  - {field: spec.namespace.in-x, match: {oneOf: [Hold, "it's"]}}
  - {annotation: a.example.com/b, match: {equals: "x\\'y"}}
  attestedBy: none
- group: b.example.com
  kinds: [Foo]
  inputs: [{field: stop, match: true}]
  attestedBy: none
- group: b.example.com
  kinds: ["*Cluster"]
  except: ["Dev*"]
  inputs: [{annotation: a.example.com/b, match: present}]
  attestedBy: none
- group: b.example.com
  kinds: ["*"]
  except: ["*Template", Odd]
  inputs: [{annotation: a.example.com/b, match: boolean}]
  attestedBy: none
"#;

/// Applies an object in a dry run, and returns what the API server would store.
async fn dry_run<K>(client: &Client, name: &str, object: &K) -> Value
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
        + Clone
        + Serialize
        + DeserializeOwned
        + std::fmt::Debug,
{
    let mut params = PatchParams::apply("rules-test").force();
    params.dry_run = true;
    let stored = Api::<K>::all(client.clone())
        .patch(name, &params, &Patch::Apply(object))
        .await
        .unwrap();
    let mut stored = serde_json::to_value(stored).unwrap();
    stored["metadata"] = json!({ "name": name, "labels": stored["metadata"]["labels"] });
    stored
}

#[tokio::test]
async fn what_is_applied_is_what_is_stored() {
    let sandbox = support::plain().await;
    let client = sandbox.client().await.unwrap();
    let mut target = Target::new(Endpoint::Service {
        namespace: "pausegen-system".to_owned(),
        name: "pausegen".to_owned(),
        port: 443,
    });
    target.ca_bundle = Some(sandbox.ca_pem().as_bytes().to_vec());
    let by_url = Target::new(Endpoint::Url("https://127.0.0.1:1".to_owned()));
    for rules in [Rules::capi().unwrap(), Rules::parse(ODD, "odd").unwrap()] {
        for target in [&target, &by_url] {
            // The API server compiles the conditions: an expression that does not compile is refused.
            let (mutating, validating) = webhooks(&rules, target);
            let stored = dry_run::<MutatingWebhookConfiguration>(&client, CONFIGURATION, &mutating).await;
            assert_eq!(stored, serde_json::to_value(&mutating).unwrap());
            let stored = dry_run::<ValidatingWebhookConfiguration>(&client, CONFIGURATION, &validating).await;
            assert_eq!(stored, serde_json::to_value(&validating).unwrap());
        }
        let role = cluster_role(&rules, &Access::default());
        let stored = dry_run::<ClusterRole>(&client, CLUSTER_ROLE, &role).await;
        assert_eq!(stored, serde_json::to_value(&role).unwrap());
    }
}

/// Rules whose kinds gate each other: which of them counts is told by the kind alone.
const GATES: &str = "
apiVersion: pausegen.io/v1alpha1
kind: Rules
rules:
- group: gates.example.com
  kinds: [Foo]
  inputs: [{field: spec.paused, match: true}]
  attestedBy: none
- group: gates.example.com
  kinds: [\"*Cluster\"]
  except: [DevCluster]
  inputs: [{annotation: gates.example.com/pause, match: present}]
  attestedBy: none
- group: gates.example.com
  kinds: [\"*\"]
  except: [\"*Template\"]
  inputs: [{annotation: gates.example.com/pause, match: boolean}]
  attestedBy: none
";

#[tokio::test]
async fn the_webhook_is_called_for_the_kinds_of_each_rule() {
    let sandbox = support::plain().await;
    let client = sandbox.client().await.unwrap();
    let rules = Rules::parse(GATES, "gates").unwrap();
    let kinds = ["Foo", "BarCluster", "DevCluster", "Bar", "FooTemplate"];
    for kind in kinds {
        let plural = format!("{}s", kind.to_lowercase());
        let crd: CustomResourceDefinition = serde_json::from_value(json!({
            "metadata": { "name": format!("{plural}.gates.example.com") },
            "spec": {
                "group": "gates.example.com",
                "scope": "Cluster",
                "names": { "kind": kind, "plural": plural },
                "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                }}}],
            },
        }))
        .unwrap();
        Api::all(client.clone())
            .create(&PostParams::default(), &crd)
            .await
            .unwrap();
    }
    // Nobody answers there: a write is refused exactly when the API server calls the webhook.
    let nowhere = Target::new(Endpoint::Url("https://127.0.0.1:1".to_owned()));
    let (mut mutating, _) = webhooks(&rules, &nowhere);
    mutating.metadata.name = Some("gates".to_owned());
    Api::all(client.clone())
        .create(&PostParams::default(), &mutating)
        .await
        .unwrap();
    let create = async |kind: &str, object: &Value| {
        let gvk = GroupVersionKind::gvk("gates.example.com", "v1", kind);
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&gvk));
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        api.create(&params, &serde_json::from_value(object.clone()).unwrap())
            .await
    };
    let object = |kind: &str, annotation: &Value, paused: &Value| {
        json!({
            "apiVersion": "gates.example.com/v1",
            "kind": kind,
            "metadata": { "name": "x", "annotations": { "gates.example.com/pause": annotation } },
            "spec": { "paused": paused },
        })
    };
    for kind in kinds {
        let on = object(kind, &json!("true"), &json!(true));
        support::eventually("the kind is served, and the webhook in force", async || {
            match create(kind, &on).await {
                Ok(_) => kind.ends_with("Template").then_some(()),
                Err(error) => error.to_string().contains("failed calling webhook").then_some(()),
            }
        })
        .await;
    }
    for kind in kinds {
        let group_kind = GroupKind::new("gates.example.com", kind);
        for annotation in ["true", "other", ""] {
            for paused in [json!(true), json!("true"), json!([true]), json!(null)] {
                let object = object(kind, &json!(annotation), &paused);
                let view: ObjectView = serde_json::from_value(object.clone()).unwrap();
                let flips = rules
                    .rule_for(&group_kind)
                    .is_some_and(|rule| concern(&rule, None, &view) == Concern::Flip);
                let called = match create(kind, &object).await {
                    Ok(_) => false,
                    Err(error) if error.to_string().contains("failed calling webhook") => true,
                    Err(error) => panic!("{object}: {error}"),
                };
                assert_eq!(called, flips, "{object}");
            }
        }
    }
}

#[tokio::test]
async fn the_preset_fits_cluster_api() {
    let sandbox = support::capi().await;
    let client = sandbox.client().await.unwrap();
    let rules = Rules::capi().unwrap();
    let comparison = compare(&rules, &Cluster::read(&client, &rules).await.unwrap());
    assert_eq!(comparison.problems, Vec::<String>::new());
    // The managers run with leader election, and every kind that looks as if it could be paused has a rule.
    assert_eq!(comparison.warnings, Vec::<String>::new());
    let home = |kind: &str| {
        let installed = comparison.installed.iter().find(|i| i.served.kind.kind == kind);
        installed.unwrap_or_else(|| panic!("{kind} is not installed")).home
    };
    for kind in [
        "Cluster",
        "MachineDeployment",
        "Machine",
        "KubeadmControlPlane",
        "DevMachine",
    ] {
        assert_eq!(home(kind), Some(ConditionHome::Condition), "{kind}");
    }
    assert_eq!(comparison.missing, []);
}

#[tokio::test]
async fn what_the_rules_get_wrong_of_a_cluster_is_told() {
    let sandbox = support::capi().await;
    let client = sandbox.client().await.unwrap();
    let rules = Rules::parse(
        "
apiVersion: pausegen.io/v1alpha1
kind: Rules
rules:
- group: cluster.x-k8s.io
  kinds: [Cluster, Clutser]
  plurals: {Cluster: clusteri}
  inputs:
  - {field: spec.pausde, match: true}
  attestedBy:
  - {name: cluster, by: bound, lease: {name: no-such-lease}}
",
        "wrong",
    )
    .unwrap();
    let comparison = compare(&rules, &Cluster::read(&client, &rules).await.unwrap());
    let has = |list: &[String], text: &str| list.iter().any(|line| line.contains(text));
    assert!(
        has(&comparison.problems, "its resource is clusters, not clusteri"),
        "{comparison:?}"
    );
    assert!(has(&comparison.problems, "has no field spec.pausde"), "{comparison:?}");
    assert!(
        has(&comparison.warnings, "there is no Lease no-such-lease"),
        "{comparison:?}"
    );
    assert!(has(
        &comparison.warnings,
        "MachineDeployment.cluster.x-k8s.io has a field spec.paused, and no rule"
    ));
    assert_eq!(comparison.missing.len(), 1);
}

/// `pausegen rules print | head` is no error.
#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = std::process::Command::new(support::EXE)
        .args(["rules", "print"])
        .stdout(writer)
        .stderr(std::process::Stdio::piped())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}
