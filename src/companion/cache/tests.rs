use std::time::Duration;

use serde_json::json;

use super::*;
use crate::{companion::kinds::memberships, rules::Rules};

struct Watched {
    rules: Rules,
    cache: Cache,
}

impl Watched {
    fn new() -> Self {
        let rules = Rules::capi().unwrap();
        let mut cache = Cache::default();
        let kind = GroupKind::new("cluster.x-k8s.io", "Cluster");
        cache.set_head(&kind, rules.rule_for(&kind).as_deref());
        Self { rules, cache }
    }

    fn put(&mut self, at: u64, source: Source, object: &ObjectView) {
        let rule = self
            .rules
            .rule_for(&GroupKind::new("cluster.x-k8s.io", object.kind.as_str()))
            .unwrap();
        let needs = Needs::of(&rule, &memberships(&self.rules));
        self.cache
            .put(Moment(Duration::from_secs(at)), &needs, object.clone(), &rule, source);
    }

    fn unchanged_since(&self, object: &ObjectView) -> Option<u64> {
        let kind = GroupKind::new("cluster.x-k8s.io", object.kind.as_str());
        self.cache.unchanged_since(&kind, object).map(|at| at.0.as_secs())
    }
}

fn object(kind: &str, name: &str, version: u64, cluster: Option<&str>) -> ObjectView {
    let labels = cluster.map_or_else(|| json!({}), |name| json!({ "cluster.x-k8s.io/cluster-name": name }));
    let object = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind,
        "metadata": { "name": name, "namespace": "ns", "uid": name, "resourceVersion": version.to_string(), "labels": labels },
    });
    serde_json::from_value(object).unwrap()
}

/// An orphan may have left a Cluster; whatever is another Cluster's has not.
#[test]
fn an_object_belongs_elsewhere_only_where_another_is_there_for_it() {
    let mut watched = Watched::new();
    let cluster = object("Cluster", "c", 1, None);
    watched.put(0, Source::List, &cluster);
    watched.put(0, Source::List, &object("Cluster", "other", 2, None));
    let elsewhere = |name| {
        watched
            .cache
            .belongs_elsewhere(&object("Machine", "m", 3, name), &cluster)
    };
    assert_eq!(
        [Some("other"), Some("c"), Some("nobody"), None].map(elsewhere),
        [true, false, false, false]
    );
}

#[test]
fn what_the_watch_has_not_shown_may_have_changed_just_now() {
    let mut watched = Watched::new();
    let [joined, left, same] =
        [(3, Some("c")), (5, None), (8, None)].map(|(version, name)| object("Machine", "m", version, name));
    // From its creation on.
    watched.put(10, Source::Event, &joined);
    assert_eq!(watched.unchanged_since(&joined), Some(0));
    assert_eq!(watched.unchanged_since(&left), None);
    watched.put(20, Source::Event, &left);
    assert_eq!(watched.unchanged_since(&left), Some(20));
    // What was read before the watch has gone on is as the watch has shown it, or it has changed since.
    watched.put(30, Source::Event, &same);
    assert_eq!(
        [&joined, &left, &same].map(|object| watched.unchanged_since(object)),
        [Some(20); 3]
    );
    // A list may have passed over anything; and another of that name is another.
    watched.put(40, Source::List, &object("Machine", "m", 9, None));
    assert_eq!(watched.unchanged_since(&same), Some(40));
    let mut other = same.clone();
    other.metadata.uid = "other".to_owned();
    assert_eq!(watched.unchanged_since(&other), None);
}

/// What is deleted may have belonged to whom it said, or to anybody where that cannot be told.
#[test]
fn what_is_gone_is_remembered_for_whom_it_belonged_to() {
    let mut watched = Watched::new();
    let kind = |kind| GroupKind::new("cluster.x-k8s.io", kind);
    let head = |name| Key::of(&kind("Cluster"), &object("Cluster", name, 1, None));
    for (name, version) in [("c", 1), ("other", 2)] {
        watched.put(0, Source::List, &object("Cluster", name, version, None));
    }
    let gone = |watched: &Watched| {
        ["c", "other"].map(|name| {
            let since = watched.cache.gone_since(&kind("Machine"), &head(name));
            since.map(|at| at.0.as_secs())
        })
    };
    let at = |seconds| Moment(Duration::from_secs(seconds));
    assert_eq!(gone(&watched), [None; 2], "its watch has not begun");
    watched.cache.begin(at(5), &kind("Machine"));
    assert_eq!(gone(&watched), [Some(5); 2]);
    let delete = |watched: &mut Watched, seconds, name: &str, cluster| {
        let machine = object("Machine", name, 3, cluster);
        watched.put(6, Source::Event, &machine);
        let key = Key::of(&kind("Machine"), &machine);
        watched.cache.remove(at(seconds), &key, None);
    };
    delete(&mut watched, 10, "m", Some("c"));
    assert_eq!(gone(&watched), [Some(10), Some(5)]);
    delete(&mut watched, 20, "orphan", None);
    assert_eq!(gone(&watched), [Some(20); 2]);
    // Another one of that name is another.
    watched.put(30, Source::Event, &object("Machine", "n", 4, Some("other")));
    let mut another = object("Machine", "n", 5, Some("other"));
    another.metadata.uid = "another".to_owned();
    watched.put(40, Source::Event, &another);
    assert_eq!(gone(&watched), [Some(20), Some(40)]);
    let others = watched.cache.gone_since(&kind("MachineSet"), &head("c"));
    assert_eq!(others, None);
}
