//! What the companion has written down, against the API server's own audit log.

use std::collections::BTreeSet;
use std::path::Path;

use futures::future::join_all;
use kube::api::{Patch, PatchParams};
use pausegen::protocol::keys;
use pausegen::sandbox::Sandbox;
use pausegen::sandbox::product::{self, Product};
use serde_json::{Value, json};

use super::tool::{Tool, err, out};
use crate::companion::{Sea, annotation, says};
use crate::support::eventually;

type Points = BTreeSet<(String, u64)>;

/// The objects and generations of events of a kind.
fn points(events: &[Value], kinds: &[&str]) -> Points {
    let of = events
        .iter()
        .filter(|event| kinds.contains(&event["event"].as_str().unwrap()));
    of.map(|event| {
        let generation = event
            .pointer("/stamp/generation")
            .or(event.pointer("/acknowledgement/generation"));
        let generation = generation.unwrap_or(&event["generation"]).as_u64().unwrap();
        (
            format!("{} {}", event["object"]["kind"], event["object"]["name"]),
            generation,
        )
    })
    .collect()
}

fn events(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// All files of a history.
fn written(history: &Path) -> Vec<Value> {
    let files = pausegen::history::verify::files(history).unwrap();
    files
        .iter()
        .flat_map(|file| events(&std::fs::read_to_string(file).unwrap()))
        .collect()
}

/// Flips without end, and SIGKILL in the middle of them.
pub(super) async fn killed_while_it_writes(tool: &Tool, sea: &Sea, product: &mut Product, history: &Path) {
    let path = history.to_str().unwrap();
    for i in 0..12 {
        if i == 9 {
            product.stop();
        }
        let patch = Patch::Merge(json!({"spec": {"paused": i < 9 && i % 2 == 0}}));
        // Refused once the webhook is dead.
        let flipped = sea.fleets.patch("armada", &PatchParams::default(), &patch).await;
        assert_eq!(flipped.is_err(), i >= 9, "{i}");
    }
    let (code, text) = tool.says(&["history", "verify", path]).await;
    // It may have died in the middle of a line.
    assert!(code == 0 || text.contains("the last line is cut off"), "{text}");
}

/// Stamps at the same time: the API server tries those again that come second.
async fn stamped_at_once(sea: &Sea, log: &Path) {
    let touch = Patch::Merge(json!({"metadata": {"annotations": {keys::TOUCH: ""}}}));
    let params = PatchParams::default();
    eventually("a stamp is tried again", async || {
        let stamped = join_all((0..8).map(|_| sea.fleets.patch("armada", &params, &touch))).await;
        let generations: BTreeSet<u64> = stamped
            .into_iter()
            .map(|object| annotation(&object.unwrap(), "generation").parse().unwrap())
            .collect();
        assert_eq!(generations.len(), 8, "{generations:?}");
        let text = std::fs::read_to_string(log).unwrap();
        text.lines()
            .any(|line| line.matches(".pausegen.io/stamp-").count() > 1)
            .then_some(())
    })
    .await;
}

pub(super) async fn agree_with_the_audit_log(tool: &Tool, sea: &Sea, sandbox: &Sandbox, history: &Path) {
    let path = history.to_str().unwrap();
    let log = sandbox.audit_log().unwrap();
    stamped_at_once(sea, &log).await;
    sea.pause(true).await;
    sea.answer("armada", "nina", "pinta", true).await;
    let fleet = sea.acknowledged("paused").await;
    let last = (
        "\"Fleet.sea.example.org\" \"armada\"".to_owned(),
        annotation(&fleet, "generation").parse().unwrap(),
    );
    let all = eventually("it is written down", async || {
        let all = written(history);
        points(&all, &["acknowledged"]).contains(&last).then_some(all)
    })
    .await;
    let (code, text) = tool.says(&["history", "verify", path]).await;
    assert_eq!(code, 0, "{text}");
    let head = text.lines().find_map(|line| line.strip_prefix("head ")).unwrap();
    assert_eq!(head, all.last().unwrap()["hash"]);
    let (code, _) = tool.says(&["history", "verify", path, "--expect-head", head]).await;
    assert_eq!(code, 0);
    let (code, text) = tool
        .says(&["history", "verify", path, "--expect-head", &"0".repeat(64)])
        .await;
    assert!(code == 1 && text.contains("is not in the chain"), "{text}");
    assert!(
        all.iter().any(|event| event["event"] == "continued"),
        "it has been rotated"
    );

    let (_, page) = tool.says(&["audit", "-A", "-o", "html", "--history", path]).await;
    assert!(
        page.matches("Fleet.sea.example.org default/armada resumed by admin")
            .count()
            > 3,
        "{page}"
    );

    // A controller that writes to what is paused and acknowledged.
    says(&sea.fleets, "armada", true).await;
    let from_log = async |more: &[&str]| {
        let args = [
            "history",
            "from-audit-log",
            log.to_str().unwrap(),
            "--companion-user",
            product::USER,
        ];
        tool.run(&[&args, more].concat()).await
    };
    let output = from_log(&["--controller", "admin"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    let rebuilt = events(&out(&output));
    let (seen, logged) = (points(&all, &["flip"]), points(&rebuilt, &["logged-flip"]));
    // The companion may see only the last of several flips at once, the log has them all.
    assert!(
        seen.is_subset(&logged),
        "{:?}",
        seen.difference(&logged).collect::<Vec<_>>()
    );
    assert!(logged.contains(&last) && logged.len() > 10);
    let is_armada = |event: &&Value| event["event"] == "logged-flip" && event["object"]["name"] == "armada";
    let told: Vec<_> = rebuilt.iter().filter(is_armada).cloned().collect();
    assert_eq!(
        told.len(),
        points(&told, &["logged-flip"]).len(),
        "a generation is told twice"
    );
    let (seen, logged) = (
        points(&all, &["acknowledged"]),
        points(&rebuilt, &["logged-acknowledgement"]),
    );
    assert!(
        seen.is_subset(&logged),
        "{:?}",
        seen.difference(&logged).collect::<Vec<_>>()
    );
    let writes = points(&rebuilt, &["logged-write"]);
    assert!(writes.contains(&last), "{writes:?}");
    // Without a controller among those who wrote there is nothing to find.
    let output = from_log(&[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let rebuilt = tool.folder.path().join("rebuilt.jsonl");
    std::fs::write(&rebuilt, &output.stdout).unwrap();
    let (code, text) = tool.says(&["history", "verify", rebuilt.to_str().unwrap()]).await;
    assert_eq!(code, 0, "{text}");

    // A log of many times that size needs no more memory.
    let long = tool.folder.path().join("long.log");
    let text = std::fs::read(&log).unwrap();
    let mut file = std::fs::File::create(&long).unwrap();
    let mut size = 0;
    while size < 64 << 20 {
        // The log is being written to: its last line may not be whole.
        std::io::Write::write_all(&mut file, &text).unwrap();
        std::io::Write::write_all(&mut file, b"\n").unwrap();
        size += text.len();
    }
    let (_, memory, time) = tool
        .measured(&["history", "from-audit-log", long.to_str().unwrap()])
        .await;
    println!(
        "{} MiB of audit log: {} MiB in {:.1} s",
        size >> 20,
        memory >> 10,
        time.as_secs_f64()
    );
    assert!(memory < 64 << 10, "{memory} KiB");
}
