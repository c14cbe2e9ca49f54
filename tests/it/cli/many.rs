//! Ten thousand stored objects, without a controller.

use futures::{StreamExt as _, stream};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::{Api, Client};
use pausegen::rules::manifests;
use pausegen::sandbox::Sandbox;
use serde_json::json;

use super::tool::{Tool, measured};
use crate::companion::{GROUP, resource};

const COUNT: usize = 10_000;

pub(super) async fn ten_thousand(tool: &Tool, sandbox: &Sandbox, client: &Client) {
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    mutating
        .delete(manifests::CONFIGURATION, &DeleteParams::default())
        .await
        .unwrap();
    validating
        .delete(manifests::CONFIGURATION, &DeleteParams::default())
        .await
        .unwrap();
    let ships: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource("Ship"));
    let created = stream::iter(0..COUNT).map(|i| {
        let ships = &ships;
        async move {
            let fleet = if i % 2 == 0 { "armada" } else { "none" };
            let object: DynamicObject = serde_json::from_value(json!({
                "apiVersion": format!("{GROUP}/v1"), "kind": "Ship",
                "metadata": {"name": format!("ship-{i:05}"), "labels": {"sea.example.org/fleet": fleet},
                    "annotations": {"sea.example.org/paused": "", "example.org/log": "x".repeat(2000)}},
            }))
            .unwrap();
            ships.create(&PostParams::default(), &object).await.map(drop)
        }
    });
    let failed = created
        .buffer_unordered(32)
        .filter_map(async |result| result.err())
        .count()
        .await;
    assert_eq!(failed, 0);

    let (code, memory, time) = tool.measured(&["audit", "-A", "-o", "json"]).await;
    assert_eq!(code, 1);
    let kubectl = sandbox.kubectl_command(["get", "fleets,ships", "-A", "-o", "json"]);
    let (code, kubectl_memory, kubectl_time) = measured(kubectl.into()).await;
    assert_eq!(code, 0);
    println!(
        "{COUNT} objects: audit {} MiB in {:.1} s, kubectl get {} MiB in {:.1} s: {:.2} of its memory, {:.2} of its time",
        memory >> 10,
        time.as_secs_f64(),
        kubectl_memory >> 10,
        kubectl_time.as_secs_f64(),
        memory as f64 / kubectl_memory as f64,
        time.as_secs_f64() / kubectl_time.as_secs_f64()
    );
    assert!(
        memory < kubectl_memory,
        "{memory} KiB, and kubectl {kubectl_memory} KiB"
    );
    let (_, report) = tool.audit(&["-A", "-l", "sea.example.org/fleet=armada"]).await;
    assert_eq!(report["totals"]["objects"].as_u64(), Some(COUNT as u64 + 3));
    assert_eq!(report["totals"]["rows"].as_u64(), Some(COUNT as u64 / 2 + 2));
    // In pages: nobody asks the API server for all of it at once.
    let log = std::fs::read_to_string(sandbox.audit_log().unwrap()).unwrap();
    let ours = log
        .lines()
        .filter(|line| line.contains("/ships?") && !line.contains("kubectl/"));
    let pages = ours.filter(|line| line.contains("limit=500")).count();
    assert!(pages >= 2 * COUNT / 500, "only {pages} pages");
}
