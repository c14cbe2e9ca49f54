use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};

use super::{
    audit_log::{Rebuild, Source, Who},
    entry::{Event, GENESIS, Head, Object, digest, read},
    verify::{Verified, What, files, verify, verify_all},
    write::{History, Medium, Settings, Writer},
};
use crate::{
    protocol::{
        GroupKind,
        keys::{self, Standing},
        object::ObjectView,
    },
    report::audit::{Objects, ruled},
    rules::Rules,
};

fn event(generation: u64) -> Event {
    Event::Withdrawn {
        object: Object {
            kind: "Cluster.cluster.x-k8s.io".to_owned(),
            namespace: "n".to_owned(),
            name: "c \u{1b}\"\n".to_owned(),
            uid: "u".to_owned(),
        },
        generation,
    }
}

/// A history of five lines.
fn lines() -> Vec<String> {
    let mut head = Head::default();
    (0..5)
        .map(|i| head.link(format!("2026-01-0{}T00:00:00Z", i + 1), event(i)).unwrap())
        .collect()
}

fn checked(text: &str, expect_head: Option<&str>) -> Verified {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.jsonl");
    fs::write(&path, text).unwrap();
    verify(&[path], expect_head).unwrap()
}

fn whats(verified: &Verified) -> Vec<What> {
    verified.problems.iter().map(|problem| problem.what.clone()).collect()
}

fn joined(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_chain_reads_back() {
    let all = lines();
    let (first, hash) = read(&all[0]).unwrap();
    assert_eq!((first.seq, first.prev.as_str(), first.event), (0, GENESIS, event(0)));
    let (second, _) = read(&all[1]).unwrap();
    assert_eq!(second.prev, hash);
    let verified = checked(&joined(&all), Some(&read(&all[4]).unwrap().1));
    assert_eq!((verified.lines, verified.problems.len(), verified.head.next), (5, 0, 5));
}

#[test]
fn every_change_is_told_apart() {
    let all = lines();
    let head = read(&all[4]).unwrap().1;
    // Edited, with its hash left as it was; also in the last line.
    for at in 0..5 {
        let mut edited = all.clone();
        edited[at] = edited[at].replace(&format!("\"generation\":{at}"), "\"generation\":77");
        let verified = checked(&joined(&edited), None);
        assert_eq!(
            (whats(&verified), verified.problems[0].line),
            (vec![What::Edited], at as u64 + 1)
        );
    }
    // Replaced by a line with a right hash of its own.
    let mut forged = all.clone();
    let mut at = Head {
        next: 2,
        hash: read(&all[1]).unwrap().1,
    };
    forged[2] = at.link("2026-01-03T00:00:00Z".to_owned(), event(77)).unwrap();
    assert_eq!(whats(&checked(&joined(&forged), None)), [What::OtherBefore]);
    // Lost.
    let mut lost = all.clone();
    lost.remove(2);
    let missing = What::Missing {
        from: 2,
        to: 2,
        at_start_of_file: false,
    };
    assert_eq!(whats(&checked(&joined(&lost), None)), [missing]);
    // Reordered.
    let mut swapped = all.clone();
    swapped.swap(1, 2);
    let found = whats(&checked(&joined(&swapped), None));
    assert!(found.contains(&What::Reordered { seq: 1, expected: 3 }), "{found:?}");
    // Twice.
    let mut twice = all.clone();
    twice.insert(3, all[2].clone());
    assert_eq!(
        whats(&checked(&joined(&twice), None)),
        [What::Reordered { seq: 2, expected: 3 }]
    );
    // Cut off: only who has noted the head can tell.
    let cut = joined(&all[..4]);
    assert_eq!(whats(&checked(&cut, None)), []);
    assert_eq!(whats(&checked(&cut, Some(&head))), [What::NoHead(head.clone())]);
    // A line that is not whole.
    let torn = &joined(&all)[..joined(&all).len() - 30];
    let found = checked(torn, None);
    assert!(
        matches!(whats(&found).as_slice(), [What::Truncated { .. }]),
        "{found:?}"
    );
    assert_eq!(found.lines, 4, "nothing before is lost");
    // Something else altogether.
    for junk in ["{}", "\u{0}\u{1}", "[1]", &"x".repeat(3 << 20)] {
        let found = checked(&format!("{}{junk}\n{}", joined(&all[..2]), joined(&all[2..])), None);
        assert!(
            found
                .problems
                .iter()
                .all(|p| matches!(p.what, What::NoLine(_) | What::Truncated { .. })),
            "{found:?}"
        );
        assert!(!found.problems.is_empty());
        assert_eq!(found.lines, 5);
    }
}

fn open(path: &Path, rotate_at: u64) -> Writer {
    Writer::open(Settings {
        path: Some(path.to_owned()),
        rotate_at,
    })
    .unwrap()
}

fn write(path: &Path, rotate_at: u64, count: u64) {
    let mut writer = open(path, rotate_at);
    for i in 0..count {
        writer.push(event(i));
        writer.flush();
    }
}

fn check_path(path: &Path) -> Verified {
    verify(&files(path).unwrap(), None).unwrap()
}

#[test]
fn a_torn_end_is_named_and_nothing_before_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.jsonl");
    write(&path, u64::MAX, 3);
    let whole = fs::read(&path).unwrap();
    // Killed in the middle of the last line, wherever that was.
    let last = whole.iter().rev().skip(1).position(|b| *b == b'\n').unwrap();
    for cut in [1, 2, last / 2, last] {
        let kept = &whole[..whole.len() - cut];
        fs::write(&path, kept).unwrap();
        let expected = if cut == 1 { vec![] } else { vec!["Truncated"] };
        let before = check_path(&path);
        let names: Vec<&str> = before
            .problems
            .iter()
            .map(|p| {
                if matches!(p.what, What::Truncated { .. }) {
                    "Truncated"
                } else {
                    "other"
                }
            })
            .collect();
        assert_eq!(names, expected, "{before:?}");
        write(&path, u64::MAX, 1);
        let after = check_path(&path);
        assert_eq!(after.problems, [], "cut by {cut}");
        assert_eq!(after.recovered, u64::from(cut > 1));
        assert!(fs::read(&path).unwrap().starts_with(kept), "nothing is taken away");
    }
}

#[test]
fn rotation_keeps_the_chain_and_a_missing_file_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.jsonl");
    write(&path, 1500, 30);
    write(&path, 1500, 10);
    let all = files(&path).unwrap();
    assert!(all.len() > 3, "{all:?}");
    let verified = check_path(&path);
    assert_eq!(verified.problems, []);
    let contents: usize = all
        .iter()
        .map(|file| fs::read_to_string(file).unwrap().lines().count())
        .sum();
    assert_eq!(verified.lines as usize, contents);

    let moved = folder.path().join("elsewhere");
    fs::rename(&all[1], &moved).unwrap();
    let found = check_path(&path);
    assert!(
        matches!(found.problems.as_slice(), [problem] if matches!(problem.what, What::Missing { at_start_of_file: true, .. })
            && problem.file.ends_with("000003")),
        "{found:?}"
    );
    fs::rename(&moved, &all[1]).unwrap();
    // The file that is written to is gone: the chain goes on, and who noted a hash of it finds out.
    let noted = verified.head.hash;
    assert_eq!(verify_all(&path, None).unwrap().1.problems, []);
    fs::remove_file(&path).unwrap();
    assert_eq!(whats(&verify_all(&path, None).unwrap().1), [What::NoLast]);
    write(&path, 1500, 1);
    let found = verify(&files(&path).unwrap(), Some(&noted)).unwrap();
    assert_eq!(whats(&found), [What::NoHead(noted)]);
    assert!(files(&folder.path().join("nothing")).is_err());
}

/// A disk with room for so many bytes more.
#[derive(Debug)]
struct Full {
    room: Arc<AtomicUsize>,
    under: Box<dyn Medium>,
}

impl Medium for Full {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let room = self.room.load(Ordering::SeqCst);
        let fits = bytes.len().min(room);
        self.room.store(room - fits, Ordering::SeqCst);
        self.under.append(&bytes[..fits])?;
        if fits < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.under.truncate(length)
    }
}

#[test]
fn what_has_no_room_waits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.jsonl");
    let mut writer = open(&path, u64::MAX);
    let room = Arc::new(AtomicUsize::new(500));
    writer.on(|under| {
        Box::new(Full {
            room: Arc::clone(&room),
            under,
        })
    });
    let mut pushed = 0;
    while writer.waiting() == 0 {
        writer.push(event(pushed));
        writer.flush();
        pushed += 1;
    }
    let torn = check_path(&path);
    assert!(matches!(whats(&torn).as_slice(), [What::Truncated { .. }]), "{torn:?}");
    for _ in 0..3 {
        writer.push(event(pushed));
        writer.flush();
        pushed += 1;
    }
    room.store(usize::MAX / 2, Ordering::SeqCst);
    writer.flush();
    assert_eq!(writer.waiting(), 0);
    let whole = check_path(&path);
    assert_eq!(
        (whole.lines, whole.problems.len(), whole.recovered),
        (6, 0, 0),
        "{whole:?}"
    );

    // For so long that not everything can wait: it says how much is missing.
    room.store(0, Ordering::SeqCst);
    for i in 0..103 {
        writer.push(event(i));
    }
    writer.flush();
    room.store(usize::MAX / 2, Ordering::SeqCst);
    writer.flush();
    assert_eq!(whats(&check_path(&path)), [What::Lost { events: 3 }]);
}

fn object(uid: &str, generation: u64, acknowledged: bool) -> ObjectView {
    let stamp = json!({"generation": generation, "kind": "Cluster.cluster.x-k8s.io", "namespace": "n", "name": "c",
        "uid": uid, "before": [], "after": ["spec.paused"], "why": "flip", "at": format!("2026-01-01T00:00:{generation:02}Z")});
    let observed = if acknowledged { generation } else { generation - 1 };
    let echo = json!({"generation": observed, "uid": uid, "evidence": "Attested", "objects": 1, "objectGeneration": 1,
        "at": "2026-01-01T00:01:00Z"});
    serde_json::from_value(json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "c", "namespace": "n", "uid": uid, "annotations": {
            keys::GENERATION: generation.to_string(), keys::OBSERVED_GENERATION: observed.to_string(),
            keys::ACKNOWLEDGED: if acknowledged { "paused" } else { "pending" },
            keys::STAMP: stamp.to_string(), keys::ACKNOWLEDGEMENT: echo.to_string()}},
        "spec": {"paused": true}
    }))
    .unwrap()
}

fn events(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let names = text.lines().map(|line| {
        serde_json::from_str::<Value>(line).unwrap()["event"]
            .as_str()
            .unwrap()
            .to_owned()
    });
    names.filter(|name| name != "started").collect()
}

#[test]
fn each_flip_and_acknowledgement_once_also_over_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.jsonl");
    let rules = Rules::capi().unwrap();
    let rule = rules.rule_for(&GroupKind::new("cluster.x-k8s.io", "Cluster")).unwrap();
    let settings = || Settings {
        path: Some(path.clone()),
        rotate_at: u64::MAX,
    };
    let see = |history: &History, object: &ObjectView, is_regular: bool| {
        let Standing::Own(record) = Standing::of(&rule.group_kind, object) else {
            panic!()
        };
        history.note(&rule, object, &record, is_regular);
    };
    let history = History::open(settings()).unwrap();
    for _ in 0..3 {
        see(&history, &object("u", 1, false), true);
    }
    see(&history, &object("u", 1, true), true);
    see(&history, &object("u", 1, true), true);
    history.close();
    assert_eq!(events(&path), ["flip", "acknowledged"]);
    let history = History::open(settings()).unwrap();
    see(&history, &object("u", 1, true), true);
    see(&history, &object("u", 1, true), false);
    see(&history, &object("u", 1, true), false);
    see(&history, &object("u", 2, false), true);
    see(&history, &object("v", 2, true), true);
    history.close();
    assert_eq!(
        events(&path),
        ["flip", "acknowledged", "withdrawn", "flip", "flip", "acknowledged"]
    );
    assert_eq!(check_path(&path).problems, []);
}

fn logged(user: &str, verb: &str, resource: &str, name: &str, second: u32, flip: Option<(u64, &str)>) -> Value {
    let mut annotations = serde_json::Map::new();
    if let Some((generation, after)) = flip {
        let note = json!({"hasty": false, "before": "nothing", "after": after}).to_string();
        annotations.insert(format!("flip.pausegen.io/stamp-{generation}"), json!(note));
    }
    json!({"kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": format!("id-{second}"),
        "stage": "ResponseComplete", "requestURI": "/apis", "verb": verb, "user": {"username": user}, "userAgent": "manager",
        "objectRef": {"resource": resource, "namespace": "n", "name": name, "apiGroup": "cluster.x-k8s.io"},
        "responseStatus": {"code": 200}, "requestReceivedTimestamp": format!("2026-01-01T00:00:{second:02}.1Z"),
        "stageTimestamp": format!("2026-01-01T00:00:{second:02}.2Z"), "annotations": annotations})
}

fn rebuilt(log: &[u8], objects: &Objects) -> (Vec<Event>, super::audit_log::Counts) {
    rebuilt_from(&[log], objects)
}

fn rebuilt_from(logs: &[&[u8]], objects: &Objects) -> (Vec<Event>, super::audit_log::Counts) {
    let rules = Rules::capi().unwrap();
    let who = Who {
        companions: BTreeSet::from(["companion".to_owned()]),
        controllers: BTreeSet::new(),
    };
    let mut rebuild = Rebuild::new(&rules, who, objects);
    let mut found = Vec::new();
    let mut sink = |event| {
        found.push(event);
        Ok(())
    };
    let sources = logs.iter().map(|log| Source::new("audit.log", *log).unwrap());
    rebuild.read(sources.collect(), &mut sink, &mut |_| {}).unwrap();
    let counts = rebuild.counts().clone();
    (found, counts)
}

#[test]
fn a_flip_that_was_tried_again_is_told_as_it_was_stored() {
    let tries = |second, answered: Option<&str>| {
        let mut event = logged("alice", "patch", "clusters", "c", second, Some((4, "spec.paused")));
        let note = json!({"hasty": true, "before": "nothing", "after": "spec.paused and mine"}).to_string();
        event["annotations"]["keys.pausegen.io/stamp-10"] = json!(note);
        if let Some(answered) = answered {
            event["responseObject"] = json!({"metadata": {"annotations": {"pausegen.io/generation": answered}}});
        }
        event
    };
    let events = [
        tries(1, None),
        tries(2, Some("10")),
        tries(3, Some("4")),
        // At its last try there was nothing left to do.
        tries(4, Some("9")),
    ];
    let text: String = events.iter().map(|event| format!("{event}\n")).collect();
    let told = rebuilt(text.as_bytes(), &Objects::default()).0.into_iter();
    let told = told.map(|event| match event {
        Event::LoggedFlip {
            generation,
            hasty,
            after,
            ..
        } => (generation, hasty, after),
        other => panic!("{other:?}"),
    });
    let (first, last) = ("spec.paused".to_owned(), "spec.paused and mine".to_owned());
    assert_eq!(
        told.collect::<Vec<_>>(),
        [(10, true, last.clone()), (10, true, last), (4, false, first)]
    );
}

#[test]
fn an_audit_log_tells_who_wrote_to_what_is_paused() {
    let manager = "system:serviceaccount:capi-system:capi-manager";
    let events = [
        logged("alice", "patch", "clusters", "c", 1, Some((1, "spec.paused"))),
        logged(manager, "patch", "clusters", "c", 2, None),
        logged("companion", "patch", "clusters", "c", 3, None),
        logged("bob", "patch", "clusters", "c", 4, None),
        logged(manager, "get", "clusters", "c", 5, None),
        logged(manager, "update", "clusters", "c", 6, None),
        logged(manager, "delete", "machines", "m", 7, None),
        logged(manager, "delete", "machines", "other", 7, None),
        logged("alice", "patch", "clusters", "c", 8, Some((2, "nothing"))),
        logged("companion", "patch", "clusters", "c", 9, None),
        logged(manager, "update", "clusters", "c", 10, None),
    ];
    let text: String = events.iter().map(|event| format!("{event}\n")).collect();
    let (_, counts) = rebuilt(text.as_bytes(), &Objects::default());
    assert_eq!((counts.flips, counts.acknowledgements, counts.writes), (2, 2, 1));

    // With the objects at hand also what inherits.
    let objects = cluster_and_machine();
    let (found, counts) = rebuilt(text.as_bytes(), &objects);
    assert_eq!(counts.writes, 2);
    let Some(Event::LoggedWrite {
        object,
        inherited_from: Some(above),
        verb,
        ..
    }) = found.iter().rfind(|event| matches!(event, Event::LoggedWrite { .. }))
    else {
        panic!("{found:?}")
    };
    assert_eq!(
        (object.name.as_str(), above.name.as_str(), verb.as_str()),
        ("m", "c", "delete")
    );

    // The same from gzip, in two members.
    let mut packed = Vec::new();
    let middle = text.len() / 2;
    for part in [&text[..middle], &text[middle..]] {
        let mut encoder = flate2::write::GzEncoder::new(&mut packed, flate2::Compression::fast());
        encoder.write_all(part.as_bytes()).unwrap();
        encoder.finish().unwrap();
    }
    assert_eq!(rebuilt(&packed, &objects).0, found);

    // Two API servers have answered by turns, each with a log of its own.
    let mut logs = [String::new(), String::new()];
    for (i, event) in events.iter().enumerate() {
        logs[i % 2].push_str(&format!("{event}\n"));
    }
    for order in [[0, 1], [1, 0]] {
        let logs = order.map(|i| logs[i].as_bytes());
        let (merged, counts) = rebuilt_from(&logs, &objects);
        assert_eq!((merged.len(), counts.writes), (found.len(), 2), "{merged:?}");
    }
}

fn cluster_and_machine() -> Objects {
    let rules = Rules::capi().unwrap();
    let of = |value: Value| ruled(&rules, serde_json::from_value(value).unwrap()).unwrap();
    let all = vec![
        of(json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "c", "namespace": "n", "uid": "u"}})),
        of(json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": "m", "namespace": "n", "uid": "v"}, "spec": {"clusterName": "c"}})),
    ];
    Objects {
        all,
        ..Objects::default()
    }
}

/// How many writes of controllers are told, of these events after a pause of the Cluster that is acknowledged.
fn told(after: &str, events: &[Value]) -> u64 {
    let mut all = vec![
        logged("alice", "patch", "clusters", "c", 1, Some((1, after))),
        logged("companion", "patch", "clusters", "c", 2, None),
    ];
    all.extend(events.iter().cloned());
    let text: String = all.iter().map(|event| format!("{event}\n")).collect();
    rebuilt(text.as_bytes(), &cluster_and_machine()).1.writes
}

#[test]
fn no_write_of_a_controller_slips_through() {
    let manager = "system:serviceaccount:capi-system:capi-manager";
    let changed = |mut event: Value, change: &dyn Fn(&mut Value)| {
        change(&mut event);
        event
    };
    let update = |name: &str, second| logged(manager, "update", "clusters", name, second, None);
    assert_eq!(told("spec.paused", &[update("c", 3)]), 1);
    // One that was under way when the acknowledgement was stored.
    let under_way = changed(update("c", 3), &|event| {
        event["requestReceivedTimestamp"] = json!("2026-01-01T00:00:00.9Z");
    });
    assert_eq!(told("spec.paused", &[under_way]), 1);
    // Deleted, and not gone yet: its controller goes on with it. Another one of that name is not paused.
    let delete = logged("bob", "delete", "clusters", "c", 3, None);
    assert_eq!(told("spec.paused", &[delete.clone(), update("c", 4)]), 1);
    let create = logged("bob", "create", "clusters", "c", 4, None);
    assert_eq!(told("spec.paused", &[delete, create, update("c", 5)]), 0);
    // All at once: the Cluster, and the Machine that inherits.
    for resource in ["clusters", "machines"] {
        let all = logged(manager, "deletecollection", resource, "", 3, None);
        let all = changed(all, &|event| {
            event["objectRef"].as_object_mut().unwrap().remove("name");
        });
        assert_eq!(told("spec.paused", &[all]), 1, "{resource}");
    }
    // On behalf of somebody, in either direction.
    let as_bob = changed(update("c", 3), &|event| {
        event["impersonatedUser"] = json!({"username": "bob"});
    });
    assert_eq!(told("spec.paused", &[as_bob]), 1);
    let as_manager = changed(logged("bob", "update", "clusters", "c", 3, None), &|event| {
        event["impersonatedUser"] = json!({"username": manager});
    });
    assert_eq!(told("spec.paused", &[as_manager]), 1);
    let collector = logged("system:kube-controller-manager", "delete", "machines", "m", 3, None);
    assert_eq!(told("spec.paused", &[collector]), 1);
    // Nothing was written.
    for (path, value) in [
        ("requestURI", json!("/apis/x?dryRun=All")),
        ("requestObject", json!({"kind": "DeleteOptions", "dryRun": ["All"]})),
        ("responseStatus", json!({"code": 409})),
        ("stage", json!("RequestReceived")),
    ] {
        let nothing = changed(update("c", 3), &|event| event[path] = value.clone());
        assert_eq!(told("spec.paused", &[nothing]), 0, "{path}");
    }
    // It may have changed nothing.
    let answered = |event: Value, version: &str| {
        changed(event, &|event| {
            event["responseObject"] = json!({"kind": "Cluster", "metadata": {"resourceVersion": version}});
        })
    };
    let status = |second, version: &str| {
        changed(
            answered(logged("companion", "patch", "clusters", "c", second, None), version),
            &|event| {
                event["objectRef"]["subresource"] = json!("status");
            },
        )
    };
    let patch = |second| logged(manager, "patch", "clusters", "c", second, None);
    let told_of = |events: &[Value]| told("spec.paused", events);
    assert_eq!(told_of(&[status(3, "7"), answered(patch(4), "7")]), 0, "nothing");
    assert_eq!(told_of(&[status(3, "7"), answered(patch(4), "8")]), 1, "something");
    assert_eq!(told_of(&[status(3, "7"), patch(4)]), 1, "no answer in the log");
    assert_eq!(told_of(&[answered(patch(4), "7")]), 1, "no revision from before");
    assert_eq!(
        told_of(&[status(3, "7"), answered(patch(4), "8"), answered(patch(5), "8")]),
        1,
        "the second one changed nothing"
    );
    for (base, writes) in [("7", 0), ("6", 1)] {
        let update = changed(answered(update("c", 3), "7"), &|event| {
            event["requestObject"] = json!({"metadata": {"resourceVersion": base}});
        });
        assert_eq!(told_of(&[update]), writes, "made on {base}, answered with 7");
    }
    // Somebody's write that changed nothing is complete before the controller's that did, with the revision of that one.
    let slow = changed(answered(patch(4), "8"), &|event| {
        event["requestReceivedTimestamp"] = json!("2026-01-01T00:00:02.9Z");
    });
    let nothing = answered(logged("bob", "patch", "clusters", "c", 3, None), "8");
    assert_eq!(told_of(&[nothing, slow]), 1, "they were under way at once");
    // An answer that is no object.
    let status_only = changed(patch(3), &|event| {
        event["responseObject"] = json!({"metadata": [], "kind": 7});
    });
    assert_eq!(told_of(&[status_only]), 1);
    // A Cluster's annotation pauses nobody but itself.
    let of_machine = logged(manager, "update", "machines", "m", 3, None);
    assert_eq!(told("spec.paused", std::slice::from_ref(&of_machine)), 1);
    assert_eq!(told("cluster.x-k8s.io/paused", &[of_machine]), 0);
    // Another stamp was asked for: what was acknowledged is so no more.
    let touched = changed(logged("bob", "patch", "clusters", "c", 3, None), &|event| {
        event["annotations"] = json!({"keys.pausegen.io/stamp-3": r#"{"after":"spec.paused"}"#});
    });
    assert_eq!(told("spec.paused", &[touched.clone(), update("c", 4)]), 0);
    let echo = logged("companion", "patch", "clusters", "c", 4, None);
    assert_eq!(told("spec.paused", &[touched, echo, update("c", 5)]), 1);
}

#[test]
fn a_log_that_is_none_is_told_by_line() {
    let mut text = String::from("not json\n{\"kind\":\"Other\"}\n\n{\"kind\":\"Event\",\"user\":7}\n");
    text.push_str(&"[".repeat(100_000));
    text.push('\n');
    text.push_str(&logged("alice", "patch", "clusters", "c", 1, Some((1, "spec.paused"))).to_string());
    let (_, counts) = rebuilt(text.as_bytes(), &Objects::default());
    assert_eq!((counts.flips, counts.unreadable), (1, 4));
    let lines: Vec<u64> = counts.told.iter().map(|(_, line, _)| *line).collect();
    assert_eq!(lines, [1, 2, 4, 5]);
    assert_eq!(
        digest(b""),
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    );
}
