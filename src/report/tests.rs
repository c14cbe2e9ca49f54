use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    audit::{Objects, audit, ruled},
    files::{FileError, Files},
    model::{Code, Report, Row, Status},
    select::Query,
};
use crate::{protocol::keys, rules::Rules};

const UID: &str = "uid-of-c";

fn condition(paused: bool, message: &str) -> Value {
    let (status, reason) = if paused {
        ("True", "Paused")
    } else {
        ("False", "NotPaused")
    };
    json!([{"type": "Paused", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}])
}

fn stamp(generation: u64, before: &[&str], after: &[&str], uid: &str) -> String {
    json!({"generation": generation, "kind": "Cluster.cluster.x-k8s.io", "namespace": "n", "name": "c", "uid": uid,
           "before": before, "after": after, "why": "flip", "at": "2026-01-02T00:00:00Z", "by": "alice",
           "reason": "CHG-1"})
    .to_string()
}

fn acknowledgement(generation: u64, uid: &str) -> String {
    json!({"generation": generation, "uid": uid, "evidence": "Attested", "objects": 2, "objectGeneration": 2,
           "at": "2026-01-02T00:00:03.5Z"})
    .to_string()
}

/// A Cluster that is paused by its field, with these keys.
fn cluster(paused: bool, keys: &[(&str, &str)]) -> Value {
    let annotations: serde_json::Map<String, Value> = keys
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "c", "namespace": "n", "uid": UID, "generation": 2, "annotations": annotations},
        "spec": {"paused": paused},
        "status": {"conditions": condition(true, "Cluster spec.paused is set to true")}
    })
}

fn machine(name: &str, paused: bool) -> Value {
    let message = if paused {
        "Cluster spec.paused is set to true"
    } else {
        ""
    };
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": name, "namespace": "n", "uid": format!("uid-of-{name}"), "generation": 1,
                     "labels": {"cluster.x-k8s.io/cluster-name": "c"}},
        "spec": {"clusterName": "c"},
        "status": {"conditions": condition(paused, message)}
    })
}

fn objects(rules: &Rules, all: &[Value]) -> Objects {
    let all: Vec<_> = all
        .iter()
        .map(|object| ruled(rules, serde_json::from_value(object.clone()).unwrap()).unwrap())
        .collect();
    Objects {
        listed: all.iter().map(|ruled| ruled.rule.group_kind.clone()).collect(),
        all,
        ..Objects::default()
    }
}

fn now() -> Timestamp {
    "2026-01-09T00:00:00Z".parse().unwrap()
}

fn report(all: &[Value], query: &Query) -> Report {
    let rules = Rules::capi().unwrap();
    audit(&rules, &objects(&rules, all), query, now()).unwrap()
}

fn row<'a>(report: &'a Report, name: &str) -> &'a Row {
    report
        .rows
        .iter()
        .find(|row| row.name == name)
        .unwrap_or_else(|| panic!("no row of {name}: {report:#?}"))
}

fn codes(row: &Row) -> Vec<Code> {
    row.findings.iter().map(|finding| finding.code).collect()
}

fn paused(acknowledged: &str, observed: &str) -> Value {
    let stamp = stamp(7, &[], &["spec.paused"], UID);
    let echo = acknowledgement(7, UID);
    let mut all = vec![
        (keys::GENERATION, "7"),
        (keys::OBSERVED_GENERATION, observed),
        (keys::ACKNOWLEDGED, acknowledged),
        (keys::STAMP, &stamp),
    ];
    let before = acknowledgement(6, UID);
    all.push((keys::ACKNOWLEDGEMENT, if observed == "7" { &echo } else { &before }));
    cluster(true, &all)
}

#[test]
fn an_acknowledged_pause_has_nothing_to_be_looked_at() {
    let report = report(&[paused("paused", "7"), machine("m", true)], &Query::default());
    let c = row(&report, "c");
    assert_eq!(
        (c.status, c.generation, c.observed_generation),
        (Status::Acknowledged, Some(7), Some(7))
    );
    assert_eq!(
        (c.by.as_str(), c.reason.as_str(), c.took_seconds),
        ("alice", "CHG-1", Some(3.5))
    );
    assert_eq!(c.paused_by, ["spec.paused"]);
    let m = row(&report, "m");
    assert_eq!(
        (m.status, m.paused, m.reason.as_str()),
        (Status::Inherited, true, "CHG-1")
    );
    assert_eq!(m.inherited_from[0].from, "Cluster.cluster.x-k8s.io n/c");
    assert_eq!(report.totals.findings, 0, "{report:#?}");
}

#[test]
fn who_lags_is_named_and_nobody_else() {
    let all = [paused("pending", "6"), machine("late", false), machine("done", true)];
    let report = report(&all, &Query::default());
    let c = row(&report, "c");
    assert_eq!((c.status, c.hasty), (Status::Pending, false));
    let names: Vec<&str> = c.waits_for.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["late"]);
    // The Cluster's own answer and that of the other machine: whether they are about this flip, the companion knows.
    assert_eq!(c.to_be_proven, 2);
    assert_eq!(codes(c), [Code::Pending]);
    assert_eq!(row(&report, "late").waits_for.len(), 1);
    assert_eq!(row(&report, "done").waits_for.len(), 0);
}

#[test]
fn a_word_without_its_echo_is_not_believed() {
    let forged = paused("paused", "6");
    let report = report(&[forged, machine("m", true)], &Query::default());
    let c = row(&report, "c");
    assert_eq!((c.status, codes(c)), (Status::Irregular, vec![Code::NotAnEcho]));
}

#[test]
fn inputs_that_are_not_those_of_the_stamp() {
    let mut object = paused("paused", "7");
    object["spec"]["paused"] = json!(false);
    let report = report(&[object], &Query::default());
    let c = row(&report, "c");
    assert_eq!(
        (c.status, codes(c), c.paused),
        (Status::Irregular, vec![Code::InputsDiffer], false)
    );
}

#[test]
fn records_of_another_and_broken_ones() {
    let mut copy = paused("paused", "7");
    copy["metadata"]["uid"] = json!("another");
    let report_of = |object: &Value| report(std::slice::from_ref(object), &Query::default());
    assert_eq!(codes(row(&report_of(&copy), "c")), [Code::OfAnother]);
    let broken = cluster(true, &[(keys::GENERATION, "7"), (keys::ACKNOWLEDGED, "paused")]);
    assert_eq!(codes(row(&report_of(&broken), "c")), [Code::Broken]);
    let bare = cluster(true, &[]);
    let found = report_of(&bare);
    let c = row(&found, "c");
    assert_eq!((c.status, codes(c)), (Status::Unstamped, vec![Code::Unstamped]));
    assert_eq!(
        c.since.as_deref(),
        Some("2026-01-01T00:00:00Z"),
        "from the controller's condition"
    );
}

#[test]
fn an_acknowledged_pause_that_somebody_contradicts_now() {
    let report = report(&[paused("paused", "7"), machine("fresh", false)], &Query::default());
    let c = row(&report, "c");
    assert_eq!((c.status, codes(c)), (Status::Acknowledged, vec![Code::Contradicted]));
    assert_eq!(c.waits_for[0].name, "fresh");
}

#[test]
fn what_a_query_selects() {
    let all = [paused("paused", "7"), machine("m", true), machine("o", false)];
    let of = |query: Query| -> Vec<String> { report(&all, &query).rows.into_iter().map(|row| row.name).collect() };
    assert_eq!(
        of(Query {
            kinds: vec!["machines".parse().unwrap()],
            ..Query::default()
        }),
        ["m", "o"]
    );
    assert_eq!(
        of(Query {
            fields: "metadata.name=m".parse().unwrap(),
            ..Query::default()
        }),
        ["m"]
    );
    assert_eq!(
        of(Query {
            labels: "cluster.x-k8s.io/cluster-name=c".parse().unwrap(),
            ..Query::default()
        }),
        ["m", "o"]
    );
    assert_eq!(
        of(Query {
            namespace: Some("other".to_owned()),
            ..Query::default()
        }),
        Vec::<String>::new()
    );
    // The Machine that lags is what keeps the pause from holding.
    assert_eq!(
        of(Query {
            unacknowledged: true,
            ..Query::default()
        }),
        ["c", "o"]
    );
    let week = |days: i64| Query {
        older_than: Some(jiff::SignedDuration::from_hours(24 * days)),
        ..Query::default()
    };
    assert_eq!(of(week(6)).len(), 3);
    assert_eq!(of(week(8)).len(), 0);
    assert_eq!(codes(row(&report(&all, &week(6)), "m")), [Code::Old]);

    let running = [cluster(false, &[]), machine("m", false)];
    assert_eq!(report(&running, &Query::default()).rows.len(), 0);
    let tree = Query {
        cluster: Some("c".to_owned()),
        ..Query::default()
    };
    assert_eq!(report(&running, &tree).rows.len(), 2);
    // Of one name in two namespaces both are meant.
    let mut there = [cluster(false, &[]), machine("m", false)];
    for object in &mut there {
        object["metadata"]["namespace"] = json!("there");
        object["metadata"]["uid"] = json!(format!("{} there", object["metadata"]["uid"]));
    }
    let both: Vec<Value> = running.iter().chain(&there).cloned().collect();
    assert_eq!(report(&both, &tree).rows.len(), 4);
    let one = Query {
        namespace: Some("there".to_owned()),
        ..tree
    };
    assert_eq!(report(&both, &one).rows.len(), 2);
    let rules = Rules::capi().unwrap();
    for none in [
        Query {
            cluster: Some("gone".to_owned()),
            ..Query::default()
        },
        Query {
            kinds: vec!["machin".parse().unwrap()],
            ..Query::default()
        },
    ] {
        assert!(audit(&rules, &objects(&rules, &running), &none, now()).is_err());
    }
}

fn from_text(text: &str) -> Result<Report, FileError> {
    from_bytes(text.as_bytes())
}

fn from_bytes(bytes: &[u8]) -> Result<Report, FileError> {
    let rules = Rules::capi().unwrap();
    let mut files = Files::default();
    files.add(&rules, "backup", bytes)?;
    Ok(audit(&rules, &files.objects(&rules), &Query::default(), now()).unwrap())
}

#[test]
fn files_say_the_same_as_a_cluster() {
    let all = [paused("pending", "6"), machine("late", false), machine("done", true)];
    let expected = report(&all, &Query::default()).rows;
    let list = json!({"apiVersion": "v1", "items": all, "kind": "List"});
    let lines: String = all.iter().map(|object| format!("{object}\n")).collect();
    let documents: String = all
        .iter()
        .map(|object| format!("---\n{}", serde_saphyr::to_string(object).unwrap()))
        .collect();
    for text in [
        list.to_string(),
        serde_json::to_string_pretty(&list).unwrap(),
        format!("\u{feff}\n {list}"),
        lines,
        documents,
        serde_saphyr::to_string(&list).unwrap(),
        json!(all).to_string(),
    ] {
        assert_eq!(from_text(&text).unwrap().rows, expected, "{text}");
    }
    // A list of one kind whose items do not say what they are.
    let mut plain = cluster(true, &[]);
    for key in ["apiVersion", "kind"] {
        plain.as_object_mut().unwrap().remove(key);
    }
    let typed = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "items": [plain], "kind": "ClusterList"});
    assert_eq!(from_text(&typed.to_string()).unwrap().rows.len(), 1);
}

#[test]
fn a_file_without_uids_says_so() {
    let mut object = paused("paused", "7");
    object["metadata"].as_object_mut().unwrap().remove("uid");
    let report = from_text(&object.to_string()).unwrap();
    assert!(
        row(&report, "c").findings[0].message.contains("leaves out the uid"),
        "{report:#?}"
    );
    assert!(report.unknown.iter().any(|note| note.contains("without a uid")));
}

#[test]
fn hostile_files_are_errors_with_a_line() {
    let deep = "[".repeat(100_000);
    let bomb = format!(
        "a: &a [x,x,x,x,x,x,x,x,x]\n{}",
        (0..9)
            .map(|i| format!(
                "{0}: &{0} [{1}]\n",
                char::from(b'b' + i),
                vec![format!("*{}", char::from(b'a' + i)); 9].join(",")
            ))
            .collect::<String>()
    );
    for (text, line) in [
        ("{\"kind\": \"Cluster\",\n \"metadata\": 7}", "line 2"),
        ("{\"kind\": \"Cluster\",\n \"metadata\": {", "line 2"),
        ("kind: Cluster\nmetadata:\n  - 1\n", "line"),
        ("kind: [\n\u{1b}[2J", "line"),
        (deep.as_str(), "line 1"),
        (bomb.as_str(), ""),
        ("42", ""),
        ("\u{0}\u{1}\u{2}", ""),
    ] {
        let error = match from_text(text) {
            Err(error) => error.to_string(),
            // What aliases multiply may also just be passed over.
            Ok(report) => {
                assert!(report.rows.is_empty());
                continue;
            }
        };
        assert!(error.contains(line), "{error}");
        assert!(
            error.len() < 500 && !error.chars().any(super::text::is_active),
            "{error:?}"
        );
    }
    for binary in [
        b"\x1f\x8b\x08\x00\x00".as_slice(),
        b"\x89PNG\r\n\x1a\n",
        b"\x7fELF\x02\x01\x01\x00\xb0\xd7",
        b"{\"kind\": \"\xff\"}",
        b"kind: Cluster\nmetadata:\n  name: \xff\n",
        b"\xe2\x82",
    ] {
        let error = from_bytes(binary).unwrap_err().to_string();
        assert!(error.starts_with("backup is not UTF-8 text ("), "{error}");
    }
    assert!(matches!(from_text(" \n"), Err(FileError::Empty { .. })));
    assert!(matches!(from_text("# nothing\n---\n"), Err(FileError::Empty { .. })));
}
