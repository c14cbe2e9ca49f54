//! What a review costs: the whole handler on a flip and on a put back of a real Cluster, without TLS.
//!
//! `tests/data/cluster.json` is a Cluster as Cluster API's in-memory ClusterClass makes it, with all that a review
//! carries of it (managed fields above all). The review holds it twice.
//!
//! criterion's figures are wall time. Where the kernel tells how long this thread had a CPU, reviews per CPU-second are
//! printed as well: on a busy machine only they can be compared.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::{hint::black_box, sync::Arc};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    http::{Request, StatusCode, header::CONTENT_TYPE},
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use jiff::Timestamp;
use pausegen::{
    admission::{self, Settings, metrics::Metrics, ops::Ops, router},
    rules::{Rules, live::Live},
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tower::ServiceExt as _;

const CLUSTER: &str = include_str!("../tests/data/cluster.json");

fn review(change: impl FnOnce(&mut Value)) -> Bytes {
    let old: Value = serde_json::from_str(CLUSTER).unwrap();
    let mut new = old.clone();
    change(&mut new);
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": { "group": "cluster.x-k8s.io", "version": "v1beta2", "kind": "Cluster" },
            "resource": { "group": "cluster.x-k8s.io", "version": "v1beta2", "resource": "clusters" },
            "requestKind": { "group": "cluster.x-k8s.io", "version": "v1beta2", "kind": "Cluster" },
            "requestResource": { "group": "cluster.x-k8s.io", "version": "v1beta2", "resource": "clusters" },
            "name": old["metadata"]["name"], "namespace": old["metadata"]["namespace"], "operation": "UPDATE",
            "userInfo": { "username": "kubernetes-admin", "groups": ["system:masters", "system:authenticated"] },
            "object": new, "oldObject": old, "dryRun": false,
            "options": { "kind": "PatchOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "kubectl-patch" },
        },
    });
    Bytes::from(review.to_string())
}

fn state() -> admission::State {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    admission::State {
        rules: Live::fixed(Arc::new(Rules::capi().unwrap())),
        settings: Arc::new(Settings::default()),
        clock: Arc::new(Timestamp::now),
        metrics,
        ops: Ops::new(registry),
    }
}

async fn call(router: Router, path: &str, body: Bytes) -> Bytes {
    let request = Request::post(format!("{path}?timeout=10s"))
        .header(CONTENT_TYPE, "application/json")
        .body(Body::from(body))
        .unwrap();
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    to_bytes(response.into_body(), usize::MAX).await.unwrap()
}

fn admission(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let router = router(state());
    let flip = review(|cluster| cluster["spec"]["paused"] = json!(true));
    let keys = review(|cluster| cluster["metadata"]["annotations"]["pausegen.io/generation"] = json!("9"));
    let mut group = criterion.benchmark_group("admission");
    group.throughput(Throughput::Elements(1));
    for (name, body) in [("flip", &flip), ("put-back", &keys)] {
        let answer = runtime.block_on(call(router.clone(), "/mutate", body.clone()));
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(answer["response"]["patch"].is_string(), "{answer}");
        println!("{name}: a review of {} bytes", body.len());
        if let Some(rate) = per_cpu_second(|| drop(runtime.block_on(call(router.clone(), "/mutate", body.clone())))) {
            println!("{name}: {rate:.0} reviews per CPU-second");
        }
        group.bench_function(name, |bencher| {
            bencher.iter(|| runtime.block_on(call(router.clone(), "/mutate", black_box(body.clone()))));
        });
    }
    group.finish();
}

/// How often something can be done in a second of this thread's CPU time.
fn per_cpu_second(mut act: impl FnMut()) -> Option<f64> {
    const TIMES: u32 = 20_000;
    let on_cpu = || -> Option<u64> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    let before = on_cpu()?;
    (0..TIMES).for_each(|_| act());
    let nanoseconds = on_cpu()?.checked_sub(before).filter(|spent| *spent > 0)?;
    Some(f64::from(TIMES) * 1e9 / nanoseconds as f64)
}

criterion_group!(benches, admission);
criterion_main!(benches);
