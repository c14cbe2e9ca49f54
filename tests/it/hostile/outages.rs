//! The webhook is away, or its configuration is: what passes, what does not, and what is left of it afterwards.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use pausegen::{
    protocol::keys::{ACKNOWLEDGED, Acknowledgement, Evidence, GENERATION, PENDING, STAMP, Why},
    rules::{Rules, manifests},
    sandbox::product::ProductOptions,
};
use serde_json::{Value, json};

use super::ground::{Ground, PAUSED, Place, acknowledgement, annotation, keys, rules, stamp};
use crate::support::{eventually, eventually_within};

/// The staleness bound: long enough for an acknowledgement to be given before it has passed.
const BOUND: Duration = Duration::from_secs(4);
/// How often a word is forged in a row. With a delay that doubles the last one would stand for 16 s.
const FORGERIES: u32 = 8;
/// How long a forged word may stand: one second, and as much again as a busy machine needs.
const FORGED: Duration = Duration::from_secs(8);

#[tokio::test]
async fn an_outage_loses_time_and_no_truth() {
    let options = ProductOptions {
        rules: Some(rules(BOUND)),
        split: true,
        ..ProductOptions::default()
    };
    let mut ground = Box::pin(Ground::with(options)).await;
    Box::pin(prepare(&ground)).await;
    Box::pin(away_under_fail(&mut ground)).await;
    Box::pin(away_under_ignore(&mut ground)).await;
    Box::pin(configuration_away(&ground)).await;
    Box::pin(super::reload::scenes(&mut ground)).await;
}

fn field(paused: bool) -> Value {
    json!({ "spec": { "paused": paused } })
}

fn spec(paused: bool) -> Value {
    json!({ "paused": paused, "clusterNetwork": { "serviceDomain": "mine" } })
}

impl Place<'_> {
    /// Flips a Cluster's field; its controller answers at once.
    async fn flip(&self, name: &str, paused: bool) -> Acknowledgement {
        let flipped = self.patch("Cluster", name, field(paused)).await.unwrap();
        self.cluster_says(name, paused).await;
        self.echo_of(&flipped, paused).await
    }

    /// The echo of a flip.
    async fn echo_of(&self, flipped: &DynamicObject, paused: bool) -> Acknowledgement {
        let name = flipped.metadata.name.as_deref().unwrap();
        let object = self.acknowledged(name, if paused { "paused" } else { "running" }).await;
        let echo = acknowledgement(&object);
        assert_eq!(echo.generation, stamp(flipped).generation, "{object:?}");
        echo
    }

    /// Pauses running Clusters whose controllers have already said that they are paused: an answer to a pause that nobody
    /// has seen, which looks like one to this pause.
    async fn pause_late(&self, names: &[&str]) -> Vec<Acknowledgement> {
        for name in names {
            self.cluster_says(name, true).await;
        }
        let mut flipped = Vec::new();
        for name in names {
            flipped.push(self.patch("Cluster", name, field(true)).await.unwrap());
        }
        let mut echoes = Vec::new();
        for flipped in &flipped {
            echoes.push(self.echo_of(flipped, true).await);
        }
        echoes
    }

    /// Running Clusters that the companion knows well: the next flip of each is attested, not settled.
    async fn known(&self, names: &[&str]) {
        futures::future::join_all(names.iter().map(|name| self.one_known(name))).await;
    }

    async fn one_known(&self, name: &str) {
        if self.api("Cluster").get_opt(name).await.unwrap().is_none() {
            self.create("Cluster", name, json!({ "spec": spec(false) })).await;
            self.cluster_says(name, false).await;
        }
        for _ in 0..6 {
            self.flip(name, true).await;
            let echo = self.flip(name, false).await;
            if echo.evidence == Evidence::Attested {
                return;
            }
        }
        panic!("{name} is never attested");
    }
}

/// Objects that are there before the webhook goes.
async fn prepare(ground: &Ground) {
    let place = ground.place("away").await;
    place.paused(&["steady", "source", "broken", "restored", "gone"]).await;
    place.create("Cluster", "waiting", json!({ "spec": spec(true) })).await;
    place.create("Cluster", "late", json!({ "spec": spec(true) })).await;
    place.create("Cluster", "running", json!({ "spec": spec(false) })).await;
}

async fn away_under_fail(ground: &mut Ground) {
    ground.product.kill_admission();
    let place = ground.place("away").await;

    // Flips are refused, and the API server says by what.
    let annotated = json!({ "metadata": { "annotations": { PAUSED: "" } } });
    for (name, patch) in [
        ("steady", field(false)),
        ("running", field(true)),
        ("running", annotated.clone()),
    ] {
        refused(place.patch("Cluster", name, patch).await, "flip.pausegen.io");
    }
    let created = place.object("Cluster", "new", json!({ "spec": spec(true) }));
    let created = place.api("Cluster").create(&PostParams::default(), &created).await;
    refused(created, "flip.pausegen.io");
    let said = ground
        .sandbox
        .kubectl([
            "-n",
            "away",
            "patch",
            "cluster",
            "running",
            "--type=merge",
            "-p",
            &field(true).to_string(),
        ])
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("failed calling webhook \"flip.pausegen.io\""), "{said}");

    // Every other write passes.
    let stood = place.get("Cluster", "steady").await;
    for (name, patch) in [
        (
            "steady",
            json!({ "metadata": { "labels": { "a": "b" }, "annotations": { "example.com/note": "1" } } }),
        ),
        (
            "steady",
            json!({ "spec": { "clusterNetwork": { "serviceDomain": "other" } } }),
        ),
        (
            "running",
            json!({ "metadata": { "finalizers": ["example.com/f"] }, "spec": { "clusterNetwork": { "serviceDomain": "x" } } }),
        ),
        ("running", json!({ "metadata": { "finalizers": null } })),
    ] {
        place.patch("Cluster", name, patch).await.unwrap();
    }
    place.create("Cluster", "newer", json!({ "spec": spec(false) })).await;
    place.api("Cluster").delete("gone", &Default::default()).await.unwrap();
    assert_eq!(keys(&place.get("Cluster", "steady").await), keys(&stood));

    // A flip from before is acknowledged all the same.
    place.cluster_says("late", true).await;
    place.acknowledged("late", "paused").await;

    forged_meanwhile(&place).await;
    ground.product.start_admission().await.unwrap();
    let place = ground.place("away").await;
    repaired(&place).await;
    let echo = place.flip("running", true).await;
    assert_eq!(echo.generation, 1);
}

fn refused(result: kube::Result<DynamicObject>, by: &str) {
    let Err(kube::Error::Api(status)) = result else {
        panic!("not refused: {result:?}");
    };
    assert_eq!(status.code, 500, "{status}");
    assert!(
        status.message.contains("failed calling webhook") && status.message.contains(by),
        "{status}"
    );
}

/// With the keys webhook away anybody can write our keys. No word of theirs stands for long.
async fn forged_meanwhile(place: &Place<'_>) {
    let saved = place.get("Cluster", "source").await;
    let saved = json!(saved.metadata.annotations);
    // As Cluster API copies a MachineDeployment's annotations.
    let copy = json!({ "metadata": { "annotations": saved }, "spec": spec(false) });
    let copy = place.create("Cluster", "copy", copy).await;
    assert_eq!(annotation(&copy, ACKNOWLEDGED), Some("paused"));
    // As a backup is restored.
    let own = json!(place.get("Cluster", "restored").await.metadata.annotations);
    place
        .api("Cluster")
        .delete("restored", &Default::default())
        .await
        .unwrap();
    let restored = json!({ "metadata": { "annotations": own }, "spec": spec(false) });
    place.create("Cluster", "restored", restored).await;
    for (name, forgery) in [
        // Keys that make no record any more.
        ("broken", json!({ STAMP: null })),
        // A word that no echo has said.
        ("waiting", json!({ ACKNOWLEDGED: "paused" })),
    ] {
        let patch = json!({ "metadata": { "annotations": forgery } });
        place.patch("Cluster", name, patch).await.unwrap();
    }
    for name in ["copy", "restored", "broken", "waiting"] {
        place.acknowledged(name, PENDING).await;
    }
}

/// However often a word is forged, the last one stands no longer than the first.
async fn forged_again_and_again(place: &Place<'_>, name: &str) {
    for forgery in 1..=FORGERIES {
        let forged = json!({ "metadata": { "annotations": { ACKNOWLEDGED: "paused" } } });
        let forged = place.patch("Cluster", name, forged).await.unwrap();
        assert_eq!(annotation(&forged, ACKNOWLEDGED), Some("paused"), "nobody is asked");
        eventually_within(FORGED, &format!("forgery {forgery} is taken back"), async || {
            let object = place.get("Cluster", name).await;
            (annotation(&object, ACKNOWLEDGED) == Some(PENDING)).then_some(())
        })
        .await;
    }
}

/// The webhook is back: everything has a stamp of its own, and is acknowledged in its turn.
async fn repaired(place: &Place<'_>) {
    for (name, paused) in [
        ("copy", false),
        ("restored", false),
        ("broken", true),
        ("waiting", true),
    ] {
        let right = eventually(&format!("{name} is stamped"), async || {
            let object = place.get("Cluster", name).await;
            let text = annotation(&object, STAMP)?;
            let stamp: pausegen::protocol::keys::Stamp = serde_json::from_str(text).ok()?;
            let own = stamp.name == name && (stamp.uid.is_empty() || Some(&stamp.uid) == object.metadata.uid.as_ref());
            (own && stamp.after.is_empty() != paused).then_some(object)
        })
        .await;
        // Nothing of what was forged is history.
        if name != "waiting" {
            assert_eq!(stamp(&right).why, Why::Missed, "{right:?}");
        }
        place.cluster_says(name, paused).await;
        let echo = place.echo_of(&right, paused).await;
        assert_eq!(echo.evidence, Evidence::Settled, "{name}");
    }
}

/// Sets the failurePolicy of everything that is called for flips.
async fn set_policy(ground: &Ground, policy: &str) {
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(ground.client.clone());
    let mut found = mutating.get(manifests::CONFIGURATION).await.unwrap();
    for webhook in found.webhooks.iter_mut().flatten() {
        if webhook.name == manifests::FLIP {
            webhook.failure_policy = Some(policy.to_owned());
        }
    }
    mutating
        .replace(manifests::CONFIGURATION, &PostParams::default(), &found)
        .await
        .unwrap();
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(ground.client.clone());
    let mut found = validating.get(manifests::CONFIGURATION).await.unwrap();
    for webhook in found.webhooks.iter_mut().flatten() {
        webhook.failure_policy = Some(policy.to_owned());
    }
    validating
        .replace(manifests::CONFIGURATION, &PostParams::default(), &found)
        .await
        .unwrap();
}

/// Waits until flips pass without a stamp.
async fn flips_pass(place: &Place<'_>, name: &str) {
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let paused = place.get("Cluster", name).await.data["spec"]["paused"] == true;
    let before = annotation(&place.get("Cluster", name).await, GENERATION).map(str::to_owned);
    let api = place.api("Cluster");
    eventually("flips pass without a stamp", async || {
        let passed = api.patch(name, &dry_run, &Patch::Merge(&field(!paused))).await.ok()?;
        (annotation(&passed, GENERATION).map(str::to_owned) == before).then_some(())
    })
    .await;
}

async fn away_under_ignore(ground: &mut Ground) {
    {
        let place = ground.place("ignore").await;
        place.known(&["odd", "even", "even-too"]).await;
        place.create("Cluster", "bare", json!({ "spec": spec(false) })).await;
    }
    set_policy(ground, "Ignore").await;
    ground.product.kill_admission();
    let place = ground.place("ignore").await;
    flips_pass(&place, "odd").await;

    // One flip is noticed: no wait is content with the word from before.
    let before = place.get("Cluster", "odd").await;
    place.patch("Cluster", "odd", field(true)).await.unwrap();
    place.acknowledged("odd", PENDING).await;
    // Two are not: the object is again what its stamp says, and has been both.
    for name in ["even", "even-too"] {
        place.patch("Cluster", name, field(true)).await.unwrap();
        place.patch("Cluster", name, field(false)).await.unwrap();
    }
    // Objects without any keys.
    let bare = place.patch("Cluster", "bare", field(true)).await.unwrap();
    assert_eq!(bare.metadata.annotations, None);
    let created = json!({ "metadata": { "annotations": { PAUSED: "" } }, "spec": spec(false) });
    let created = place.create("Cluster", "created", created).await;
    assert_eq!(annotation(&created, STAMP), None);
    ground.product.start_admission().await.unwrap();
    let place = ground.place("ignore").await;
    let odd = eventually("the missed flip is stamped", async || {
        let object = place.get("Cluster", "odd").await;
        (stamp(&object)
            .after
            .has(&pausegen::protocol::rule::InputId("spec.paused".to_owned())))
        .then_some(object)
    })
    .await;
    assert_eq!(stamp(&odd).why, Why::Missed);
    // A gap in the numbers: never clean.
    assert_eq!(stamp(&odd).generation, stamp(&before).generation + 2);
    place.cluster_says("odd", true).await;
    assert_eq!(place.echo_of(&odd, true).await.evidence, Evidence::Settled);

    for (name, message, word) in [
        ("bare", "Cluster spec.paused is set to true", "paused"),
        (
            "created",
            "Cluster has the cluster.x-k8s.io/paused annotation",
            "paused-self",
        ),
    ] {
        let stamped = eventually("a pause that nobody stamped is", async || {
            let object = place.get("Cluster", name).await;
            annotation(&object, STAMP).is_some().then_some(object)
        })
        .await;
        assert_eq!(stamp(&stamped).generation, 1, "{name}");
        place.says("Cluster", name, true, message).await;
        let echo = acknowledgement(&place.acknowledged(name, word).await);
        assert_eq!(echo.evidence, Evidence::Settled, "{name}");
    }

    // While flips can pass unseen, nothing rests on having seen them all.
    let echoes = place.pause_late(&["even", "even-too"]).await;
    for echo in echoes {
        assert_eq!(
            (echo.evidence, echo.bound_seconds),
            (Evidence::Settled, Some(BOUND.as_secs()))
        );
    }
    set_policy(ground, "Fail").await;
}

/// The configuration is away for a moment between what is known of an object and its next flip.
async fn configuration_away(ground: &Ground) {
    let place = ground.place("configuration").await;
    place
        .known(&["control", "deleted", "deleted-flips", "edited", "edited-flips"])
        .await;
    // With nothing in between such an answer is believed: the other cases would show it.
    let echoes = place.pause_late(&["control"]).await;
    assert_eq!(echoes[0].evidence, Evidence::Attested);
    place.create("Cluster", "forged", json!({ "spec": spec(true) })).await;

    delete_configurations(ground).await;
    flips_pass(&place, "deleted").await;
    forged_again_and_again(&place, "forged").await;
    for paused in [true, false] {
        place.patch("Cluster", "deleted-flips", field(paused)).await.unwrap();
    }
    let parsed = Rules::parse(&rules(BOUND), "test").unwrap();
    ground.product.install(&ground.client, &parsed).await.unwrap();
    ground.webhook_is_called().await;
    for echo in place.pause_late(&["deleted", "deleted-flips"]).await {
        assert_eq!(echo.evidence, Evidence::Settled, "the configuration was away: {echo:?}");
    }

    // The bound has passed under the configuration that is there again.
    place.known(&["edited", "edited-flips"]).await;
    set_policy(ground, "Ignore").await;
    set_policy(ground, "Fail").await;
    for echo in place.pause_late(&["edited", "edited-flips"]).await {
        assert_eq!(
            echo.evidence,
            Evidence::Settled,
            "the configuration was another one: {echo:?}"
        );
    }
    // It does not last: under a configuration that stands, objects become known again.
    place.flip("edited", false).await;
    place.known(&["edited"]).await;
}

async fn delete_configurations(ground: &Ground) {
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(ground.client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(ground.client.clone());
    let name = manifests::CONFIGURATION;
    mutating.delete(name, &Default::default()).await.unwrap();
    validating.delete(name, &Default::default()).await.unwrap();
}
