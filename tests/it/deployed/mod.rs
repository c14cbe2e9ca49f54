//! Small kinds on a plain API server, under the running product. The test plays their controllers.

mod chart;
mod doctor;
mod ecosystem;
mod hands;
mod production;
mod scope;

use std::process::Output;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use pausegen::protocol::keys::{self, Acknowledgement};
use pausegen::sandbox::Sandbox;
use pausegen::sandbox::product::{Product, ProductOptions};
use serde_json::{Value, json};

use crate::support::{self, eventually};

/// A sandbox with the product.
struct Stage {
    // The order of the fields is the order in which they end.
    product: Product,
    client: Client,
    sandbox: Sandbox,
}

impl Stage {
    /// Starts everything with these rules, after these kinds have been defined.
    async fn start(rules: &str, toys: &[Toy]) -> Self {
        let sandbox = support::private_plain().await;
        let client = sandbox.client().await.unwrap();
        for toy in toys {
            toy.define(&client).await;
        }
        let options = ProductOptions {
            rules: Some(rules.to_owned()),
            ..ProductOptions::default()
        };
        let product = Box::pin(Product::start(&sandbox, options)).await.unwrap();
        Self {
            product,
            client,
            sandbox,
        }
    }

    fn api(&self, toy: &Toy) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), "default", &toy.resource())
    }

    /// Creates an object and returns it with its API.
    async fn create(&self, toy: &Toy, name: &str, fields: Value) -> Object {
        let api = self.api(toy);
        api.create(&PostParams::default(), &toy.object(name, fields))
            .await
            .unwrap();
        Object {
            api,
            name: name.to_owned(),
        }
    }

    /// Runs `pausegen` with a kubeconfig, without a terminal.
    async fn pausegen(&self, args: &[&str]) -> Said {
        self.pausegen_as(self.sandbox.kubeconfig(), args).await
    }

    async fn pausegen_as(&self, kubeconfig: &std::path::Path, args: &[&str]) -> Said {
        let mut command = tokio::process::Command::new(support::EXE);
        command.args(args).arg("--kubeconfig").arg(kubeconfig);
        command.stdin(std::process::Stdio::null()).kill_on_drop(true);
        command.output().await.unwrap().into()
    }
}

/// What a command wrote.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// A kind.
#[derive(Clone, Copy, Debug)]
struct Toy {
    group: &'static str,
    kind: &'static str,
    /// The schema of `spec`, as its properties.
    spec: fn() -> Value,
    /// Whether the items of `status.conditions` keep `observedGeneration`.
    observes: bool,
}

impl Toy {
    const fn new(group: &'static str, kind: &'static str, spec: fn() -> Value) -> Self {
        Self {
            group,
            kind,
            spec,
            observes: true,
        }
    }

    fn resource(&self) -> ApiResource {
        let plural = format!("{}s", self.kind.to_lowercase());
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(self.group, "v1", self.kind), &plural)
    }

    fn definition(&self) -> CustomResourceDefinition {
        let resource = self.resource();
        let mut condition = json!({
            "type": { "type": "string" }, "status": { "type": "string" }, "reason": { "type": "string" },
            "message": { "type": "string" }, "lastTransitionTime": { "type": "string", "format": "date-time" },
        });
        if self.observes {
            condition["observedGeneration"] = json!({ "type": "integer" });
        }
        serde_json::from_value(json!({
            "metadata": { "name": format!("{}.{}", resource.plural, self.group) },
            "spec": {
                "group": self.group, "scope": "Namespaced",
                "names": {
                    "kind": self.kind, "plural": resource.plural, "singular": self.kind.to_lowercase(),
                    "listKind": format!("{}List", self.kind),
                },
                "versions": [{
                    "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                    "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                        "spec": { "type": "object", "properties": (self.spec)() },
                        "status": { "type": "object", "properties": {
                            "observedGeneration": { "type": "integer" },
                            "conditions": { "type": "array", "items": { "type": "object", "properties": condition } },
                        } },
                    } } },
                }],
            },
        }))
        .unwrap()
    }

    /// Makes the kind and waits until it is served.
    async fn define(&self, client: &Client) {
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        api.create(&PostParams::default(), &self.definition()).await.unwrap();
        let objects: Api<DynamicObject> = Api::all_with(client.clone(), &self.resource());
        eventually(&format!("{} is served", self.kind), async || {
            objects.list(&ListParams::default()).await.ok()
        })
        .await;
    }

    fn object(&self, name: &str, mut fields: Value) -> DynamicObject {
        let resource = self.resource();
        fields["apiVersion"] = json!(resource.api_version);
        fields["kind"] = json!(resource.kind);
        if fields["metadata"].is_null() {
            fields["metadata"] = json!({});
        }
        fields["metadata"]["name"] = json!(name);
        serde_json::from_value(fields).unwrap()
    }
}

/// An object.
struct Object {
    api: Api<DynamicObject>,
    name: String,
}

impl Object {
    async fn get(&self) -> DynamicObject {
        self.api.get(&self.name).await.unwrap()
    }

    /// A merge patch.
    async fn patch(&self, patch: Value) -> DynamicObject {
        let patch = Patch::Merge(patch);
        self.api
            .patch(&self.name, &PatchParams::default(), &patch)
            .await
            .unwrap()
    }

    /// A merge patch that flips: the answer carries a stamp.
    async fn flip(&self, patch: Value) -> DynamicObject {
        let flipped = self.patch(patch).await;
        assert_eq!(
            annotation(&flipped, keys::ACKNOWLEDGED),
            Some(keys::PENDING),
            "{flipped:?}"
        );
        flipped
    }

    /// A controller writes a condition, at the generation that it has read; the others stay.
    async fn says(&self, type_: &str, status: &str, reason: &str, message: &str) {
        support::condition(&self.api, &self.name, |object| {
            json!({
                "type": type_, "status": status, "reason": reason, "message": message,
                "observedGeneration": object.metadata.generation, "lastTransitionTime": "2024-01-01T00:00:00Z",
            })
        })
        .await;
    }

    async fn status(&self, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api
            .patch_status(&self.name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// Waits for this word.
    async fn acknowledged(&self, word: &str) -> Acknowledgement {
        let object = eventually(&format!("{} is acknowledged: {word}", self.name), async || {
            Some(self.get().await).filter(|object| annotation(object, keys::ACKNOWLEDGED) == Some(word))
        })
        .await;
        let echo: Acknowledgement = serde_json::from_str(annotation(&object, keys::ACKNOWLEDGEMENT).unwrap()).unwrap();
        assert_eq!(echo.generation, generation(&object));
        echo
    }

    /// Waits for a condition, and for what it has to say.
    async fn condition(&self, type_: &str, is_right: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{} has its {type_}", self.name), async || {
            condition(&self.get().await, type_).filter(|condition| is_right(condition))
        })
        .await
    }
}

fn annotation<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn generation(object: &DynamicObject) -> u64 {
    annotation(object, keys::GENERATION).map_or(0, |text| keys::parse_generation(text).unwrap())
}

fn conditions(object: &DynamicObject) -> Vec<Value> {
    object.data["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default()
}

fn condition(object: &DynamicObject, type_: &str) -> Option<Value> {
    conditions(object)
        .into_iter()
        .find(|condition| condition["type"] == type_)
}

fn paused(on: bool) -> Value {
    json!({ "spec": { "paused": on } })
}
