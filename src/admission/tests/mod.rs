//! The router, called in-process.

mod answers;
mod fuzz;
mod status;

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode, header::CONTENT_TYPE},
    response::Response,
};
use json_patch::Patch;
use k8s_openapi::ByteString;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{Settings, State, metrics::Metrics, ops::Ops};
use crate::rules::{Rules, live::Live};

const PAUSED: &str = "cluster.x-k8s.io/paused";

fn state(settings: Settings) -> State {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    State {
        rules: Live::fixed(Arc::new(Rules::capi().unwrap())),
        settings: Arc::new(settings),
        clock: Arc::new(|| "2026-01-01T12:00:00Z".parse().unwrap()),
        metrics,
        ops: Ops::new(registry),
    }
}

fn settings() -> Settings {
    Settings {
        companion_users: ["companion".to_owned()].into(),
        ..Settings::default()
    }
}

/// Posts a body, as the API server does.
async fn post(router: &Router, path: &str, body: impl Into<Body>) -> Response {
    let request = Request::post(path)
        .header(CONTENT_TYPE, "application/json")
        .body(body.into())
        .unwrap();
    router.clone().oneshot(request).await.unwrap()
}

async fn text(response: Response) -> (StatusCode, String) {
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// The `response` of an answer with status 200.
async fn ask(router: &Router, path: &str, review: &Value) -> Value {
    let (status, body) = text(post(router, path, review.to_string()).await).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
    answer["response"].clone()
}

/// What an answer makes of the object in its review.
fn patched(review: &Value, response: &Value) -> Value {
    let mut object = review["request"]["object"].clone();
    let Some(patch) = patch(response) else {
        return object;
    };
    json_patch::patch(&mut object, &patch).unwrap();
    object
}

fn patch(response: &Value) -> Option<Patch> {
    let encoded = response.get("patch")?;
    assert_eq!(response["patchType"], "JSONPatch");
    let bytes: ByteString = serde_json::from_value(encoded.clone()).unwrap();
    Some(serde_json::from_slice(&bytes.0).unwrap())
}

/// A Cluster, as the API server has it.
fn cluster() -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {
            "name": "c1", "namespace": "ns", "uid": "u-1", "generation": 3, "resourceVersion": "17",
            "managedFields": [{ "manager": "kubectl", "operation": "Update", "fieldsV1": { "f:spec": {} } }],
        },
        "spec": { "clusterNetwork": { "pods": { "cidrBlocks": ["192.168.0.0/16"] } } },
    })
}

/// An object with `spec.paused` set.
fn with_field(mut object: Value, paused: bool) -> Value {
    object["spec"]["paused"] = json!(paused);
    object
}

/// An object with an annotation set.
fn with_annotation(mut object: Value, key: &str, value: &str) -> Value {
    object["metadata"]["annotations"][key] = json!(value);
    object
}

/// The review of an UPDATE, or of a CREATE where there is no old object.
fn review(old: &Value, new: &Value) -> Value {
    let operation = if old.is_null() { "CREATE" } else { "UPDATE" };
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": { "group": "cluster.x-k8s.io", "version": "v1beta2", "kind": new["kind"] },
            "resource": { "group": "cluster.x-k8s.io", "version": "v1beta2", "resource": "clusters" },
            "name": "c1", "namespace": "ns", "operation": operation,
            "userInfo": { "username": "ann", "groups": ["system:authenticated"] },
            "object": new, "oldObject": old, "dryRun": false,
            "options": { "apiVersion": "meta.k8s.io/v1", "kind": "UpdateOptions" },
        },
    })
}
