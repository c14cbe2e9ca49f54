//! The manifests and the comparison of rules with a cluster, on a real API server.

use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    rbac::v1::ClusterRole,
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use pausegen::rules::{
    Rules,
    manifests::{Access, CLUSTER_ROLE, CONFIGURATION, Endpoint, Target, cluster_role, webhooks},
    server::{Cluster, ConditionHome, compare},
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
