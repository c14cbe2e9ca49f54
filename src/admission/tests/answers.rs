//! What an answer says.

use json_patch::PatchOperation;
use serde_json::{Value, json};

use super::{PAUSED, ask, cluster, patch, patched, review, settings, state, with_annotation, with_field};
use crate::{
    admission::{RecordUser, Settings, router},
    protocol::{
        keys::{GENERATION, REASON, STAMP, TOUCH},
        stamp::{Policies, Policy},
    },
    rules::manifests::FailurePolicy,
};

/// What `/mutate` makes of a write, and its answer.
async fn mutate(settings: Settings, review: &Value) -> (Value, Value) {
    let response = ask(&router(state(settings)), "/mutate", review).await;
    (patched(review, &response), response)
}

fn stamp(object: &Value) -> Value {
    serde_json::from_str(object["metadata"]["annotations"][STAMP].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn a_flip_is_stamped() {
    let review = review(&cluster(), &with_field(cluster(), true));
    let (object, response) = mutate(settings(), &review).await;
    assert_eq!(response["allowed"], true);
    assert_eq!(
        response["auditAnnotations"],
        json!({
            "decision": "stamped", "stamp-1": r#"{"hasty":false,"before":"nothing","after":"spec.paused"}"#,
        })
    );
    let annotations = &object["metadata"]["annotations"];
    assert_eq!(annotations["pausegen.io/generation"], "1");
    assert_eq!(annotations["pausegen.io/observed-generation"], "0");
    assert_eq!(annotations["pausegen.io/acknowledged"], "pending");
    assert_eq!(
        stamp(&object),
        json!({
            "generation": 1, "kind": "Cluster.cluster.x-k8s.io", "namespace": "ns", "name": "c1", "uid": "u-1",
            "before": [], "after": ["spec.paused"], "why": "flip", "objectGeneration": 4,
            "at": "2026-01-01T12:00:00.000Z", "by": "ann",
        })
    );
    // It is what the validating webhook then asks for.
    let mut last = review.clone();
    last["request"]["object"] = object.clone();
    let response = ask(&router(state(settings())), "/validate", &last).await;
    assert_eq!((&response["allowed"], response.get("patch")), (&json!(true), None));
    // Called again, it changes nothing.
    let (again, response) = mutate(settings(), &last).await;
    assert_eq!(again, object);
    assert_eq!(response.get("patch"), None);
}

#[tokio::test]
async fn the_map_is_made_where_there_is_none() {
    let mut null = with_field(cluster(), true);
    null["metadata"]["annotations"] = Value::Null;
    let mut empty = with_field(cluster(), true);
    empty["metadata"]["annotations"] = json!({});
    for new in [with_field(cluster(), true), null, empty] {
        let (object, _) = mutate(settings(), &review(&cluster(), &new)).await;
        assert_eq!(object["metadata"]["annotations"]["pausegen.io/generation"], "1");
    }
    let new = with_annotation(with_field(cluster(), true), "example.com/a~b", "kept");
    let review = review(&cluster(), &new);
    let (object, response) = mutate(settings(), &review).await;
    assert_eq!(object["metadata"]["annotations"]["example.com/a~b"], "kept");
    let patch = patch(&response).unwrap();
    assert!(patch.0.iter().all(|operation| {
        matches!(operation, PatchOperation::Add(_))
            && operation
                .path()
                .as_str()
                .starts_with("/metadata/annotations/pausegen.io~1")
    }));
}

#[tokio::test]
async fn forged_keys_are_removed_with_nothing_left_behind() {
    let forged = with_annotation(cluster(), GENERATION, "9");
    let (object, response) = mutate(settings(), &review(&cluster(), &forged)).await;
    assert_eq!(object, cluster());
    assert_eq!(response["auditAnnotations"]["decision"], "put-back");
    assert_eq!(response["warnings"].as_array().unwrap().len(), 1);

    let old = with_annotation(cluster(), "example.com/a", "b");
    let forged = with_annotation(with_annotation(old.clone(), GENERATION, "9"), TOUCH, "");
    let (object, _) = mutate(settings(), &review(&old, &forged)).await;
    assert_eq!(object["metadata"]["annotations"].get(TOUCH), None);
    assert_eq!(object["metadata"]["annotations"]["example.com/a"], "b");
}

#[tokio::test]
async fn what_is_no_business_of_ours_passes_unchanged() {
    let flip = review(&cluster(), &with_field(cluster(), true));
    let change = |change: &dyn Fn(&mut Value)| {
        let mut review = flip.clone();
        change(&mut review["request"]);
        review
    };
    let cases = [
        change(&|r| r["kind"] = json!({ "group": "apps", "version": "v1", "kind": "Deployment" })),
        change(&|r| r["kind"] = json!({ "group": "cluster.x-k8s.io", "version": "v1", "kind": "ClusterX" })),
        change(&|r| r["subResource"] = json!("status")),
        change(&|r| {
            r["operation"] = json!("DELETE");
            r["object"] = Value::Null;
        }),
        change(&|r| r["operation"] = json!("CONNECT")),
        change(&|r| r["object"] = cluster()),
        change(&|r| r["object"] = with_annotation(cluster(), "example.com/a", "b")),
    ];
    for path in ["/mutate", "/validate"] {
        for review in &cases {
            let response = ask(&router(state(settings())), path, review).await;
            assert_eq!(response["allowed"], true, "{review}");
            assert_eq!(response.get("patch"), None, "{review}");
            assert_eq!(response.get("warnings"), None, "{review}");
        }
    }
}

#[tokio::test]
async fn created_paused() {
    let mut new = with_field(cluster(), true);
    for field in ["uid", "generation", "resourceVersion"] {
        new["metadata"].as_object_mut().unwrap().remove(field);
    }
    let review = review(&Value::Null, &new);
    let (object, _) = mutate(settings(), &review).await;
    let stamp = stamp(&object);
    assert_eq!((&stamp["why"], stamp.get("uid")), (&json!("created"), None));
    assert_eq!(
        object["metadata"]["annotations"].get("pausegen.io/observed-generation"),
        None
    );
    let mut last = review.clone();
    last["request"]["object"] = object;
    let response = ask(&router(state(settings())), "/validate", &last).await;
    assert_eq!(response["allowed"], true);
}

#[tokio::test]
async fn an_unstamped_flip_is_denied_under_fail_and_warned_of_under_ignore() {
    let review = review(&cluster(), &with_field(cluster(), true));
    let response = ask(&router(state(settings())), "/validate", &review).await;
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"]["code"], 403);
    assert_eq!(response["status"]["reason"], "Forbidden");
    let message = response["status"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("reinvocationPolicy: IfNeeded"), "{message}");

    let ignore = Settings {
        flip_failure_policy: FailurePolicy::Ignore,
        ..settings()
    };
    let response = ask(&router(state(ignore)), "/validate", &review).await;
    assert_eq!(response["allowed"], true);
    let warnings: Vec<&str> = response["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w.as_str().unwrap())
        .collect();
    assert_eq!(warnings.join(" "), message);
    assert!(warnings.iter().all(|warning| warning.len() < 256), "{warnings:?}");
}

#[tokio::test]
async fn a_policy_denies_with_what_to_do() {
    let strict = || Settings {
        policies: Policies {
            hasty: Policy::Off,
            require_reason: Policy::Deny,
        },
        exempt_users: ["mover".to_owned()].into(),
        ..settings()
    };
    let mut flip = review(&cluster(), &with_field(cluster(), true));
    let (_, response) = mutate(strict(), &flip).await;
    assert_eq!(response["allowed"], false);
    assert_eq!(
        (&response["status"]["code"], response.get("patch")),
        (&json!(403), None)
    );
    assert!(response["status"]["message"].as_str().unwrap().contains(REASON));
    assert_eq!(response["auditAnnotations"]["decision"], "denied");
    flip["request"]["userInfo"]["username"] = json!("mover");
    assert_eq!(mutate(strict(), &flip).await.1["allowed"], true);
    let reasoned = with_annotation(with_field(cluster(), true), REASON, "CHG-1");
    let (object, _) = mutate(strict(), &review(&cluster(), &reasoned)).await;
    assert_eq!(stamp(&object)["reason"], "CHG-1");
}

#[tokio::test]
async fn how_the_user_is_recorded() {
    let mut flip = review(&cluster(), &with_field(cluster(), true));
    flip["request"]["userInfo"]["username"] = json!("x".repeat(1000));
    for (record_user, by) in [
        (RecordUser::Full, Some("x".repeat(256))),
        // printf %s xxx... | sha256sum, of a thousand.
        (RecordUser::Hash, Some("44f8354494a5ba03".to_owned())),
        (RecordUser::Off, None),
    ] {
        let settings = Settings {
            record_user,
            ..settings()
        };
        let (object, _) = mutate(settings, &flip).await;
        assert_eq!(
            stamp(&object).get("by").cloned(),
            by.map(Value::String),
            "{record_user:?}"
        );
    }
}

#[tokio::test]
async fn dry_runs_get_the_same_answer() {
    let flip = review(&cluster(), &with_annotation(cluster(), PAUSED, ""));
    let mut dry = flip.clone();
    dry["request"]["dryRun"] = json!(true);
    assert_eq!(mutate(settings(), &flip).await, mutate(settings(), &dry).await);
}

#[tokio::test]
async fn an_odd_status_does_not_keep_an_object_from_being_paused() {
    for status in [
        json!("Ready"),
        json!([1]),
        json!({ "conditions": "none", "observedGeneration": "4" }),
        json!({ "conditions": { "Ready": true }, "v1beta2": [] }),
        json!({ "conditions": [null, 1, { "type": 7, "status": true, "message": null, "observedGeneration": 1.5 }] }),
        json!({ "v1beta2": { "conditions": null } }),
    ] {
        let mut old = cluster();
        old["status"] = status;
        let (object, _) = mutate(settings(), &review(&old, &with_field(old.clone(), true))).await;
        assert_eq!(object["metadata"]["annotations"][GENERATION], "1");
    }
}
