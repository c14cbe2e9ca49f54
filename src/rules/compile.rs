//! From the file's types to the protocol's.

use std::time::Duration;

use super::{
    file::{
        AppliesIfFile, AttestWord, AttestedByFile, AttestorFile, ConditionsAtFile, InputFile, InputRefFile, MatchFile,
        MatchWord, MembersFile, MessageFile, RuleFile,
    },
    select::{KindName, Selector},
};
use crate::protocol::{
    GroupKind,
    object::FieldPath,
    rule::{
        AnnotationMatch, AppliesIf, AttestedBy, Attestor, ConditionRule, ConditionsAt, FieldMatch, Input, InputId,
        InputRef, InputSource, KindRule, LeaseName, Membership,
    },
};

/// The times that hold where a rule sets none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) staleness_bound: Duration,
    pub(super) grace: Duration,
}

/// The kinds of a rule. Names that are none are left out; the checks report them.
pub(super) fn selector(rule: &RuleFile) -> Selector {
    Selector {
        group: rule.group.value.clone(),
        kinds: rule.kinds.iter().filter_map(|k| KindName::parse(&k.value)).collect(),
        except: rule.except.iter().filter_map(|k| KindName::parse(&k.value)).collect(),
    }
}

/// `Kind.group`, as [`GroupKind`] displays it.
pub(super) fn group_kind(text: &str) -> GroupKind {
    let (kind, group) = text.split_once('.').unwrap_or((text, ""));
    GroupKind::new(group, kind)
}

/// What the protocol knows of one kind of a rule.
pub(super) fn kind_rule(rule: &RuleFile, kind: &GroupKind, times: Times) -> KindRule {
    KindRule {
        group_kind: kind.clone(),
        inputs: rule.inputs.iter().filter_map(|i| input(&i.value)).collect(),
        attestors: attestors(&rule.attested_by.value, kind),
        membership: rule.members.as_ref().map(|m| membership(&m.value)),
        inherits: rule.inherits,
        references: rule
            .references
            .iter()
            .map(|path| FieldPath::parse(&path.value))
            .collect(),
        requires_owner: rule
            .requires_owner
            .as_ref()
            .map(|owner| owner.other_than.iter().map(|kind| group_kind(&kind.value)).collect()),
        managed_elsewhere: rule.managed_elsewhere.as_ref().map(|key| key.value.clone()),
        staleness_bound: rule
            .staleness_bound
            .as_ref()
            .map_or(times.staleness_bound, |p| p.value.0),
        grace: rule.grace.as_ref().map_or(times.grace, |p| p.value.0),
    }
}

/// An input; `None` where the file does not say which, or how it matches.
pub(super) fn input(input: &InputFile) -> Option<Input> {
    let source = match (&input.field, &input.annotation) {
        (Some(path), None) => InputSource::Field {
            path: FieldPath::parse(&path.value),
            on: match &input.on.value {
                MatchFile::Boolean(true) => FieldMatch::True,
                MatchFile::Boolean(false) => FieldMatch::False,
                MatchFile::OneOf(values) => FieldMatch::OneOf(values.one_of.clone()),
                MatchFile::Word(_) | MatchFile::Equals(_) => return None,
            },
        },
        (None, Some(key)) => InputSource::Annotation {
            key: key.value.clone(),
            on: match &input.on.value {
                MatchFile::Word(MatchWord::Present) => AnnotationMatch::Present,
                MatchFile::Word(MatchWord::Boolean) => AnnotationMatch::Boolean,
                MatchFile::Equals(value) => AnnotationMatch::Equals(value.equals.clone()),
                MatchFile::Boolean(_) | MatchFile::OneOf(_) => return None,
            },
        },
        _ => return None,
    };
    let id = match &source {
        InputSource::Field { path, .. } => path.to_string(),
        InputSource::Annotation { key, .. } => key.clone(),
    };
    Some(Input {
        id: InputId(id),
        source,
        inherited: input.inherited,
    })
}

fn membership(members: &MembersFile) -> Membership {
    Membership {
        label: members.label.as_ref().map(|label| label.value.clone()),
        owner_chain: members.owner_chain,
        name_fields: members
            .name_fields
            .iter()
            .map(|path| FieldPath::parse(&path.value))
            .collect(),
    }
}

fn attestors(by: &AttestedByFile, kind: &GroupKind) -> Vec<Attestor> {
    match by {
        AttestedByFile::Word(word) => vec![Attestor {
            name: kind.kind.to_ascii_lowercase(),
            by: without_condition(*word),
            applies_if: None,
            inputs: None,
            lease: None,
        }],
        AttestedByFile::Attestors(list) => list.iter().filter_map(|a| attestor(&a.value)).collect(),
    }
}

const fn without_condition(word: AttestWord) -> AttestedBy {
    match word {
        AttestWord::None => AttestedBy::None,
        AttestWord::Bound => AttestedBy::Bound,
        AttestWord::ObservedGeneration => AttestedBy::ObservedGeneration,
    }
}

fn attestor(file: &AttestorFile) -> Option<Attestor> {
    let by = match (&file.condition, file.by) {
        (Some(condition), None) => AttestedBy::Condition(ConditionRule {
            at: match condition.at {
                ConditionsAtFile::Status => ConditionsAt::Status,
                ConditionsAtFile::StatusV1Beta2 => ConditionsAt::StatusV1Beta2,
            },
            type_: condition.type_.value.clone(),
            status: condition.status.as_str().to_owned(),
            reason: condition.reason.clone(),
            absent_is_off: condition.absent_means_off,
            texts: condition.messages.iter().filter_map(|m| message(&m.value)).collect(),
        }),
        (None, Some(word)) => without_condition(word),
        _ => return None,
    };
    Some(Attestor {
        name: file.name.value.clone(),
        by,
        applies_if: file.applies_if.as_ref().and_then(|a| applies_if(&a.value)),
        inputs: file
            .answers_for
            .as_ref()
            .map(|inputs| inputs.iter().filter_map(|input| input_ref(&input.value)).collect()),
        lease: file.lease.as_ref().map(|lease| LeaseName {
            name: lease.name.clone(),
            namespace: lease.namespace.clone(),
        }),
    })
}

fn applies_if(file: &AppliesIfFile) -> Option<AppliesIf> {
    match (&file.field, &file.label) {
        (Some(path), None) => Some(AppliesIf::Field(FieldPath::parse(path))),
        (None, Some(key)) => Some(AppliesIf::Label(key.clone())),
        _ => None,
    }
}

/// The input that is meant; `None` where the file does not say.
pub(super) fn input_ref(file: &InputRefFile) -> Option<InputRef> {
    match (&file.own, &file.inherited) {
        (Some(id), None) => Some(InputRef::Own(InputId(id.clone()))),
        (None, Some(id)) => Some(InputRef::Inherited(InputId(id.clone()))),
        _ => None,
    }
}

fn message(file: &MessageFile) -> Option<(InputRef, String)> {
    let input = input_ref(&InputRefFile {
        own: file.own.clone(),
        inherited: file.inherited.clone(),
    })?;
    Some((input, file.ends_with.clone()))
}
