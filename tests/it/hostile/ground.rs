//! A sandbox with Cluster API's kinds and the product, and objects whose controllers the tests play.

use std::{collections::BTreeMap, time::Duration};

use axum::body::{Body, to_bytes};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use pausegen::{
    protocol::keys::{ACKNOWLEDGED, ACKNOWLEDGEMENT, Acknowledgement, GUARDED, STAMP, Stamp},
    sandbox::{
        Sandbox, answers,
        product::{Product, ProductOptions},
    },
};
use serde_json::{Value, json};

use crate::support::{self, eventually};

/// The annotation that pauses.
pub(super) const PAUSED: &str = "cluster.x-k8s.io/paused";
/// The path of the resources that are reached by hand.
pub(super) const CLUSTERS: &str = "/apis/cluster.x-k8s.io/v1beta2";

/// The built-in rules with short times, and a kind that is no CRD: strategic patches are for those alone.
pub(super) fn rules(bound: Duration) -> String {
    format!(
        "apiVersion: pausegen.io/v1alpha1
kind: Rules
extends: capi
stalenessBound: {0}s
grace: {0}s
rules:
- group: batch
  kinds: [CronJob]
  inputs:
  - field: spec.suspend
    match: true
  attestedBy: none
",
        bound.as_secs()
    )
}

/// How long a companion may take to say that something waits.
const SETTLE: Duration = Duration::from_secs(5);
/// How many lines of the product's log are shown when a test fails.
const LOG: usize = 400;
/// How long nothing may move afterwards.
const STILL: Duration = Duration::from_secs(30);

pub(super) struct Ground {
    pub(super) product: Product,
    pub(super) client: Client,
    pub(super) sandbox: Sandbox,
}

impl Ground {
    pub(super) async fn start() -> Self {
        Self::with(ProductOptions {
            rules: Some(rules(Duration::from_secs(2))),
            ..ProductOptions::default()
        })
        .await
    }

    pub(super) async fn with(options: ProductOptions) -> Self {
        let sandbox = support::kinds().await;
        let client = sandbox.client().await.unwrap();
        let product = Box::pin(Product::start(&sandbox, options)).await.unwrap();
        let ground = Self {
            product,
            client,
            sandbox,
        };
        ground.webhook_is_called().await;
        ground
    }

    /// Waits until the API server calls the webhook as it is configured now.
    pub(super) async fn webhook_is_called(&self) {
        let place = self.place("canary").await;
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let canary = place.object("Cluster", "canary", json!({ "spec": { "paused": true } }));
        eventually("the webhook is called", async || {
            let created = place.api("Cluster").create(&dry_run, &canary).await.ok()?;
            annotation(&created, STAMP).map(drop)
        })
        .await;
    }

    /// A namespace, made where it is not there.
    pub(super) async fn place(&self, namespace: &str) -> Place<'_> {
        let mut object = Namespace::default();
        object.metadata.name = Some(namespace.to_owned());
        let api: Api<Namespace> = Api::all(self.client.clone());
        match api.create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.code != 409 => panic!("{status}"),
            _ => {}
        }
        Place {
            ground: self,
            namespace: namespace.to_owned(),
        }
    }

    /// Nothing of all that is there is written for a while, once what is under way has been said.
    pub(super) async fn stands_still(&self) {
        let mut last = BTreeMap::new();
        let before = eventually("it comes to rest", async || {
            let versions = self.versions().await;
            let rests = versions == last;
            last.clone_from(&versions);
            tokio::time::sleep(SETTLE).await;
            rests.then_some(versions)
        })
        .await;
        assert!(before.len() > 20, "{before:?}");
        tokio::time::sleep(STILL).await;
        let after = self.versions().await;
        let moved: Vec<_> = after
            .iter()
            .filter(|entry| before.get(entry.0) != Some(entry.1))
            .collect();
        assert!(moved.is_empty(), "still being written: {moved:?}");
    }

    async fn versions(&self) -> BTreeMap<String, String> {
        let mut versions = BTreeMap::new();
        for kind in ["Cluster", "MachineDeployment", "Machine"] {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &answers::resource(kind).unwrap());
            for object in api.list(&ListParams::default()).await.unwrap() {
                let key = format!(
                    "{kind} {}/{}",
                    object.namespace().unwrap_or_default(),
                    object.name_any()
                );
                versions.insert(key, object.resource_version().unwrap_or_default());
            }
        }
        versions
    }

    /// A request by hand: status, warnings, body.
    pub(super) async fn request(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> (u16, Vec<String>, Value) {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, kind)
            .body(kube::client::Body::from(body.to_string().into_bytes()))
            .unwrap();
        let response = self.client.send(request).await.unwrap();
        let status = response.status().as_u16();
        let warnings = response.headers().get_all(http::header::WARNING).iter();
        let warnings = warnings.map(|value| value.to_str().unwrap().to_owned()).collect();
        let body = to_bytes(Body::new(response.into_body()), usize::MAX).await.unwrap();
        (status, warnings, serde_json::from_slice(&body).unwrap())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let processes = std::iter::once(self.product.admission()).chain(self.product.companion());
        for process in processes {
            let log = std::fs::read_to_string(process.log()).unwrap_or_default();
            println!("== {}", process.name());
            for line in log
                .lines()
                .rev()
                .filter(|line| !line.contains(" stamped "))
                .take(LOG)
                .collect::<Vec<_>>()
                .iter()
                .rev()
            {
                println!("{line}");
            }
        }
    }
}

/// A namespace of the sandbox.
#[derive(Clone)]
pub(super) struct Place<'a> {
    pub(super) ground: &'a Ground,
    pub(super) namespace: String,
}

impl Place<'_> {
    pub(super) fn api(&self, kind: &str) -> Api<DynamicObject> {
        let resource = answers::resource(kind).unwrap_or_else(|| built_in(kind));
        Api::namespaced_with(self.ground.client.clone(), &self.namespace, &resource)
    }

    /// An object of a kind, not yet there.
    pub(super) fn object(&self, kind: &str, name: &str, mut fields: Value) -> DynamicObject {
        let resource = answers::resource(kind).unwrap_or_else(|| built_in(kind));
        fields["apiVersion"] = json!(resource.api_version);
        fields["kind"] = json!(kind);
        if fields["metadata"].is_null() {
            fields["metadata"] = json!({});
        }
        fields["metadata"]["name"] = json!(name);
        fields["metadata"]["namespace"] = json!(self.namespace);
        serde_json::from_value(fields).unwrap()
    }

    pub(super) async fn create(&self, kind: &str, name: &str, fields: Value) -> DynamicObject {
        let object = self.object(kind, name, fields);
        self.api(kind).create(&PostParams::default(), &object).await.unwrap()
    }

    pub(super) async fn get(&self, kind: &str, name: &str) -> DynamicObject {
        self.api(kind).get(name).await.unwrap()
    }

    /// A merge patch.
    pub(super) async fn patch(&self, kind: &str, name: &str, patch: Value) -> kube::Result<DynamicObject> {
        self.api(kind)
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
    }

    /// The controller of an object answers, without saying which revision it has read: that would be evidence by itself.
    pub(super) async fn says(&self, kind: &str, name: &str, paused: bool, message: &str) {
        let present = self.get(kind, name).await;
        let mut conditions: Vec<Value> = present.data["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        conditions.retain(|condition| condition["type"] != "Paused");
        conditions.push(json!({
            "type": "Paused",
            "status": if paused { "True" } else { "False" },
            "reason": if paused { "Paused" } else { "NotPaused" },
            "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }));
        let patch = Patch::Merge(json!({ "status": { "conditions": conditions } }));
        self.api(kind)
            .patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// The controller of a Cluster answers to its field.
    pub(super) async fn cluster_says(&self, name: &str, paused: bool) {
        let message = if paused {
            "Cluster spec.paused is set to true"
        } else {
            ""
        };
        self.says("Cluster", name, paused, message).await;
    }

    /// Waits for this word on a Cluster.
    pub(super) async fn acknowledged(&self, name: &str, word: &str) -> DynamicObject {
        self.acknowledged_as("Cluster", name, word).await
    }

    pub(super) async fn acknowledged_as(&self, kind: &str, name: &str, word: &str) -> DynamicObject {
        eventually(&format!("{kind} {}/{name} is {word}", self.namespace), async || {
            Some(self.get(kind, name).await).filter(|object| annotation(object, ACKNOWLEDGED) == Some(word))
        })
        .await
    }

    /// Clusters that are paused and acknowledged, with something of the user's.
    pub(super) async fn paused(&self, names: &[&str]) {
        for name in names {
            let fields = json!({
                "metadata": { "annotations": { "example.com/keep": "mine" }, "labels": { "example.com/keep": "mine" } },
                "spec": { "paused": true, "clusterNetwork": { "serviceDomain": "mine" } },
            });
            self.create("Cluster", name, fields).await;
            self.cluster_says(name, true).await;
        }
        for name in names {
            self.acknowledged(name, "paused").await;
        }
    }

    /// Runs `kubectl` in this namespace.
    pub(super) async fn kubectl(&self, args: &[&str]) -> String {
        let args: Vec<&str> = ["-n", &self.namespace]
            .into_iter()
            .chain(args.iter().copied())
            .collect();
        self.ground.sandbox.kubectl_ok(&args).await.unwrap()
    }

    /// The path of an object of a resource.
    pub(super) fn path(&self, resource: &str, name: &str) -> String {
        format!("{CLUSTERS}/namespaces/{}/{resource}/{name}", self.namespace)
    }
}

fn built_in(kind: &str) -> ApiResource {
    match kind {
        "CronJob" => ApiResource::from_gvk(&GroupVersionKind::gvk("batch", "v1", kind)),
        _ => panic!("{kind} is not known here"),
    }
}

/// The value of one of an object's annotations.
pub(super) fn annotation<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.annotations().get(key).map(String::as_str)
}

/// Our keys on an object.
pub(super) fn keys(object: &DynamicObject) -> BTreeMap<&'static str, Option<&str>> {
    GUARDED.into_iter().map(|key| (key, annotation(object, key))).collect()
}

pub(super) fn stamp(object: &DynamicObject) -> Stamp {
    serde_json::from_str(annotation(object, STAMP).expect("a stamp")).unwrap()
}

pub(super) fn acknowledgement(object: &DynamicObject) -> Acknowledgement {
    serde_json::from_str(annotation(object, ACKNOWLEDGEMENT).expect("an acknowledgement")).unwrap()
}
