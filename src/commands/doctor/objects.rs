//! The objects of the ruled kinds: do their controllers answer, and are they stamped as they are paused?

use kube::{Api, Client};

use super::{Findings, Status, some};
use crate::{
    commands::kinds::{self, Served},
    companion::{irregularity, item::Item},
    protocol::{
        intent::Intent,
        keys::Standing,
        object::ObjectView,
        rule::{AttestedBy, ConditionRule, ConditionsAt, KindRule},
        scope::display,
    },
    rules::Rules,
};

/// An object on which a flip can be tried.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) kind: Served,
    pub(super) object: ObjectView,
}

/// Looks at every object. Returns one with an input, of the first kind that has any.
pub(super) async fn check(
    client: &Client,
    rules: &Rules,
    served: &[Served],
    findings: &mut Findings,
) -> Option<Sample> {
    let mut sample = None;
    let (mut irregular, mut unstamped, mut looked_at) = (Vec::new(), Vec::new(), 0);
    for kind in served {
        let Some(rule) = rules.rule_for(&kind.group_kind()) else {
            continue;
        };
        let api: Api<Item> = kind.api(client, "");
        let objects = match kinds::list(kind, &api, |item| Some(item.view), |_| {}).await {
            Ok(objects) => objects,
            Err(kinds::KindsError::List { resource, source }) => {
                findings.unanswered("stamps", &format!("the objects of {resource}"), &source);
                continue;
            }
            Err(error) => {
                findings.add("stamps", Status::Problem, format!("{}: {error}", kind.name()));
                continue;
            }
        };
        looked_at += objects.len();
        attested(&rule, &objects, findings);
        for object in &objects {
            let name = || display(&rule.group_kind, object);
            if Standing::of(&rule.group_kind, object) == Standing::Bare && !Intent::of(&rule, object).is_empty() {
                unstamped.push(name());
            } else if let Some(what) = irregularity(&rule, object) {
                irregular.push(format!("{}: {what}", name()));
            }
        }
        if sample.is_none() && !rule.inputs.is_empty() {
            let object = objects.into_iter().next();
            sample = object.map(|object| Sample {
                kind: kind.clone(),
                object,
            });
        }
    }
    if !irregular.is_empty() {
        findings.advise(
            "stamps",
            Status::Warning,
            format!(
                "{} object(s) whose stamp is not that of their pause: {}",
                irregular.len(),
                some(&irregular)
            ),
            "the companion repairs them once the webhook answers; if they stay, look at its log",
        );
    }
    if !unstamped.is_empty() {
        findings.advise(
            "stamps",
            Status::Warning,
            format!("{} object(s) are paused without a stamp: {}", unstamped.len(), some(&unstamped)),
            "they were paused while no webhook was there: the companion asks for a stamp once one answers; if they stay, look \
             at its log",
        );
    }
    if irregular.is_empty() && unstamped.is_empty() {
        findings.add(
            "stamps",
            Status::Ok,
            format!("{looked_at} object(s) are stamped as they are paused"),
        );
    }
    sample
}

/// Whether the controllers that a rule names answer at all.
fn attested(rule: &KindRule, objects: &[ObjectView], findings: &mut Findings) {
    for attestor in &rule.attestors {
        let AttestedBy::Condition(condition) = &attestor.by else {
            continue;
        };
        // Where the absence of the condition is an answer, nothing can be told from it.
        if condition.absent_is_off {
            continue;
        }
        let asked: Vec<&ObjectView> = objects
            .iter()
            .filter(|object| {
                attestor.applies(object) && !rule.waits_for_owner(object) && !is_managed_elsewhere(rule, object)
            })
            .collect();
        let silent: Vec<String> = asked
            .iter()
            .filter(|object| !has(condition, object))
            .map(|object| display(&rule.group_kind, object))
            .collect();
        let type_ = &condition.type_;
        if silent.is_empty() {
            continue;
        }
        if silent.len() == asked.len() {
            findings.advise(
                "attestation",
                Status::Warning,
                format!(
                    "{}: none of {} object(s) has the condition {type_} of its controller {}",
                    rule.group_kind,
                    asked.len(),
                    attestor.name
                ),
                "a pause that concerns them is never acknowledged: give the kind a rule with `attestedBy: bound` if its \
                 controller honours the pause, else with `none`",
            );
        } else {
            findings.add(
                "attestation",
                Status::Note,
                format!(
                    "{}: {} of {} object(s) have no condition {type_} yet: {}",
                    rule.group_kind,
                    silent.len(),
                    asked.len(),
                    some(&silent)
                ),
            );
        }
    }
}

fn is_managed_elsewhere(rule: &KindRule, object: &ObjectView) -> bool {
    let key = rule.managed_elsewhere.as_ref();
    key.is_some_and(|key| object.metadata.annotation(key).is_some())
}

fn has(rule: &ConditionRule, object: &ObjectView) -> bool {
    let conditions = match rule.at {
        ConditionsAt::Status => &object.status.conditions,
        ConditionsAt::StatusV1Beta2 => match &object.status.v1beta2 {
            Some(status) => &status.conditions,
            None => return false,
        },
    };
    conditions.iter().any(|condition| condition.type_ == rule.type_)
}
