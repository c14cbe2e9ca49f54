//! The managers of the sandbox: they freeze, thaw and take over, and their webhooks answer meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use pausegen::sandbox::{ClusterShape, ManagerKind, Sandbox};

use crate::support;

/// One after the other on one sandbox.
#[tokio::test]
async fn managers_freeze_and_take_over() {
    let sandbox = support::private_capi().await;
    frozen_managers_do_nothing_and_their_webhooks_still_answer(&sandbox).await;
    a_second_manager_takes_over_the_lease(&sandbox).await;
}

async fn frozen_managers_do_nothing_and_their_webhooks_still_answer(sandbox: &Sandbox) {
    let capi = sandbox.capi().unwrap();
    let shape = ClusterShape {
        control_planes: 1,
        workers: 3,
    };
    capi.create_cluster("frozen", "one", shape).await.unwrap();
    capi.wait_running("frozen", "one", Duration::from_secs(180))
        .await
        .unwrap();
    let client = sandbox.client().await.unwrap();
    for kind in ManagerKind::ALL {
        capi.manager(kind).freeze().unwrap();
    }
    // Each kind is one that a webhook of its manager looks at, under `Fail`.
    for kind in ["Cluster", "MachineDeployment", "Machine", "MachineHealthCheck"] {
        annotate(&client, "cluster.x-k8s.io", kind).await;
    }
    annotate(&client, "bootstrap.cluster.x-k8s.io", "KubeadmConfig").await;
    annotate(&client, "controlplane.cluster.x-k8s.io", "KubeadmControlPlane").await;
    for kind in ["DevCluster", "DevMachine"] {
        annotate(&client, "infrastructure.cluster.x-k8s.io", kind).await;
    }
    // Paused as they are now, none of them says so.
    let paused = async || {
        let mut says = BTreeSet::new();
        for (group, kind) in [
            ("cluster.x-k8s.io", "Machine"),
            ("bootstrap.cluster.x-k8s.io", "KubeadmConfig"),
            ("controlplane.cluster.x-k8s.io", "KubeadmControlPlane"),
            ("infrastructure.cluster.x-k8s.io", "DevCluster"),
        ] {
            let list = dynamic(&client, group, kind)
                .list(&ListParams::default())
                .await
                .unwrap();
            let conditions = list
                .iter()
                .flat_map(|object| object.data["status"]["conditions"].as_array().unwrap());
            if conditions
                .into_iter()
                .any(|c| c["type"] == "Paused" && c["status"] == "True")
            {
                says.insert(kind);
            }
        }
        says
    };
    assert_eq!(paused().await, BTreeSet::new());
    for kind in ManagerKind::ALL {
        capi.thaw(kind).await.unwrap();
    }
    support::eventually("all managers say paused", async || {
        (paused().await.len() == 4).then_some(())
    })
    .await;
}

async fn a_second_manager_takes_over_the_lease(sandbox: &Sandbox) {
    let capi = sandbox.capi().unwrap();
    let client = sandbox.client().await.unwrap();
    let kind = ManagerKind::Bootstrap;
    let all: Api<Lease> = Api::all(client);
    let by_name = ListParams::default().fields(&format!("metadata.name={}", kind.lease()));
    let lease = async || {
        let mut leases = all.list(&by_name).await.unwrap().items;
        assert_eq!(leases.len(), 1, "the standby must not make one of its own");
        let lease = leases.remove(0);
        assert_eq!(lease.namespace().as_deref(), Some(kind.namespace()));
        lease.spec.unwrap().holder_identity.unwrap()
    };
    let first = lease().await;
    let second = capi.start_second(kind).await.unwrap();
    assert_eq!(lease().await, first);
    capi.manager(kind).freeze().unwrap();
    support::eventually("another holder", async || (lease().await != first).then_some(())).await;
    assert!(capi.manager(kind).is_running());
    second.kill();
    capi.restart(kind).await.unwrap();
    assert_ne!(lease().await, first);
}

fn dynamic(client: &Client, group: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta2", kind));
    Api::all_with(client.clone(), &resource)
}

/// Sets the pause annotation on every object of a kind in the test's namespace.
async fn annotate(client: &Client, group: &str, kind: &str) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta2", kind));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "frozen", &resource);
    let list = api.list(&ListParams::default()).await.unwrap();
    assert!(!list.items.is_empty(), "there is a {kind}");
    let patch = serde_json::json!({ "metadata": { "annotations": { "cluster.x-k8s.io/paused": "" } } });
    for object in list {
        api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }
}
