//! Leaders freeze, and are robbed of their Lease.

use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams};
use pausegen::rules::manifests::LEASE;
use rustix::process::Signal;
use serde_json::json;

use super::super::paused;
use super::rig::{Rig, leaders, roles};
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_one_leads_and_never_two() {
    let rig = Rig::start().await;
    // The webhook is a process of its own, which nobody freezes.
    let _webhook = rig.replica("webhook", &["--no-companion"]).await;
    // Their clocks are a quarter of an hour apart, and more from the API server's than a Lease lasts.
    let a = rig.replica_at("a", &["--no-admission"], "7m").await;
    let b = rig.replica_at("b", &["--no-admission"], "-8m").await;
    eventually("one leads", async || (leaders(&[&a, &b]).len() == 1).then_some(())).await;
    let (leader, standby) = roles(a, b);
    let boat = rig.boat("boat").await;

    // Frozen, it renews nothing; thawed, it finds that another one leads and writes nothing.
    leader.signal(Signal::STOP);
    let held = rig.holder().await;
    assert!(held.starts_with(&leader.name), "{held}");
    boat.flip(paused(true)).await;
    boat.says("Paused", "True", "Paused", "").await;
    eventually("the other one leads", async || standby.leads().then_some(())).await;
    boat.acknowledged("paused").await;
    let taken = rig.holder().await;
    assert!(taken.starts_with(&standby.name), "{taken}");
    leader.signal(Signal::CONT);
    eventually("the frozen one steps down", async || (!leader.leads()).then_some(())).await;
    assert_eq!(rig.holder().await, taken, "it takes nothing back");
    let (leader, standby) = (standby, leader);

    // Somebody writes another holder, with times that no clock here shows: nobody acts until they have been still for the
    // whole Lease.
    let stolen = json!({ "spec": { "holderIdentity": "thief", "renewTime": "2099-01-01T00:00:00.000000Z" } });
    let robbed = std::time::Instant::now();
    let patch = Patch::Merge(&stolen);
    rig.leases()
        .patch(LEASE, &PatchParams::default(), &patch)
        .await
        .unwrap();
    eventually("nobody leads", async || {
        leaders(&[&leader, &standby]).is_empty().then_some(())
    })
    .await;
    boat.flip(paused(false)).await;
    boat.says("Paused", "False", "NotPaused", "").await;
    eventually("one leads", async || {
        let leaders = leaders(&[&leader, &standby]);
        assert!(leaders.len() <= 1, "{leaders:?}");
        (leaders.len() == 1).then_some(())
    })
    .await;
    assert!(
        robbed.elapsed() >= Duration::from_secs(15),
        "the thief might lead: {:?}",
        robbed.elapsed()
    );
    boat.acknowledged("running").await;

    // A Lease that is deleted is one that its holder may not know to be gone.
    let (leader, standby) = roles(leader, standby);
    let before = rig.holder().await;
    rig.leases().delete(LEASE, &DeleteParams::default()).await.unwrap();
    let deleted = std::time::Instant::now();
    eventually("nobody leads", async || {
        leaders(&[&leader, &standby]).is_empty().then_some(())
    })
    .await;
    eventually("one leads", async || {
        (leaders(&[&leader, &standby]).len() == 1).then_some(())
    })
    .await;
    assert!(
        deleted.elapsed() >= Duration::from_secs(15),
        "{:?}, before it was {before}",
        deleted.elapsed()
    );
}
