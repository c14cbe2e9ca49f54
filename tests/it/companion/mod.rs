//! The companion against a real API server. The test plays the controllers: it writes the conditions that they would.

mod faults;
mod line;
mod proxy;
mod sea;

use kube::api::{Patch, PatchParams};
use pausegen::protocol::keys::Evidence;
use pausegen::sandbox::product::{Product, ProductOptions};
use serde_json::json;

use crate::support::{self, eventually};
pub(crate) use sea::{GROUP, RULES, Sea, acknowledgement, annotation, condition, define, resource, says};

#[tokio::test]
async fn a_flip_is_acknowledged_when_everybody_has_answered() {
    let sandbox = support::private_plain().await;
    let client = sandbox.client().await.unwrap();
    define(&client, "Fleet").await;
    let options = ProductOptions {
        rules: Some(RULES.to_owned()),
        ..ProductOptions::default()
    };
    let _product = Product::start(&sandbox, options).await.unwrap();
    // Its CRD comes after the companion.
    define(&client, "Ship").await;
    let sea = Sea::new(&client).await;

    let flipped = sea.pause(true).await;
    assert_eq!(annotation(&flipped, "generation"), "1");
    assert_eq!(annotation(&flipped, "acknowledged"), "pending");
    let waiting = eventually("an Unknown that names who has not answered", async || {
        let fleet = sea.fleet().await;
        let condition = condition(&fleet)?;
        (condition["status"] == "Unknown").then(|| condition["message"].as_str().unwrap_or_default().to_owned())
    })
    .await;
    assert!(
        waiting.contains("default/nina") && waiting.contains("default/pinta"),
        "{waiting}"
    );
    assert_eq!(annotation(&sea.fleet().await, "acknowledged"), "pending");

    sea.answer("armada", "nina", "pinta", true).await;
    let fleet = sea.acknowledged("paused").await;
    let first = acknowledgement(&fleet);
    assert_eq!((first.generation, first.objects), (1, 3));
    let fleet = eventually("True", async || {
        let fleet = sea.fleet().await;
        (condition(&fleet)?["status"] == "True").then_some(fleet)
    })
    .await;
    assert_eq!(
        condition(&fleet).unwrap()["observedGeneration"],
        json!(fleet.metadata.generation)
    );

    // A spec edit leaves it behind; it is raised.
    let patch = Patch::Merge(json!({"spec": {"size": 3}}));
    let edited = sea
        .fleets
        .patch("armada", &PatchParams::default(), &patch)
        .await
        .unwrap();
    eventually("raised", async || {
        let fleet = sea.fleet().await;
        (condition(&fleet)?["observedGeneration"] == json!(edited.metadata.generation)).then_some(())
    })
    .await;

    // Its echo is the baseline of the next flip, or that of a later one where the webhooks have not stood for long enough.
    let mut resumed = 2;
    loop {
        sea.pause(false).await;
        sea.answer("armada", "nina", "pinta", false).await;
        let second = acknowledgement(&sea.acknowledged("running").await);
        assert_eq!(second.generation, resumed);
        if (second.evidence, second.bound_seconds) == (Evidence::Attested, None) {
            break;
        }
        assert!(resumed < 10, "no answer is ever evidence: {second:?}");
        sea.pause(true).await;
        sea.answer("armada", "nina", "pinta", true).await;
        sea.acknowledged("paused").await;
        resumed += 2;
    }
    let fleet = eventually("False", async || {
        let fleet = sea.fleet().await;
        (condition(&fleet)?["status"] == "False").then_some(fleet)
    })
    .await;
    assert_eq!(condition(&fleet).unwrap()["reason"], "Running");

    // A hasty flip needs the bound, whatever everybody says.
    sea.pause(true).await;
    sea.pause(false).await;
    let third = acknowledgement(&sea.acknowledged("running").await);
    assert_eq!(
        (third.generation, third.evidence, third.bound_seconds),
        (resumed + 2, Evidence::Settled, Some(3))
    );
}
