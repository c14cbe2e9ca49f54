//! Whatever comes in, an answer goes out.

use axum::{Router, http::StatusCode};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{PAUSED, cluster, post, review, settings, state, text, with_annotation, with_field};
use crate::{
    admission::router,
    protocol::keys::{ACKNOWLEDGED, GENERATION, STAMP, TOUCH},
    testing::{any_json, cases},
};

thread_local! {
    static SERVED: (Runtime, Router) = (
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        router(state(settings())),
    );
}

/// The status of the answer to a body; one with 200 has the shape that the API server asks for.
fn status(path: &str, body: Vec<u8>) -> StatusCode {
    let (status, answer) =
        SERVED.with(|(runtime, router)| runtime.block_on(async { text(post(router, path, body).await).await }));
    if status == StatusCode::OK {
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert!(answer["response"]["allowed"].is_boolean(), "{answer}");
        assert!(answer["response"]["uid"].is_string(), "{answer}");
    }
    status
}

/// The places of a review, as JSON pointers.
fn places(value: &Value, at: String, found: &mut Vec<String>) {
    let entries: Vec<(String, &Value)> = match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value))
            .collect(),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .map(|(i, value)| (i.to_string(), value))
            .collect(),
        _ => Vec::new(),
    };
    for (key, value) in entries {
        places(value, format!("{at}/{key}"), found);
    }
    found.push(at);
}

fn flip() -> Value {
    let mut old = with_annotation(with_annotation(cluster(), GENERATION, "3"), ACKNOWLEDGED, "running");
    let stamp = json!({
        "generation": 3, "kind": "Cluster.cluster.x-k8s.io", "namespace": "ns", "name": "c1", "uid": "u-1",
        "before": ["spec.paused"], "after": [], "why": "flip", "at": "2026-01-01T11:00:00.000Z",
    });
    old = with_annotation(old, STAMP, &stamp.to_string());
    old["status"] = json!({ "conditions": [{ "type": "Paused", "status": "False" }], "v1beta2": { "conditions": [] } });
    review(
        &old,
        &with_annotation(with_field(with_annotation(old.clone(), PAUSED, ""), true), TOUCH, ""),
    )
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn arbitrary_bytes_are_refused(body in prop::collection::vec(any::<u8>(), 0..300)) {
        for path in ["/mutate", "/validate"] {
            prop_assert_eq!(status(path, body.clone()), StatusCode::BAD_REQUEST);
        }
    }

    #[test]
    fn reviews_with_something_replaced_are_answered(place in any::<prop::sample::Index>(), value in any_json()) {
        let mut review = flip();
        let mut found = Vec::new();
        places(&review, String::new(), &mut found);
        *review.pointer_mut(&found[place.index(found.len())]).unwrap() = value;
        for path in ["/mutate", "/validate"] {
            let status = status(path, review.to_string().into_bytes());
            prop_assert!(matches!(status, StatusCode::OK | StatusCode::BAD_REQUEST), "{status}: {review}");
        }
    }

    #[test]
    fn reviews_with_bytes_changed_or_cut_off_are_answered(
        at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
    ) {
        let mut body = flip().to_string().into_bytes();
        let at = at.index(body.len());
        if cut {
            body.truncate(at);
        } else {
            body[at] = byte;
        }
        for path in ["/mutate", "/validate"] {
            let status = status(path, body.clone());
            prop_assert!(matches!(status, StatusCode::OK | StatusCode::BAD_REQUEST), "{status}");
        }
    }
}

#[test]
fn deep_documents_are_answered() {
    let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    for place in ["object", "oldObject"] {
        // Below the spec nothing is built, however deep it goes.
        let mut review = flip();
        review["request"][place]["spec"]["deep"] = json!("HERE");
        let body = review.to_string().replace("\"HERE\"", &deep(5000));
        assert_eq!(status("/mutate", body.into_bytes()), StatusCode::OK);
    }
    assert_eq!(status("/mutate", deep(100_000).into_bytes()), StatusCode::BAD_REQUEST);
}
