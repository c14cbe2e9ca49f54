//! Keys that somebody else writes are put back as they stood, with one warning, and what the same request wants besides
//! is done.

use pausegen::protocol::keys::{ACKNOWLEDGED, ACKNOWLEDGEMENT, GENERATION, OBSERVED_GENERATION, PENDING, STAMP, TOUCH};
use serde_json::{Value, json};

use super::ground::{Ground, Place, annotation, keys, stamp};

/// The values that somebody might write into our keys, by what they are; null removes a key.
fn forgeries(own: Option<(&str, &str)>, others: &str) -> Vec<(&'static str, Value)> {
    let large = "9".repeat(200 * 1024);
    let mut all: Vec<(&'static str, Value)> = Vec::new();
    for key in [GENERATION, OBSERVED_GENERATION] {
        for value in [
            "0",
            "1",
            "2",
            "3",
            "99",
            "",
            " 2",
            "02",
            "two",
            "-1",
            "1.5",
            "1e3",
            "9007199254740992",
            "9007199254740993",
            "9223372036854775807",
            "18446744073709551616",
            &large,
        ] {
            all.push((key, json!({ key: value })));
        }
        all.push((key, json!({ key: null })));
    }
    for word in [
        json!("paused"),
        json!("running"),
        json!("paused-self"),
        json!(PENDING),
        json!(""),
        Value::Null,
    ] {
        all.push((ACKNOWLEDGED, json!({ ACKNOWLEDGED: word })));
    }
    for text in ["", "{}", "null", "[", "{\"generation\":", &large] {
        for key in [STAMP, ACKNOWLEDGEMENT] {
            all.push((key, json!({ key: text })));
        }
    }
    for key in [STAMP, ACKNOWLEDGEMENT] {
        all.push((key, json!({ key: null })));
        all.push((key, json!({ key: "[".repeat(50_000) })));
    }
    all.push((STAMP, json!({ STAMP: others })));
    if let Some((own_stamp, uid)) = own {
        let mut raised: Value = serde_json::from_str(own_stamp).unwrap();
        raised["generation"] = json!(8);
        all.push((
            STAMP,
            json!({ GENERATION: "8", STAMP: raised.to_string(), ACKNOWLEDGED: PENDING }),
        ));
        let echo = json!({
            "generation": 1, "uid": uid, "evidence": "Attested", "objects": 1, "objectGeneration": 1, "at": "",
        });
        all.push((
            ACKNOWLEDGEMENT,
            json!({ ACKNOWLEDGED: "paused", OBSERVED_GENERATION: "1", ACKNOWLEDGEMENT: echo.to_string() }),
        ));
    }
    // More than the API server lets an object have, and more than a condition may cost to compare.
    let huge = "9".repeat(500 * 1024);
    all.push((
        STAMP,
        json!({ GENERATION: huge, OBSERVED_GENERATION: huge, ACKNOWLEDGED: huge, STAMP: huge, ACKNOWLEDGEMENT: huge }),
    ));
    all.push((
        STAMP,
        json!({ GENERATION: null, OBSERVED_GENERATION: null, ACKNOWLEDGED: null, STAMP: null, ACKNOWLEDGEMENT: null }),
    ));
    all
}

pub(super) async fn scenes(ground: &Ground) {
    let place = ground.place("forged").await;
    place.paused(&["acknowledged", "other"]).await;
    let running = json!({ "spec": { "clusterNetwork": { "serviceDomain": "mine" } } });
    place.create("Cluster", "bare", running).await;
    place
        .create("Cluster", "pending", json!({ "spec": { "paused": true } }))
        .await;
    // Nobody answers for this one, so that it stays pending.
    let others = place.get("Cluster", "other").await;
    let others = annotation(&others, STAMP).unwrap();
    for name in ["acknowledged", "bare", "pending"] {
        put_back(&place, name, others).await;
    }
    flips(&place).await;
    subresources(&place).await;
}

/// One object, all forgeries.
async fn put_back(place: &Place<'_>, name: &str, others: &str) {
    let stood = place.get("Cluster", name).await;
    let own = annotation(&stood, STAMP).map(|text| (text, stood.metadata.uid.as_deref().unwrap()));
    for (i, (what, forgery)) in forgeries(own, others).into_iter().enumerate() {
        let context = || format!("{name}, {what} {i}: {:.200}", forgery.to_string());
        let mut annotations = forgery.clone();
        annotations["example.com/step"] = json!(i.to_string());
        let patch = json!({
            "metadata": { "annotations": annotations, "labels": { "step": i.to_string() } },
            "spec": { "clusterNetwork": { "serviceDomain": format!("step-{i}") } },
        });
        let path = place.path("clusters", name);
        let (status, warnings, body) = place
            .ground
            .request("PATCH", &path, "application/merge-patch+json", &patch)
            .await;
        assert_eq!(status, 200, "{}: {body:.300}", context());
        let after: kube::api::DynamicObject = serde_json::from_value(body).unwrap();
        assert_eq!(keys(&after), keys(&stood), "{}", context());
        // The user's own changes are there.
        assert_eq!(
            annotation(&after, "example.com/step"),
            Some(&*i.to_string()),
            "{}",
            context()
        );
        assert_eq!(
            after.metadata.labels.as_ref().unwrap()["step"],
            i.to_string(),
            "{}",
            context()
        );
        assert_eq!(
            after.data["spec"]["clusterNetwork"]["serviceDomain"],
            format!("step-{i}"),
            "{}",
            context()
        );
        let changes = forgery
            .as_object()
            .unwrap()
            .iter()
            .any(|(key, value)| value.as_str() != annotation(&stood, key));
        assert_eq!(warnings.len(), usize::from(changes), "{}: {warnings:?}", context());
        if let Some(warning) = warnings.first() {
            assert!(warning.contains("put back as they stood"), "{}: {warning}", context());
        }
    }
}

/// A flip in the same request counts once, whatever it says in our keys.
async fn flips(place: &Place<'_>) {
    place.paused(&["flips"]).await;
    let mut paused = true;
    for (i, forgery) in [
        json!({ GENERATION: "77" }),
        json!({ GENERATION: null, STAMP: null, ACKNOWLEDGED: "paused", OBSERVED_GENERATION: "2" }),
        json!({ ACKNOWLEDGED: "running", OBSERVED_GENERATION: "4", TOUCH: "" }),
        Value::Null,
    ]
    .into_iter()
    .enumerate()
    {
        paused = !paused;
        let patch = json!({ "metadata": { "annotations": forgery }, "spec": { "paused": paused } });
        let path = place.path("clusters", "flips");
        let (status, warnings, body) = place
            .ground
            .request("PATCH", &path, "application/merge-patch+json", &patch)
            .await;
        assert_eq!(status, 200, "{body}");
        let told = warnings
            .iter()
            .filter(|warning| warning.contains("not believed"))
            .count();
        assert_eq!(told, usize::from(!forgery.is_null()), "{forgery}: {warnings:?}");
        let flipped: kube::api::DynamicObject = serde_json::from_value(body).unwrap();
        assert_eq!(stamp(&flipped).generation, i as u64 + 2, "{flipped:?}");
        assert_eq!(annotation(&flipped, GENERATION), Some(&*(i + 2).to_string()));
        assert_eq!(annotation(&flipped, ACKNOWLEDGED), Some(PENDING));
        assert_eq!(annotation(&flipped, TOUCH), None);
        assert_eq!(annotation(&flipped, OBSERVED_GENERATION), Some("1"), "{flipped:?}");
    }
}

/// Metadata in a write of a subresource is none.
async fn subresources(place: &Place<'_>) {
    let stood = place.get("Cluster", "acknowledged").await;
    let forged = json!({ "metadata": { "annotations": { GENERATION: "9", ACKNOWLEDGED: "running" } } });
    let path = format!("{}/status", place.path("clusters", "acknowledged"));
    let (status, _, _) = place
        .ground
        .request("PATCH", &path, "application/merge-patch+json", &forged)
        .await;
    assert_eq!(status, 200);
    let mut whole = serde_json::to_value(place.get("Cluster", "acknowledged").await).unwrap();
    whole["metadata"]["annotations"] = forged["metadata"]["annotations"].clone();
    let (status, _, body) = place.ground.request("PUT", &path, "application/json", &whole).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(keys(&place.get("Cluster", "acknowledged").await), keys(&stood));
}
