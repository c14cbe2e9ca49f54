//! Managers that are frozen, and one that is replaced.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use pausegen::protocol::condition::AWAITING_CONTROLLERS;
use pausegen::sandbox::ManagerKind;
use serde_json::json;

use super::rig::Change::{Annotation, Field};
use super::rig::{BOUND, IMPATIENCE, Rig, options, settled};
use super::{Scenes, named};
use crate::support;

/// Cluster API's annotation of infrastructure that somebody else manages.
const MANAGED_ELSEWHERE: &str = "cluster.x-k8s.io/managed-by";

#[tokio::test]
async fn nobody_acknowledges_for_a_frozen_manager() {
    let scenes = Scenes::begin();
    let rig = Box::pin(Rig::start(options(), 20)).await;
    scenes.scene("ready");
    for (kind, of_it) in [
        (ManagerKind::Core, "MachineSet"),
        (ManagerKind::Bootstrap, "KubeadmConfig"),
        (ManagerKind::ControlPlane, "KubeadmControlPlane"),
        (ManagerKind::Dev, "DevMachine"),
    ] {
        scenes.scene(&format!("{} frozen", kind.name()));
        Box::pin(one_frozen(&rig, kind, of_it)).await;
    }
    scenes.scene("annotations while frozen");
    Box::pin(annotations_while_frozen(&rig)).await;
    scenes.scene("hasty flips while frozen");
    Box::pin(hasty_while_frozen(&rig)).await;
    scenes.scene("objects are let go while frozen");
    Box::pin(let_go_while_frozen(&rig)).await;
    scenes.scene("another manager takes over");
    Box::pin(takeover(&rig)).await;
    scenes.scene("an object is deleted while frozen");
    Box::pin(deleted_while_frozen(&rig)).await;
}

/// A flip that a frozen manager has not seen waits, and says for whom. Pauses and resumes take turns.
async fn one_frozen(rig: &Rig, manager: ManagerKind, of_it: &'static str) {
    let cluster = rig.cluster();
    let paused = rig.is_paused(&cluster).await;
    rig.manager(manager).freeze().unwrap();
    let flip = rig.flip(&cluster, Field(!paused)).await;
    rig.not_acknowledged(&flip, IMPATIENCE).await;
    let message = rig
        .unknown(&cluster, AWAITING_CONTROLLERS, |message| {
            message.contains(&format!("{of_it}."))
        })
        .await;
    let names = rig.names(of_it).await;
    assert!(
        names.iter().any(|name| message.contains(name)),
        "no {of_it} is named: {message}"
    );
    named::exactly_who_lags(rig, !paused, of_it).await;
    rig.capi().thaw(manager).await.unwrap();
    rig.acknowledged(&flip).await;
}

/// Each kind of object has its own input, and its own manager to wait for.
async fn annotations_while_frozen(rig: &Rig) {
    let targets = [
        rig.cluster(),
        rig.first("MachineDeployment").await,
        rig.first("Machine").await,
    ];
    rig.run(&rig.cluster()).await;
    rig.manager(ManagerKind::Core).freeze().unwrap();
    let mut flips = Vec::new();
    for target in &targets {
        flips.push(rig.flip(target, Annotation(true)).await);
    }
    join_all(flips.iter().map(|flip| rig.not_acknowledged(flip, IMPATIENCE))).await;
    for target in &targets {
        rig.unknown(target, AWAITING_CONTROLLERS, |message| {
            message.contains(&format!("{}.", target.kind))
        })
        .await;
    }
    rig.capi().thaw(ManagerKind::Core).await.unwrap();
    join_all(flips.iter().map(|flip| rig.acknowledged(flip))).await;
    join_all(targets.iter().map(|target| rig.run(target))).await;
}

/// Two and three flips that a frozen manager has not seen: the last one looks as if it were attested, and is not. Time
/// does not help, since the Lease stands still.
async fn hasty_while_frozen(rig: &Rig) {
    let cluster = rig.cluster();
    let deployment = rig.first("MachineDeployment").await;
    rig.run(&cluster).await;
    let first = rig.flip(&deployment, Annotation(true)).await;
    rig.acknowledged(&first).await;

    rig.manager(ManagerKind::Core).freeze().unwrap();
    // From running: pause, resume, pause.
    rig.flip(&cluster, Field(true)).await;
    rig.flip(&cluster, Field(false)).await;
    let pause = rig.flip(&cluster, Field(true)).await;
    // From paused: resume, pause. Here the stale bit is right by its looks.
    rig.flip(&deployment, Annotation(false)).await;
    let again = rig.flip(&deployment, Annotation(true)).await;
    let long = BOUND * 3;
    tokio::join!(rig.not_acknowledged(&pause, long), rig.not_acknowledged(&again, long));
    assert!(
        rig.wait(&deployment, "condition=Paused", Duration::from_secs(5))
            .await
            .is_some(),
        "without that Cluster API's own condition says so there is nothing to be fooled by"
    );

    rig.capi().thaw(ManagerKind::Core).await.unwrap();
    let (pause_echo, again_echo) = tokio::join!(rig.acknowledged(&pause), rig.acknowledged(&again));
    settled(&pause, &pause_echo);
    settled(&again, &again_echo);

    let resume = rig.flip(&deployment, Annotation(false)).await;
    rig.acknowledged(&resume).await;
    rig.run(&cluster).await;
}

/// Whoever may write an object can take it out of its controller's hands: its owner, its labels, a mark that it is managed
/// elsewhere. A frozen controller still sees it as it was.
async fn let_go_while_frozen(rig: &Rig) {
    let cluster = rig.cluster();
    let (infrastructure, machine) = (rig.first("DevCluster").await, rig.first("DevMachine").await);
    rig.run(&cluster).await;
    rig.manager(ManagerKind::Dev).freeze().unwrap();
    let own = rig.flip(&machine, Annotation(true)).await;
    let pause = rig.flip(&cluster, Field(true)).await;
    let mut before = Vec::new();
    for target in [infrastructure, machine.clone()] {
        let object = rig.get(&target).await;
        let (owners, labels) = (object.metadata.owner_references, object.metadata.labels);
        let gone = json!({ "metadata": {
            "ownerReferences": null, "labels": null, "annotations": { MANAGED_ELSEWHERE: "somebody" },
        } });
        rig.patch(&target, gone).await;
        before.push((target, owners, labels));
    }
    let long = BOUND * 2;
    tokio::join!(rig.not_acknowledged(&pause, long), rig.not_acknowledged(&own, long));
    for (target, owners, labels) in before {
        let back = json!({ "metadata": {
            "ownerReferences": owners, "labels": labels, "annotations": { MANAGED_ELSEWHERE: null },
        } });
        rig.patch(&target, back).await;
    }
    rig.capi().thaw(ManagerKind::Dev).await.unwrap();
    tokio::join!(rig.acknowledged(&pause), rig.acknowledged(&own));
    rig.run(&machine).await;
    rig.run(&cluster).await;
}

/// A KubeadmConfig has no finalizer: it is gone at once, and a frozen controller still works on it.
async fn deleted_while_frozen(rig: &Rig) {
    let cluster = rig.cluster();
    rig.run(&cluster).await;
    rig.manager(ManagerKind::Bootstrap).freeze().unwrap();
    let pause = rig.flip(&cluster, Field(true)).await;
    let delete = DeleteParams::default();
    let all = ListParams::default();
    rig.api("KubeadmConfig").delete_collection(&delete, &all).await.unwrap();
    support::eventually("they are gone", async || {
        rig.names("KubeadmConfig").await.is_empty().then_some(())
    })
    .await;
    rig.not_acknowledged(&pause, BOUND * 2).await;
    rig.unknown(&cluster, AWAITING_CONTROLLERS, |message| {
        message.contains("KubeadmConfig.") && message.contains("what may have been deleted")
    })
    .await;
    rig.capi().thaw(ManagerKind::Bootstrap).await.unwrap();
    rig.acknowledged(&pause).await;
}

/// Another process that acts for the manager has views of its own: the bound begins anew.
async fn takeover(rig: &Rig) {
    let machine = rig.first("Machine").await;
    let first = rig.flip(&machine, Annotation(true)).await;
    rig.acknowledged(&first).await;
    let second = rig.capi().start_second(ManagerKind::Core).await.unwrap();
    rig.manager(ManagerKind::Core).kill();
    // While nobody acts, so that the new one is the only one which can have seen these.
    rig.flip(&machine, Annotation(false)).await;
    let again = rig.flip(&machine, Annotation(true)).await;
    let echo = rig.acknowledged(&again).await;
    settled(&again, &echo);
    let lease = core_lease(rig).await;
    let holder = lease.holder_identity.clone().unwrap();
    let acquired = lease.acquire_time.unwrap().0;
    let at: jiff::Timestamp = echo.at.parse().unwrap();
    let passed = at.duration_since(acquired);
    assert!(
        passed >= jiff::SignedDuration::try_from(BOUND).unwrap(),
        "{holder} since {acquired}: {echo:?}"
    );
    // A clean flip from here on: the new process is asked like the old one.
    let resume = rig.flip(&machine, Annotation(false)).await;
    rig.acknowledged(&resume).await;
    drop(second);
    rig.capi().restart(ManagerKind::Core).await.unwrap();
}

async fn core_lease(rig: &Rig) -> k8s_openapi::api::coordination::v1::LeaseSpec {
    let kind = ManagerKind::Core;
    let leases: Api<Lease> = Api::namespaced(rig.client.clone(), kind.namespace());
    leases.get(kind.lease()).await.unwrap().spec.unwrap()
}
