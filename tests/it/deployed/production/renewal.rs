//! Certificates and replicas are replaced under load.

use std::net::SocketAddr;

use pausegen::protocol::keys;
use rustix::process::Signal;

use super::super::{annotation, paused};
use super::rig::{Load, RULES, Replica, Rig, leaders, roles};
use crate::admission::serve::over_tls;
use crate::support::eventually;

/// Whether a server there has a certificate of this CA.
async fn serves(address: SocketAddr, ca: &str) -> bool {
    let ca = ca.to_owned();
    let call = move || over_tls(address, &ca, &[], "GET /healthz", "").is_ok();
    tokio::task::spawn_blocking(call).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_flip_is_refused() {
    let rig = Rig::start().await;
    // Both find nothing, and one of them makes the certificates.
    let (mut a, mut b) = tokio::join!(rig.replica("a", &[]), rig.replica("b", &[]));
    let made = |replica: &Replica| replica.log().contains("a CA and a serving certificate are made");
    assert!(made(&a) != made(&b), "{}{}", a.log(), b.log());
    let (old_ca, old_certificate) = (rig.held("ca.crt").await, rig.held("tls.crt").await);
    assert!(
        serves(a.webhook, &old_ca).await && serves(b.webhook, &old_ca).await,
        "both share one CA"
    );
    eventually("one leads", async || (leaders(&[&a, &b]).len() == 1).then_some(())).await;

    let mut boats = Vec::new();
    for name in ["nina", "pinta", "santa-maria"] {
        boats.push(rig.boat(name).await);
    }
    let load = Load::start(boats);
    eventually("the serving certificate is renewed", async || {
        (rig.held("tls.crt").await != old_certificate).then_some(())
    })
    .await;
    assert_eq!(rig.held("ca.crt").await, old_ca, "by the same CA");

    // Other rules, in both of them.
    rig.write_rules(&RULES.replace("stalenessBound: 2s", "stalenessBound: 3s"));
    for replica in [&a, &b] {
        eventually("it takes the rules", async || {
            let taken = replica.metric("pausegen_rules_reloads_total{outcome=\"taken\"}");
            (taken == Some(1.0)).then_some(())
        })
        .await;
    }

    // One after the other is replaced, the one that leads first.
    eventually("one leads", async || (leaders(&[&a, &b]).len() == 1).then_some(())).await;
    if b.leads() {
        std::mem::swap(&mut a, &mut b);
    }
    let first = rig.holder().await;
    a.signal(Signal::TERM);
    assert_eq!(a.ended().await.code(), Some(0), "{}", a.log());
    assert!(a.log().contains("the Lease is handed over"), "{}", a.log());
    eventually("the other one leads", async || b.leads().then_some(())).await;
    assert_ne!(rig.holder().await, first);
    let c = rig.replica("c", &[]).await;
    b.signal(Signal::TERM);
    assert_eq!(b.ended().await.code(), Some(0), "{}", b.log());
    let d = rig.replica("d", &[]).await;

    let new_ca = eventually("another CA takes over", async || {
        Some(rig.held("ca.crt").await).filter(|ca| *ca != old_ca)
    })
    .await;
    for replica in [&c, &d] {
        eventually("it serves a certificate of the new CA", async || {
            serves(replica.webhook, &new_ca).await.then_some(())
        })
        .await;
    }
    let (flips, refused) = load.end().await;
    assert!(flips > 100, "{flips}");
    assert_eq!(refused, Vec::<String>::new(), "of {flips} flips");

    // Killed, with a flip under way: what it has begun is finished by the next one, and no other flip is refused.
    let (leader, standby) = roles(c, d);
    let (boat, other) = (rig.boat("boat").await, rig.boat("other").await);
    boat.flip(paused(true)).await;
    let load = Load::start(vec![other]);
    leader.signal(Signal::KILL);
    boat.says("Paused", "True", "Paused", "").await;
    let pending = boat.get().await;
    assert_eq!(
        annotation(&pending, keys::ACKNOWLEDGED),
        Some(keys::PENDING),
        "nobody is there to say so"
    );
    eventually("the other one leads", async || standby.leads().then_some(())).await;
    boat.acknowledged("paused").await;
    let (flips, refused) = load.end().await;
    assert!(flips > 20, "{flips}");
    let lost = [
        "EOF",
        "connection reset",
        "broken pipe",
        "connection refused",
        "closed network connection",
    ];
    assert!(
        refused.len() <= 3 && refused.iter().all(|error| lost.iter().any(|loss| error.contains(loss))),
        "refused past the loss of a connection: {refused:?}"
    );
}
