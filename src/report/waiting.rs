//! Is a wait over? Decided from one consistent read of the object, and from what the first read of the wait has shown.

use crate::protocol::{
    intent::{Intent, State},
    keys::{Evidence, Record, Standing},
    object::ObjectView,
    rule::KindRule,
};

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goal {
    /// The state that has to be acknowledged.
    pub state: State,
    /// The least pause generation; `None`: that which stands at the first read.
    pub generation: Option<u64>,
    /// Whether evidence that rests on the staleness bound is not enough.
    pub attested: bool,
}

/// What the first read has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Began {
    /// UID of the object.
    pub uid: String,
    /// The least generation that will do.
    pub least: u64,
}

/// What a read says of a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// It is met, by this record.
    Met(Box<Record>),
    /// Not yet, because of this.
    NotYet(String),
    /// It will not be met: what was waited for is not there any more, or never was.
    Never(String),
}

/// What the wait is for, from its first read.
#[must_use]
pub fn begin(goal: &Goal, rule: &KindRule, object: &ObjectView) -> Began {
    let standing = Standing::of(&rule.group_kind, object);
    let stands = standing.record().map_or(0, |record| record.stamp.generation);
    Began {
        uid: object.metadata.uid.clone(),
        least: goal.generation.unwrap_or(stands),
    }
}

/// Judges one read of the object.
#[must_use]
pub fn judge(goal: &Goal, began: &Began, rule: &KindRule, object: &ObjectView) -> Judgement {
    use Judgement::{Met, Never, NotYet};
    if object.metadata.uid != began.uid {
        return Never("it was deleted during the wait, and another object of its name was created".to_owned());
    }
    let intent = Intent::of(rule, object);
    let state = intent.state(rule);
    let record = match Standing::of(&rule.group_kind, object) {
        Standing::Own(record) => record,
        Standing::Bare if state == goal.state => {
            return Never(format!(
                "it is {state}, and has no pause generation: no webhook saw that flip, so nothing can be acknowledged. Set the \
                 annotation pausegen.io/touch to have it stamped"
            ));
        }
        Standing::Bare => return Never(other_state(goal.state, state, rule, None)),
        Standing::Foreign => {
            return NotYet("its records are of another object or uid, and not believed".to_owned());
        }
        Standing::Broken => {
            return NotYet("its pausegen.io annotations make no record, and are not believed".to_owned());
        }
    };
    let stands = record.stamp.generation;
    if stands < began.least {
        return NotYet(format!("it stands at generation {stands}, before {}", began.least));
    }
    if state != goal.state {
        return Never(other_state(goal.state, state, rule, Some(&record)));
    }
    if record.stamp.after != intent {
        return NotYet(format!(
            "what pauses it ({intent}) is not what the stamp of generation {stands} says: a flip passed while no webhook was \
             called"
        ));
    }
    if !record.is_acknowledged(rule) {
        return NotYet(format!("generation {stands} is not acknowledged"));
    }
    let evidence = record.acknowledgement.as_ref().map(|echo| echo.evidence);
    if goal.attested && evidence != Some(Evidence::Attested) {
        return Never(format!(
            "generation {stands} is acknowledged, but by the staleness bound (Settled): no answer of its own came from every \
             controller. Without --evidence attested the wait is met"
        ));
    }
    Met(record)
}

fn other_state(goal: State, state: State, rule: &KindRule, record: Option<&Record>) -> String {
    let flip = record.map_or_else(String::new, |record| {
        let by = Some(&record.stamp.by).filter(|by| !by.is_empty());
        format!(
            " (generation {} at {}{})",
            record.stamp.generation,
            record.stamp.at,
            by.map(|by| format!(" by {by}")).unwrap_or_default()
        )
    });
    let hint = match (goal, state) {
        (State::Paused, State::PausedSelf) => {
            ": only the object itself is, not what inherits from it. Wait --for=paused-self"
        }
        (State::PausedSelf, State::Paused) => ", with all that inherits from it. Wait --for=paused",
        (_, State::Running) if rule.inherits => {
            " by inputs of its own. If it inherits a pause, wait for the object that it inherits from"
        }
        _ => "",
    };
    let goal = match goal {
        State::Running => "resumed",
        other => other.as_str(),
    };
    format!("it is {state}{flip}, not {goal}{hint}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Began, Goal, Judgement, begin, judge};
    use crate::{
        protocol::{GroupKind, intent::State, keys, object::ObjectView},
        rules::Rules,
    };

    fn object(uid: &str, paused: bool, annotation: bool, keys: Option<(u64, bool, &str, &str)>) -> ObjectView {
        let mut on: Vec<&str> = Vec::new();
        if annotation {
            on.push("cluster.x-k8s.io/paused");
        }
        if paused {
            on.push("spec.paused");
        }
        let mut annotations = serde_json::Map::new();
        if annotation {
            annotations.insert("cluster.x-k8s.io/paused".to_owned(), json!(""));
        }
        if let Some((generation, acknowledged, word, evidence)) = keys {
            let stamp = json!({"generation": generation, "kind": "Cluster.cluster.x-k8s.io", "namespace": "n", "name": "c",
                "uid": uid, "before": [], "after": on, "why": "flip", "at": "2026-01-01T00:00:00Z", "by": "bob"});
            let observed = if acknowledged { generation } else { generation - 1 };
            let echo = json!({"generation": observed, "uid": uid, "evidence": evidence, "objects": 1,
                "objectGeneration": 1, "at": "2026-01-01T00:00:01Z"});
            for (key, value) in [
                (keys::GENERATION, generation.to_string()),
                (keys::OBSERVED_GENERATION, observed.to_string()),
                (keys::ACKNOWLEDGED, word.to_owned()),
                (keys::STAMP, stamp.to_string()),
                (keys::ACKNOWLEDGEMENT, echo.to_string()),
            ] {
                annotations.insert(key.to_owned(), Value::String(value));
            }
        }
        serde_json::from_value(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "c", "namespace": "n", "uid": uid, "annotations": annotations},
            "spec": {"paused": paused}
        }))
        .unwrap()
    }

    fn judged(goal: Goal, began: &Began, object: &ObjectView) -> &'static str {
        let rules = Rules::capi().unwrap();
        let rule = rules.rule_for(&GroupKind::new("cluster.x-k8s.io", "Cluster")).unwrap();
        match judge(&goal, began, &rule, object) {
            Judgement::Met(_) => "met",
            Judgement::NotYet(_) => "not yet",
            Judgement::Never(_) => "never",
        }
    }

    #[test]
    fn only_that_generation_or_a_later_one_in_the_same_direction() {
        let rules = Rules::capi().unwrap();
        let rule = rules.rule_for(&GroupKind::new("cluster.x-k8s.io", "Cluster")).unwrap();
        let goal = Goal {
            state: State::Paused,
            generation: None,
            attested: false,
        };
        let first = object("u", true, false, Some((5, false, "pending", "Attested")));
        let began = begin(&goal, &rule, &first);
        assert_eq!((began.least, began.uid.as_str()), (5, "u"));
        for (what, object, expected) in [
            ("before the echo", first.clone(), "not yet"),
            (
                "the echo",
                object("u", true, false, Some((5, true, "paused", "Attested"))),
                "met",
            ),
            (
                "a forged word",
                object("u", true, false, Some((5, false, "paused", "Attested"))),
                "not yet",
            ),
            (
                "a stale one",
                object("u", true, false, Some((4, true, "paused", "Attested"))),
                "not yet",
            ),
            (
                "resumed",
                object("u", false, false, Some((6, false, "pending", "Attested"))),
                "never",
            ),
            ("resumed, unseen", object("u", false, false, None), "never"),
            (
                "again",
                object("u", true, true, Some((7, true, "paused", "Attested"))),
                "met",
            ),
            (
                "again, pending",
                object("u", true, true, Some((7, false, "pending", "Attested"))),
                "not yet",
            ),
            (
                "only itself",
                object("u", false, true, Some((7, true, "paused-self", "Attested"))),
                "never",
            ),
            (
                "another",
                object("v", true, false, Some((5, true, "paused", "Attested"))),
                "never",
            ),
            ("without keys", object("u", true, false, None), "never"),
        ] {
            assert_eq!(judged(goal, &began, &object), expected, "{what}");
        }
        // The inputs have changed, and the word still stands.
        let mut stale = object("u", true, false, Some((5, true, "paused", "Attested")));
        stale.fields = object("u", false, false, None).fields;
        assert_eq!(judged(goal, &began, &stale), "never");
    }

    #[test]
    fn a_named_generation_and_evidence() {
        let goal = Goal {
            state: State::Paused,
            generation: Some(7),
            attested: true,
        };
        let began = Began {
            uid: "u".to_owned(),
            least: 7,
        };
        let of = |generation, evidence| object("u", true, false, Some((generation, true, "paused", evidence)));
        assert_eq!(judged(goal, &began, &of(6, "Attested")), "not yet");
        assert_eq!(judged(goal, &began, &of(7, "Attested")), "met");
        assert_eq!(judged(goal, &began, &of(8, "Attested")), "met");
        assert_eq!(judged(goal, &began, &of(7, "Settled")), "never");
    }
}
