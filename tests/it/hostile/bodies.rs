//! Bodies that are as bad as they can be within the limit: each is answered, and none takes much memory.

use std::{process::Stdio, sync::Arc};

use pausegen::admission::BODY_LIMIT;
use serde_json::json;

use crate::{
    admission::serve::{Folder, Process, command, free, over_tls, plain},
    support,
};

/// The most memory that the process may ever have had, in KiB: a body, and what is kept of it.
const MOST: u64 = 128 * 1024;

/// A review whose object holds this text at a place.
fn review(place: &str, text: &str) -> String {
    let hole = "\"HERE\"";
    let mut object =
        json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": { "name": "c" } });
    let mut old = object.clone();
    object["spec"]["paused"] = json!(true);
    let target = if place.starts_with("old") {
        &mut old
    } else {
        &mut object
    };
    match place.trim_start_matches("old ") {
        "annotations" => target["metadata"]["annotations"] = json!("HERE"),
        "labels" => target["metadata"]["labels"] = json!("HERE"),
        "owners" => target["metadata"]["ownerReferences"] = json!("HERE"),
        "managed fields" => target["metadata"]["managedFields"] = json!("HERE"),
        "spec" => target["spec"]["x"] = json!("HERE"),
        "conditions" => target["status"]["conditions"] = json!("HERE"),
        "top" => target["x"] = json!("HERE"),
        other => panic!("{other}"),
    }
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "kind": { "group": "cluster.x-k8s.io", "version": "v1beta2", "kind": "Cluster" },
            "operation": "UPDATE", "userInfo": { "username": "ann" }, "object": object, "oldObject": old,
        },
    });
    review.to_string().replace(hole, text)
}

/// As many of these as fit.
fn list(begin: &str, end: &str, item: impl Fn(usize) -> String) -> String {
    let mut text = begin.to_owned();
    for i in 0.. {
        let item = item(i);
        if text.len() + item.len() + 2048 > BODY_LIMIT {
            break;
        }
        if i > 0 {
            text.push(',');
        }
        text.push_str(&item);
    }
    text + end
}

fn bodies() -> Vec<(&'static str, String)> {
    let pairs = || list("{", "}", |i| format!("\"{i:x}\":\"\""));
    let deep = |open: &str, close: &str| {
        let depth = (BODY_LIMIT - 2048) / (open.len() + close.len());
        format!("{}1{}", open.repeat(depth), close.repeat(depth))
    };
    vec![
        ("annotations", review("annotations", &pairs())),
        ("old annotations", review("old annotations", &pairs())),
        (
            "one long annotation",
            review(
                "annotations",
                &format!("{{\"pausegen.io/stamp\":\"{}\"}}", "\\u00e4".repeat(1_300_000)),
            ),
        ),
        ("labels", review("labels", &pairs())),
        ("owners", review("owners", &list("[", "]", |_| "{}".to_owned()))),
        (
            "managed fields",
            review("managed fields", &list("[", "]", |_| "[[{}]]".to_owned())),
        ),
        ("conditions", review("conditions", &list("[", "]", |_| "{}".to_owned()))),
        (
            "no conditions",
            review("conditions", &list("[", "]", |_| "1".to_owned())),
        ),
        ("fields", review("spec", &list("{", "}", |i| format!("\"{i:x}\":1")))),
        (
            "objects",
            review("spec", &list("{", "}", |i| format!("\"{i:x}\":{{}}"))),
        ),
        ("numbers", review("spec", &list("[", "]", |_| "1e9".to_owned()))),
        ("a long number", review("spec", &"9".repeat(BODY_LIMIT - 2048))),
        ("deep lists", review("spec", &deep("[", "]"))),
        ("deep objects", review("spec", &deep("{\"a\":", "}"))),
        ("deep at the top", review("top", &deep("{\"a\":", "}"))),
        ("deep instead of conditions", review("conditions", &deep("[", "]"))),
        ("deep instead of annotations", review("annotations", &deep("[", "]"))),
        ("nothing but depth", deep("[", "]")),
        ("not JSON", "x".repeat(BODY_LIMIT)),
        ("not UTF-8", "\u{fffd}".repeat(BODY_LIMIT / 3)),
        ("too large", "[".repeat(BODY_LIMIT + 1)),
    ]
}

#[tokio::test]
async fn the_worst_bodies_are_answered_in_bounded_memory() {
    let (folder, made) = Folder::new();
    let (address, metrics) = (free(), free());
    let process = Process(
        command()
            .env("TOKIO_WORKER_THREADS", "2")
            .args(["--no-companion", "--companion-user", "companion"])
            .args(["--bind", &address.to_string(), "--metrics-bind", &metrics.to_string()])
            .arg("--tls-cert")
            .arg(folder.path("tls.crt"))
            .arg("--tls-key")
            .arg(folder.path("tls.key"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    support::eventually("it is ready", async || {
        plain(metrics, "/readyz")
            .ok()
            .filter(|answer| answer.starts_with("HTTP/1.1 200"))
    })
    .await;
    let ca = Arc::new(made.ca_pem.clone());
    let most = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM:"))
            .unwrap()
            .to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    for (what, body) in bodies() {
        for path in ["mutate", "validate"] {
            let (ca, body) = (Arc::clone(&ca), body.clone());
            let answer = tokio::task::spawn_blocking(move || {
                over_tls(address, &ca, &[], &format!("POST /{path}?timeout=30s"), &body)
            })
            .await
            .unwrap()
            .unwrap();
            let status: u16 = answer.split(' ').nth(1).unwrap().parse().unwrap();
            let expected: &[u16] = if what == "too large" { &[413] } else { &[200, 400] };
            assert!(expected.contains(&status), "{what}: {answer:.300}");
        }
        println!("{what}: {} bytes, {} KiB at most so far", body.len(), most());
        assert!(most() < MOST, "{what}: {} KiB", most());
    }
    // Whoever comes next is served as if nothing had been.
    let answer = over_tls(address, &ca, &[], "POST /mutate?timeout=10s", &review("spec", "1")).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("\"allowed\":true"),
        "{answer}"
    );
}
