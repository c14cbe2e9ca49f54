//! The condition `Paused` on kinds whose controllers write none: a mirror of what is asked for, for the eyes of people and
//! tools that know this condition. It says nothing of who has seen it, so it is never evidence: every attestor's reading
//! passes over it ([`super::attestation`]).

use super::{
    condition::Projection,
    intent::is_on,
    object::{Condition, ObjectView},
    rule::{FieldMatch, Input, InputSource},
    scope::Ruled,
};

/// The type of the condition, as Cluster API's contract has it.
pub const TYPE: &str = "Paused";
/// The reason of one that is `True`.
const PAUSED: &str = "Paused";
/// The reason of one that is `False`.
const NOT_PAUSED: &str = "NotPaused";
/// Every message begins with this. It tells readers what the condition is worth, and us that it is ours.
pub const MARK: &str = "Mirrored by pausegen: asked for, not attested";

/// What the condition of an object has to say: whether its own inputs, or those that it inherits from `heads`, ask for a
/// pause.
#[must_use]
pub fn want(ruled: &Ruled, heads: &[Ruled]) -> Projection {
    let own = causes(ruled, |_| true);
    let inherited = heads.iter().flat_map(|head| causes(head, |input| input.inherited));
    let causes: Vec<String> = own.into_iter().chain(inherited).collect();
    let observed_generation = ruled.object.metadata.generation.unwrap_or_default();
    if causes.is_empty() {
        return Projection {
            status: "False",
            reason: NOT_PAUSED,
            message: MARK.to_owned(),
            observed_generation,
        };
    }
    Projection {
        status: "True",
        reason: PAUSED,
        message: format!("{MARK}: {}", causes.join(", ")),
        observed_generation,
    }
}

/// The inputs of an object that are on, in the words of Cluster API's controllers.
fn causes(ruled: &Ruled, concerns: impl Fn(&Input) -> bool) -> Vec<String> {
    let kind = &ruled.rule.group_kind.kind;
    let inputs = ruled.rule.inputs.iter();
    inputs
        .filter(|input| concerns(input) && is_on(input, &ruled.object))
        .map(|input| match &input.source {
            InputSource::Field { path, on } => match on {
                FieldMatch::True => format!("{kind} {path} is set to true"),
                FieldMatch::False => format!("{kind} {path} is set to false"),
                FieldMatch::OneOf(_) => {
                    let value = ruled.object.field(path).and_then(|value| value.scalar());
                    format!("{kind} {path} is set to {}", value.unwrap_or_default())
                }
            },
            InputSource::Annotation { key, .. } => format!("{kind} has the {key} annotation"),
        })
        .collect()
}

/// The stored condition, whosever it is.
#[must_use]
pub fn stored(object: &ObjectView) -> Option<&Condition> {
    let mut conditions = object.status.conditions.iter();
    conditions.find(|condition| condition.type_ == TYPE)
}

/// Whether a condition carries our mark. What does is never an answer of a controller.
#[must_use]
pub fn is_marked(condition: &Condition) -> bool {
    condition.type_ == TYPE && condition.message.starts_with(MARK)
}

/// Whether a condition is one that we have written, and nobody has changed since.
#[must_use]
pub fn is_ours(condition: &Condition) -> bool {
    is_marked(condition)
        && match condition.status.as_str() {
            "True" => condition.reason == PAUSED && condition.message != MARK,
            "False" => condition.reason == NOT_PAUSED && condition.message == MARK,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use serde_json::json;

    use super::*;
    use crate::protocol::{
        GroupKind,
        attestation::{Attestation, attest},
        object::FieldPath,
        rule::{AnnotationMatch, AttestedBy, Attestor, ConditionRule, ConditionsAt, InputId, InputRef, KindRule},
    };

    fn field(path: &str, on: FieldMatch, inherited: bool) -> Input {
        Input {
            id: InputId(path.to_owned()),
            source: InputSource::Field {
                path: FieldPath::parse(path),
                on,
            },
            inherited,
        }
    }

    fn annotation(key: &str, on: AnnotationMatch) -> Input {
        Input {
            id: InputId(key.to_owned()),
            source: InputSource::Annotation {
                key: key.to_owned(),
                on,
            },
            inherited: false,
        }
    }

    /// A Fleet hands `spec.mode` down to its Ships.
    fn ruled(kind: &str, object: serde_json::Value) -> Ruled {
        let inputs = if kind == "Fleet" {
            let hold = FieldMatch::OneOf(vec!["Hold".to_owned(), "Drain".to_owned()]);
            vec![
                field("spec.mode", hold, true),
                annotation("g/only-me", AnnotationMatch::Present),
            ]
        } else {
            vec![
                field("spec.active", FieldMatch::False, false),
                annotation("g/paused", AnnotationMatch::Boolean),
            ]
        };
        let rule = KindRule {
            group_kind: GroupKind::new("g", kind),
            inputs,
            attestors: Vec::new(),
            membership: None,
            inherits: kind == "Ship",
            references: Vec::new(),
            requires_owner: None,
            managed_elsewhere: None,
            staleness_bound: Duration::ZERO,
            grace: Duration::ZERO,
        };
        Ruled {
            object: Arc::new(serde_json::from_value(object).unwrap()),
            rule: Arc::new(rule),
        }
    }

    fn as_condition(projection: &Projection) -> Condition {
        serde_json::from_value(json!({
            "type": TYPE, "status": projection.status, "reason": projection.reason, "message": projection.message,
            "observedGeneration": projection.observed_generation,
        }))
        .unwrap()
    }

    #[test]
    fn it_says_what_asks_for_the_pause() {
        let held = ruled("Fleet", json!({ "spec": { "mode": "Hold" } }));
        let alone = ruled("Fleet", json!({ "metadata": { "annotations": { "g/only-me": "" } } }));
        let ship = ruled(
            "Ship",
            json!({ "metadata": { "generation": 7 }, "spec": { "active": true } }),
        );
        let idle = ruled(
            "Ship",
            json!({ "metadata": { "annotations": { "g/paused": "true" } }, "spec": { "active": false } }),
        );
        let none = want(&ship, std::slice::from_ref(&alone));
        assert_eq!(
            (none.status, none.reason, none.observed_generation),
            ("False", NOT_PAUSED, 7)
        );
        let inherited = want(&ship, &[alone, held.clone()]);
        assert_eq!((inherited.status, inherited.reason), ("True", PAUSED));
        assert_eq!(inherited.message, format!("{MARK}: Fleet spec.mode is set to Hold"));
        let all = want(&idle, &[held]);
        assert_eq!(
            all.message,
            format!(
                "{MARK}: Ship spec.active is set to false, Ship has the g/paused annotation, Fleet spec.mode is set to Hold"
            )
        );
        for projection in [none, inherited, all] {
            assert!(is_ours(&as_condition(&projection)), "{projection:?}");
        }
    }

    #[test]
    fn it_is_no_answer_also_where_one_of_its_type_is_asked_for() {
        let attestor = Attestor {
            name: "ship".to_owned(),
            by: AttestedBy::Condition(ConditionRule {
                at: ConditionsAt::Status,
                type_: TYPE.to_owned(),
                status: "True".to_owned(),
                reason: None,
                absent_is_off: false,
                texts: Vec::new(),
            }),
            applies_if: None,
            inputs: None,
            lease: None,
        };
        let input = InputRef::Own(InputId("spec.active".to_owned()));
        let with = |message: &str| -> ObjectView {
            let condition = json!({ "type": TYPE, "status": "True", "reason": PAUSED, "message": message });
            serde_json::from_value(json!({ "status": { "conditions": [condition] } })).unwrap()
        };
        let says = |message: &str| attest(&attestor, &with(message), &input, true, 1);
        assert_eq!(says("Ship spec.active is set to false"), Attestation::On);
        assert_eq!(
            says(&format!("{MARK}: Ship spec.active is set to false")),
            Attestation::Missing
        );
    }

    #[test]
    fn what_somebody_else_wrote_or_changed_is_not_ours() {
        let ship = ruled("Ship", json!({ "spec": { "active": false } }));
        let ours = as_condition(&want(&ship, &[]));
        let changed = |change: &dyn Fn(&mut Condition)| {
            let mut condition = ours.clone();
            change(&mut condition);
            condition
        };
        assert!(is_ours(&ours));
        assert!(!is_ours(&changed(&|c| c.status = "False".to_owned())));
        assert!(!is_ours(&changed(&|c| c.status = "Unknown".to_owned())));
        assert!(!is_ours(&changed(&|c| c.reason = "Suspended".to_owned())));
        let foreign = changed(&|c| c.message = "Ship spec.active is set to false".to_owned());
        assert!(!is_ours(&foreign) && !is_marked(&foreign));
        assert!(!is_marked(&changed(&|c| c.type_ = "Ready".to_owned())));
    }
}
