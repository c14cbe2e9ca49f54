//! What pausegen asked of the API server, from the API server's own audit log.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::rbac::v1::PolicyRule;
use pausegen::rules::{Rules, manifests};
use pausegen::sandbox::Sandbox;
use pausegen::sandbox::product::{self, short_rules};
use serde_json::Value;

use super::rig::BOUND;

/// One request of ours.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) verb: String,
    pub(super) group: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) code: u64,
}

impl Request {
    fn of(event: &Value) -> Option<Self> {
        let text = |path: &str| {
            event
                .pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        if text("/user/username") != product::USER || event.get("objectRef").is_none() {
            return None;
        }
        Some(Self {
            verb: text("/verb"),
            group: text("/objectRef/apiGroup"),
            resource: text("/objectRef/resource"),
            subresource: text("/objectRef/subresource"),
            namespace: text("/objectRef/namespace"),
            name: text("/objectRef/name"),
            code: event
                .pointer("/responseStatus/code")
                .and_then(Value::as_u64)
                .unwrap_or_default(),
        })
    }

    fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    /// The leader renews its Lease whatever happens.
    fn is_lease(&self) -> bool {
        self.resource == "leases"
    }

    fn is_event(&self) -> bool {
        self.resource == "events"
    }
}

/// Every request of ours so far.
pub(super) fn requests(sandbox: &Sandbox) -> Vec<Request> {
    let log = std::fs::read_to_string(sandbox.audit_log().unwrap()).unwrap();
    // The last line may be half written.
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter_map(|event| Request::of(&event)).collect()
}

/// Every write of ours so far, but for the leader's Lease: to objects, and Events. What the API server refused, since somebody else wrote at the same
/// time, wrote nothing.
pub(super) fn writes(sandbox: &Sandbox) -> (Vec<Request>, Vec<Request>) {
    let all = requests(sandbox).into_iter();
    let all = all.filter(|request| request.is_write() && !request.is_lease() && !matches!(request.code, 409 | 422));
    all.partition(|request| !request.is_event())
}

/// Waits until we have written nothing for two seconds, and returns how many writes and Events there were.
pub(super) async fn quiet(sandbox: &Sandbox) -> (usize, usize) {
    let mut before = None;
    for _ in 0..60 {
        let (objects, events) = writes(sandbox);
        let now = (objects.len(), events.len());
        if before == Some(now) {
            return now;
        }
        before = Some(now);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    panic!("we do not stop writing: {before:?}")
}

/// Whoever counts has counted right: there are at most three writes and two Events a flip, whatever else happened, and
/// nothing was asked for that `pausegen manifests` does not grant.
pub(super) fn check(sandbox: &Sandbox, flips: &BTreeMap<(String, String), u64>) {
    let (objects, events) = writes(sandbox);
    let mut per_object: BTreeMap<(String, String), u64> = BTreeMap::new();
    for write in &objects {
        *per_object
            .entry((write.namespace.clone(), write.name.clone()))
            .or_default() += 1;
    }
    for (object, count) in per_object {
        let flips = flips.get(&object).copied().unwrap_or_default();
        assert!(
            count <= 3 * flips,
            "{count} writes to {object:?} for {flips} flips: {objects:#?}"
        );
    }
    let flips: u64 = flips.values().sum();
    assert!(
        events.len() as u64 <= 2 * flips,
        "{} Events for {flips} flips",
        events.len()
    );
    granted(sandbox, &short_rules(BOUND, BOUND));
}

/// What was asked for is within what `pausegen manifests` grants for these rules, and nothing was refused.
pub(super) fn granted(sandbox: &Sandbox, rules: &str) {
    let rules = Rules::parse(rules, "rules.yaml").unwrap();
    let role = manifests::cluster_role(&rules, &product::access());
    let policy = role.rules.unwrap();
    let own = manifests::role(&product::own()).rules.unwrap();
    let requests = requests(sandbox);
    assert!(
        requests.iter().any(|request| request.verb == "watch"),
        "the log must show us at work"
    );
    for request in &requests {
        assert_ne!(request.code, 403, "{request:?}");
        assert!(
            policy.iter().any(|rule| grants(rule, request))
                || request.namespace == product::NAMESPACE && own.iter().any(|rule| grants(rule, request)),
            "not granted: {request:?}"
        );
    }
}

fn grants(rule: &PolicyRule, request: &Request) -> bool {
    let resource = match request.subresource.as_str() {
        "" => request.resource.clone(),
        subresource => format!("{}/{subresource}", request.resource),
    };
    let any = match request.subresource.as_str() {
        "" => "*".to_owned(),
        subresource => format!("*/{subresource}"),
    };
    let has = |list: Option<&Vec<String>>, wanted: &[&str]| {
        list.is_some_and(|list| list.iter().any(|entry| wanted.contains(&entry.as_str())))
    };
    has(rule.api_groups.as_ref(), &[&request.group])
        && has(rule.resources.as_ref(), &[&resource, &any])
        && has(Some(&rule.verbs), &[&request.verb])
        && rule
            .resource_names
            .as_ref()
            .is_none_or(|names| names.is_empty() || names.contains(&request.name))
}
