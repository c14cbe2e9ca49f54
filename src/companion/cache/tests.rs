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
