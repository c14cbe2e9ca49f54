//! The stage: a Fleet that hands its pause down to its Ships, whose controllers the test plays.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use pausegen::protocol::keys::Acknowledgement;
use serde_json::{Value, json};

use crate::support::{self, eventually};

pub(crate) const GROUP: &str = "sea.example.org";

/// A Fleet hands its pause down to its Ships. Short times, so that nothing here takes long.
pub(crate) const RULES: &str = "
apiVersion: pausegen.io/v1alpha1
kind: Rules
stalenessBound: 3s
grace: 3s
rules:
- group: sea.example.org
  kinds: [Fleet]
  inputs:
  - field: spec.paused
    match: true
    inherited: true
  - annotation: sea.example.org/paused
    match: present
  members:
    label: sea.example.org/fleet
  attestedBy:
  - name: fleet
    condition:
      type: Paused
      messages:
      - own: spec.paused
        endsWith: spec.paused
      - own: sea.example.org/paused
        endsWith: annotation
- group: sea.example.org
  kinds: [Ship]
  inherits: true
  inputs:
  - annotation: sea.example.org/paused
    match: present
  attestedBy:
  - name: ship
    condition:
      type: Paused
      messages:
      - inherited: spec.paused
        endsWith: spec.paused
      - own: sea.example.org/paused
        endsWith: annotation
";

pub(crate) fn resource(kind: &str) -> ApiResource {
    ApiResource {
        group: GROUP.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{GROUP}/v1"),
        kind: kind.to_owned(),
        plural: format!("{}s", kind.to_lowercase()),
    }
}

pub(crate) async fn define(client: &Client, kind: &str) {
    let ar = resource(kind);
    let condition = json!({"type": "object", "properties": {
        "type": {"type": "string"}, "status": {"type": "string"}, "reason": {"type": "string"},
        "message": {"type": "string"}, "observedGeneration": {"type": "integer"},
        "lastTransitionTime": {"type": "string", "format": "date-time"}}});
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{GROUP}", ar.plural)},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"kind": kind, "plural": ar.plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"paused": {"type": "boolean"}, "size": {"type": "integer"}}},
                    "status": {"type": "object", "properties": {"conditions": {"type": "array", "items": condition}}}}}}
            }]
        }
    }))
    .unwrap();
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    api.create(&PostParams::default(), &definition).await.unwrap();
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), &ar);
    eventually("the kind is served", async || {
        objects.list(&kube::api::ListParams::default()).await.ok()
    })
    .await;
}

/// The stage: a Fleet with two Ships in a namespace.
pub(crate) struct Sea {
    pub(crate) fleets: Api<DynamicObject>,
    pub(crate) ships: Api<DynamicObject>,
}

impl Sea {
    pub(crate) async fn new(client: &Client) -> Self {
        let sea = Self {
            fleets: Api::namespaced_with(client.clone(), "default", &resource("Fleet")),
            ships: Api::namespaced_with(client.clone(), "default", &resource("Ship")),
        };
        let object = |kind: &str, name: &str, labels: Value| -> DynamicObject {
            serde_json::from_value(json!({
                "apiVersion": format!("{GROUP}/v1"), "kind": kind,
                "metadata": {"name": name, "labels": labels}, "spec": {}
            }))
            .unwrap()
        };
        let fleet = object("Fleet", "armada", json!({}));
        sea.fleets.create(&PostParams::default(), &fleet).await.unwrap();
        for name in ["nina", "pinta"] {
            let ship = object("Ship", name, json!({"sea.example.org/fleet": "armada"}));
            sea.ships.create(&PostParams::default(), &ship).await.unwrap();
        }
        sea.answer("armada", "nina", "pinta", false).await;
        sea
    }

    /// The controllers of all three answer.
    pub(crate) async fn answer(&self, fleet: &str, one: &str, other: &str, paused: bool) {
        says(&self.fleets, fleet, paused).await;
        says(&self.ships, one, paused).await;
        says(&self.ships, other, paused).await;
    }

    pub(crate) async fn pause(&self, paused: bool) -> DynamicObject {
        let patch = Patch::Merge(json!({"spec": {"paused": paused}}));
        self.fleets
            .patch("armada", &PatchParams::default(), &patch)
            .await
            .unwrap()
    }

    pub(crate) async fn fleet(&self) -> DynamicObject {
        self.fleets.get("armada").await.unwrap()
    }

    /// Waits for this word.
    pub(crate) async fn acknowledged(&self, word: &str) -> DynamicObject {
        eventually(word, async || {
            Some(self.fleet().await).filter(|fleet| annotation(fleet, "acknowledged") == word)
        })
        .await
    }
}

/// A controller writes its condition.
pub(crate) async fn says(api: &Api<DynamicObject>, name: &str, paused: bool) {
    support::condition(api, name, |_| {
        json!({
            "type": "Paused", "status": if paused { "True" } else { "False" },
            "reason": if paused { "Paused" } else { "NotPaused" },
            "message": if paused { "spec.paused" } else { "" },
            "lastTransitionTime": "2024-01-01T00:00:00Z"
        })
    })
    .await;
}

pub(crate) fn annotation(object: &DynamicObject, key: &str) -> String {
    let annotations = object.metadata.annotations.as_ref();
    annotations
        .and_then(|all| all.get(&format!("pausegen.io/{key}")).cloned())
        .unwrap_or_default()
}

pub(crate) fn acknowledgement(object: &DynamicObject) -> Acknowledgement {
    serde_json::from_str(&annotation(object, "acknowledgement")).unwrap()
}

pub(crate) fn condition(object: &DynamicObject) -> Option<&Value> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == "PauseAcknowledged")
}
