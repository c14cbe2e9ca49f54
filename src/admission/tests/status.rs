//! With which status a call goes out.

use std::convert::Infallible;

use axum::{
    body::{Body, Bytes},
    http::{
        HeaderMap, Method, Request, StatusCode,
        header::{CONNECTION, CONTENT_TYPE},
    },
};
use futures::stream;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{ask, cluster, post, review, settings, state, text, with_field};
use crate::admission::{BODY_LIMIT, router};

async fn call(method: Method, path: &str, content_type: Option<&str>, body: impl Into<Body>) -> (StatusCode, String) {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(content_type) = content_type {
        request = request.header(CONTENT_TYPE, content_type);
    }
    let request = request.body(body.into()).unwrap();
    text(router(state(settings())).oneshot(request).await.unwrap()).await
}

fn flip() -> Value {
    review(&cluster(), &with_field(cluster(), true))
}

#[tokio::test]
async fn content_types() {
    for ok in [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON;x=y",
    ] {
        assert_eq!(
            call(Method::POST, "/mutate", Some(ok), flip().to_string()).await.0,
            StatusCode::OK,
            "{ok}"
        );
    }
    for wrong in [
        None,
        Some(""),
        Some("text/plain"),
        Some("application/jsonx"),
        Some("application/yaml"),
    ] {
        let (status, body) = call(Method::POST, "/validate", wrong, flip().to_string()).await;
        assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{wrong:?}");
        assert!(body.contains("application/json"), "{body}");
    }
}

#[tokio::test]
async fn methods_and_paths() {
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        let (status, _) = call(method, "/mutate", Some("application/json"), flip().to_string()).await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    }
    let (status, _) = call(Method::POST, "/elsewhere", Some("application/json"), "{}").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn bodies_that_are_no_review() {
    let without = |field: &str| {
        let mut review = flip();
        review["request"].as_object_mut().unwrap().remove(field);
        review.to_string()
    };
    let with = |change: &dyn Fn(&mut Value)| {
        let mut review = flip();
        change(&mut review);
        review.to_string()
    };
    let cases = [
        (String::new(), "EOF"),
        ("{".to_owned(), "EOF"),
        ("[]".to_owned(), "AdmissionReview"),
        ("{}".to_owned(), "not AdmissionReview admission.k8s.io/v1"),
        (
            with(&|r| r["apiVersion"] = json!("admission.k8s.io/v1beta1")),
            "admissionReviewVersions",
        ),
        (with(&|r| r["kind"] = json!("ConversionReview")), "ConversionReview"),
        (with(&|r| r["request"] = Value::Null), "no request"),
        (without("uid"), "uid"),
        (with(&|r| r["request"]["uid"] = json!("")), "uid"),
        (with(&|r| r["request"]["uid"] = json!(7)), "expected a string"),
        (without("object"), "no object"),
        (without("oldObject"), "no oldObject"),
        (
            with(&|r| r["request"]["object"]["metadata"] = json!("x")),
            "invalid type",
        ),
    ];
    for path in ["/mutate", "/validate"] {
        for (body, reason) in &cases {
            let (status, answer) = call(Method::POST, path, Some("application/json"), body.clone()).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
            assert!(answer.contains(reason), "{reason} is not in {answer}");
        }
    }
}

#[tokio::test]
async fn timeouts() {
    for ok in ["?timeout=10s", "?timeout=1m0s", "?x=y"] {
        let (status, _) = call(
            Method::POST,
            &format!("/mutate{ok}"),
            Some("application/json"),
            flip().to_string(),
        )
        .await;
        assert_eq!(status, StatusCode::OK, "{ok}");
    }
    for bad in ["?timeout=10", "?timeout=-1s", "?timeout="] {
        let (status, body) = call(
            Method::POST,
            &format!("/mutate{bad}"),
            Some("application/json"),
            flip().to_string(),
        )
        .await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{bad}");
        assert!(body.contains("duration"), "{body}");
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_is_answered_in_the_callers_time() {
    let body = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
    let (status, answer) = call(Method::POST, "/mutate?timeout=100ms", Some("application/json"), body).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT, "{answer}");
}

#[tokio::test]
async fn a_body_of_8_mib_is_read_and_a_larger_one_is_not() {
    let padded = |size: usize| {
        let mut body = flip().to_string();
        body.push_str(&" ".repeat(size - body.len()));
        body
    };
    let (status, _) = call(Method::POST, "/mutate", Some("application/json"), padded(BODY_LIMIT)).await;
    assert_eq!(status, StatusCode::OK);
    let (status, answer) = call(
        Method::POST,
        "/mutate",
        Some("application/json"),
        padded(BODY_LIMIT + 1),
    )
    .await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(answer.contains("8388608"), "{answer}");
    // Of unknown length, too.
    let chunks = stream::iter((0..9).map(|_| Ok::<_, Infallible>(Bytes::from(vec![b' '; 1 << 20]))));
    let (status, _) = call(
        Method::POST,
        "/mutate",
        Some("application/json"),
        Body::from_stream(chunks),
    )
    .await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn health_readiness_and_metrics() {
    let state = state(settings());
    let router = router(state.clone());
    let get = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let headers: HeaderMap = response.headers().clone();
        (text(response).await, headers)
    };
    assert_eq!(get("/healthz").await.0, (StatusCode::OK, "ok\n".to_owned()));
    assert_eq!(get("/readyz").await.0.0, StatusCode::OK);
    ask(&router, "/mutate", &flip()).await;
    ask(&router, "/validate", &flip()).await;
    post(&router, "/mutate", "{").await;
    let ((status, metrics), headers) = get("/metrics").await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        headers[CONTENT_TYPE]
            .to_str()
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    for line in [
        "pausegen_admission_reviews_total{webhook=\"mutate\",outcome=\"stamped\"} 1",
        "pausegen_admission_reviews_total{webhook=\"mutate\",outcome=\"malformed\"} 1",
        "pausegen_admission_reviews_total{webhook=\"validate\",outcome=\"denied\"} 1",
        "pausegen_admission_stamps_total{kind=\"Cluster.cluster.x-k8s.io\",hasty=\"false\"} 1",
        "pausegen_admission_denials_total{kind=\"Cluster.cluster.x-k8s.io\"} 1",
        "pausegen_admission_duration_seconds_count{webhook=\"mutate\"} 2",
        concat!("pausegen_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} is not in\n{metrics}");
    }

    state.ops.stop();
    let ((status, _), headers) = get("/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(headers[CONNECTION], "close");
    assert_eq!(get("/healthz").await.0.0, StatusCode::OK);
    // Whoever still calls is answered.
    assert_eq!(ask(&router, "/mutate", &flip()).await["allowed"], true);
}
