//! The standing of our own webhook configuration: while it stands, no flip can pass unseen.
//!
//! A configuration stands for an object when its flip webhook covers the kind under `failurePolicy: Fail`, on no condition
//! that these rules do not call for, and selects the object's namespace. What is remembered of it is compared by a fingerprint, so that two changes which cancel each other
//! are two changes all the same. A configuration with an `objectSelector` never stands: labels of an object come and go,
//! and flips with them.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::{
    api::{
        admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration},
        core::v1::Namespace,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::Api;

use super::{World, kinds::Kind, lock};
use crate::{
    protocol::{Moment, evidence::Guard},
    rules::{
        Rules,
        manifests::{self, FLIP, KEYS},
    },
};

/// What is known of the configuration, and of the namespaces that it selects by their labels.
#[derive(Debug, Default)]
pub(super) struct Guards {
    /// The `matchConditions` that the rules call for.
    conditions: Vec<String>,
    configuration: Option<Known>,
    namespaces: HashMap<String, KnownNamespace>,
}

#[derive(Debug)]
struct Known {
    uid: String,
    generation: i64,
    since: Moment,
    webhooks: Vec<MutatingWebhook>,
}

#[derive(Debug)]
struct KnownNamespace {
    version: String,
    since: Moment,
    labels: BTreeMap<String, String>,
}

impl Guards {
    /// Nothing known yet of the configuration that these rules call for.
    pub(super) fn new(rules: &Rules) -> Self {
        let conditions = manifests::flip_conditions(rules).into_iter();
        Self {
            conditions: conditions.map(|condition| condition.expression).collect(),
            ..Self::default()
        }
    }

    /// Whether there is a configuration that is made for other rules than these, or for another release.
    pub(super) fn is_of_other_rules(&self) -> bool {
        self.configuration.as_ref().is_some_and(|known| {
            let mut webhooks = known.webhooks.iter();
            webhooks.any(|webhook| webhook.name == FLIP && !self.is_called_for_all(webhook))
        })
    }

    /// Whether the webhook is called for every flip of what it covers: each condition is one that flips fulfil.
    fn is_called_for_all(&self, webhook: &MutatingWebhook) -> bool {
        webhook.match_conditions.iter().flatten().all(|found| {
            let mut own = self.conditions.iter();
            own.any(|own| own.trim() == found.expression.trim())
        })
    }

    /// The configuration as it was seen at `now`; `None`: there is none. Returns whether anything has changed.
    pub(super) fn note(&mut self, now: Moment, found: Option<MutatingWebhookConfiguration>) -> bool {
        let Some(found) = found else {
            return self.configuration.take().is_some();
        };
        let uid = found.metadata.uid.unwrap_or_default();
        let generation = found.metadata.generation.unwrap_or_default();
        if let Some(known) = &self.configuration
            && known.uid == uid
            && known.generation >= generation
        {
            return false;
        }
        self.configuration = Some(Known {
            uid,
            generation,
            since: now,
            webhooks: found.webhooks.unwrap_or_default(),
        });
        true
    }

    fn note_namespace(&mut self, now: Moment, name: &str, found: Option<Namespace>) {
        let Some(found) = found else {
            self.namespaces.remove(name);
            return;
        };
        let version = found.metadata.resource_version.unwrap_or_default();
        if self.namespaces.get(name).is_some_and(|known| known.version == version) {
            return;
        }
        self.namespaces.insert(
            name.to_owned(),
            KnownNamespace {
                version,
                since: now,
                labels: found.metadata.labels.unwrap_or_default(),
            },
        );
    }

    /// Whether the labels of the namespace have to be read before anything can be said.
    fn asks_namespace(&self, kind: &Kind) -> bool {
        self.flip(kind)
            .is_some_and(|(_, webhook)| kind.namespaced && !is_empty(webhook.namespace_selector.as_ref()))
    }

    /// Whether they have not been read yet.
    pub(super) fn misses_namespace(&self, kind: &Kind, namespace: &str) -> bool {
        self.asks_namespace(kind) && !self.namespaces.contains_key(namespace)
    }

    fn flip(&self, kind: &Kind) -> Option<(&Known, &MutatingWebhook)> {
        let known = self.configuration.as_ref()?;
        let webhook = known.webhooks.iter().find(|webhook| {
            webhook.name == FLIP
                && webhook.failure_policy.as_deref().unwrap_or("Fail") == "Fail"
                && is_empty(webhook.object_selector.as_ref())
                && self.is_called_for_all(webhook)
                && covers(webhook, kind)
        })?;
        Some((known, webhook))
    }

    /// Whether there is a webhook that is called when our keys change, under whatever policy. Of a namespace whose labels
    /// have not been read, one that may be.
    pub(super) fn calls_for_keys(&self, kind: &Kind, namespace: &str) -> bool {
        let is_selected = |webhook: &MutatingWebhook| {
            let known = self.namespaces.get(namespace).filter(|_| kind.namespaced);
            known.is_none_or(|namespace| selects(webhook.namespace_selector.as_ref(), &namespace.labels))
        };
        self.configuration.as_ref().is_some_and(|known| {
            let mut webhooks = known.webhooks.iter();
            webhooks.any(|webhook| webhook.name == KEYS && covers(webhook, kind) && is_selected(webhook))
        })
    }

    /// The configuration, if it stands for this kind in this namespace.
    pub(super) fn standing(&self, kind: &Kind, namespace: &str) -> Option<Guard> {
        let (known, webhook) = self.flip(kind)?;
        let mut guard = Guard {
            fingerprint: format!("{}/{}", known.uid, known.generation),
            since: known.since,
        };
        let selector = webhook.namespace_selector.as_ref();
        if kind.namespaced && !is_empty(selector) {
            let namespace = self.namespaces.get(namespace)?;
            if !selects(selector, &namespace.labels) {
                return None;
            }
            // Labels have no generation of their own.
            guard.fingerprint.push_str(&format!("/{}", namespace.version));
            guard.since = guard.since.max(namespace.since);
        }
        Some(guard)
    }
}

/// Reads the configuration, and the namespace where it matters, consistently.
///
/// # Errors
/// The API server refuses, other than by saying that they do not exist.
pub(super) async fn read(world: &World, kind: &Kind, namespace: &str) -> Result<Option<Guard>, kube::Error> {
    let api: Api<MutatingWebhookConfiguration> = Api::all(world.client.clone());
    let found = api.get_opt(&world.settings.webhook_configuration).await?;
    let now = world.clock.now();
    let asks = {
        let mut guards = lock(&world.guards);
        guards.note(now, found);
        guards.asks_namespace(kind)
    };
    if asks {
        let api: Api<Namespace> = Api::all(world.client.clone());
        let found = api.get_opt(namespace).await?;
        lock(&world.guards).note_namespace(world.clock.now(), namespace, found);
    }
    Ok(lock(&world.guards).standing(kind, namespace))
}

/// Whether updates of the kind are sent to the webhook.
fn covers(webhook: &MutatingWebhook, kind: &Kind) -> bool {
    let has = |list: &Option<Vec<String>>, value: &str| {
        list.as_ref()
            .is_some_and(|list| list.iter().any(|entry| entry == value || entry == "*"))
    };
    webhook.rules.iter().flatten().any(|rule| {
        let is_any_version = webhook.match_policy.as_deref() != Some("Exact") || has(&rule.api_versions, "*");
        has(&rule.operations, "UPDATE")
            && is_any_version
            && has(&rule.api_groups, &kind.resource.group)
            && (has(&rule.resources, &kind.resource.plural) || has(&rule.resources, "*/*"))
    })
}

fn is_empty(selector: Option<&LabelSelector>) -> bool {
    selector.is_none_or(|selector| {
        selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
            && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
    })
}

/// Whether a selector selects these labels (`LabelSelectorAsSelector` in k8s.io/apimachinery).
fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    let Some(selector) = selector else { return true };
    let pairs = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    pairs.into_iter().all(|(key, value)| labels.get(key) == Some(value))
        && expressions.into_iter().all(|expression| {
            let value = labels.get(&expression.key);
            let listed = value.is_some_and(|value| expression.values.iter().flatten().any(|v| v == value));
            match expression.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(yaml: serde_json::Value) -> LabelSelector {
        serde_json::from_value(yaml).unwrap()
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn a_selector_selects_as_kubernetes_does() {
        let both = selector(serde_json::json!({
            "matchLabels": {"a": "1"},
            "matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["x", "y"]}],
        }));
        assert!(
            selects(Some(&both), &labels(&[("a", "1")])),
            "NotIn holds for a label that is not there"
        );
        assert!(selects(Some(&both), &labels(&[("a", "1"), ("b", "z")])));
        assert!(!selects(Some(&both), &labels(&[("a", "1"), ("b", "x")])));
        assert!(!selects(Some(&both), &labels(&[("b", "z")])));
        let exists = selector(serde_json::json!({"matchExpressions": [
            {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "DoesNotExist"}, {"key": "a", "operator": "In", "values": ["1"]}]}));
        assert!(selects(Some(&exists), &labels(&[("a", "1")])));
        assert!(!selects(Some(&exists), &labels(&[("a", "1"), ("b", "")])));
        assert!(!selects(Some(&exists), &labels(&[("a", "2")])));
        let odd = selector(serde_json::json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}));
        assert!(
            !selects(Some(&odd), &labels(&[("a", "2")])),
            "what is not understood selects nothing"
        );
        assert!(selects(None, &labels(&[])));
    }

    fn configuration(generation: i64, policy: &str) -> MutatingWebhookConfiguration {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "pausegen", "uid": "u", "generation": generation},
            "webhooks": [{
                "name": "flip.pausegen.io", "failurePolicy": policy, "sideEffects": "None",
                "admissionReviewVersions": ["v1"], "clientConfig": {"url": "https://localhost"},
                "rules": [{"apiGroups": ["cluster.x-k8s.io"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
                           "resources": ["clusters"]}],
            }],
        }))
        .unwrap()
    }

    fn kind(plural: &str) -> Kind {
        let crd: super::super::kinds::Crd = serde_json::from_value(serde_json::json!({
            "spec": {"group": "cluster.x-k8s.io", "names": {"kind": "Cluster", "plural": plural}, "scope": "Namespaced",
                     "versions": [{"name": "v1", "served": true}]},
            "status": {"conditions": [{"type": "Established", "status": "True"}]},
        }))
        .unwrap();
        Kind::of(&crate::rules::Rules::capi().unwrap(), &[], &crd).unwrap()
    }

    #[test]
    fn a_configuration_that_does_not_call_for_every_flip_does_not_stand() {
        let rules = Rules::capi().unwrap();
        let expected = serde_json::to_value(manifests::flip_conditions(&rules)).unwrap();
        let mut narrow = expected.clone();
        let more = serde_json::json!({"name": "not-gitops", "expression": "request.userInfo.username != 'gitops'"});
        narrow.as_array_mut().unwrap().push(more);
        let stands = |conditions: &serde_json::Value, policy: &str, versions: &str| {
            let mut found = serde_json::to_value(configuration(1, "Fail")).unwrap();
            found["webhooks"][0]["matchConditions"] = conditions.clone();
            found["webhooks"][0]["matchPolicy"] = serde_json::json!(policy);
            found["webhooks"][0]["rules"][0]["apiVersions"] = serde_json::json!([versions]);
            let mut guards = Guards::new(&rules);
            guards.note(Moment::default(), Some(serde_json::from_value(found).unwrap()));
            let standing = guards.standing(&kind("clusters"), "ns").is_some();
            (standing, guards.is_of_other_rules())
        };
        assert_eq!(stands(&expected, "Equivalent", "*"), (true, false));
        assert_eq!(stands(&serde_json::json!([]), "Equivalent", "v1beta2"), (true, false));
        assert_eq!(stands(&narrow, "Equivalent", "*"), (false, true));
        assert_eq!(stands(&expected, "Exact", "*"), (true, false));
        assert_eq!(stands(&expected, "Exact", "v1beta2"), (false, false));
    }

    #[test]
    fn a_changed_configuration_is_another_one() {
        let moment = |s| Moment(std::time::Duration::from_secs(s));
        let mut guards = Guards::default();
        assert_eq!(guards.standing(&kind("clusters"), "ns"), None);
        assert!(guards.note(moment(1), Some(configuration(1, "Fail"))));
        let first = guards.standing(&kind("clusters"), "ns").unwrap();
        assert_eq!(first.since, moment(1));
        assert!(!guards.note(moment(2), Some(configuration(1, "Fail"))));
        assert_eq!(guards.standing(&kind("clusters"), "ns").as_ref(), Some(&first));
        assert_eq!(
            guards.standing(&kind("machines"), "ns"),
            None,
            "a kind that is not covered"
        );

        guards.note(moment(3), Some(configuration(2, "Ignore")));
        assert_eq!(guards.standing(&kind("clusters"), "ns"), None);
        guards.note(moment(4), Some(configuration(3, "Fail")));
        let again = guards.standing(&kind("clusters"), "ns").unwrap();
        assert_ne!(again.fingerprint, first.fingerprint);
        assert_eq!(again.since, moment(4));
        guards.note(moment(5), Some(configuration(1, "Fail")));
        assert_eq!(
            guards.standing(&kind("clusters"), "ns"),
            Some(again),
            "an overtaken view"
        );
        guards.note(moment(6), None);
        assert_eq!(guards.standing(&kind("clusters"), "ns"), None);
    }
}
