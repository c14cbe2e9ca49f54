//! What the cache keeps of an object: the parts of [`ObjectView`] that the rules read, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::{
    condition,
    keys::GUARDED,
    object::{Annotations, FieldPath, ObjectView, Shallow},
    rule::{AppliesIf, AttestedBy, InputSource, KindRule, Membership},
};

/// What is kept of the objects of one kind.
#[derive(Debug, Clone, Default)]
pub(super) struct Needs {
    annotations: BTreeSet<String>,
    labels: BTreeSet<String>,
    fields: Vec<FieldPath>,
    /// Fields that only have to be there.
    present: Vec<FieldPath>,
    conditions: BTreeSet<String>,
    /// The fields that make one object a member of another.
    pub(super) relations: Vec<FieldPath>,
}

impl Needs {
    /// What a rule reads, and what the memberships of all rules read.
    pub(super) fn of(rule: &KindRule, memberships: &[Membership]) -> Self {
        let mut needs = Self {
            annotations: GUARDED.iter().map(|key| (*key).to_owned()).collect(),
            conditions: BTreeSet::from([condition::TYPE.to_owned()]),
            ..Self::default()
        };
        needs.annotations.extend(rule.managed_elsewhere.clone());
        for input in &rule.inputs {
            match &input.source {
                InputSource::Field { path, .. } => needs.fields.push(path.clone()),
                InputSource::Annotation { key, .. } => {
                    needs.annotations.insert(key.clone());
                }
            }
        }
        for attestor in &rule.attestors {
            match &attestor.applies_if {
                Some(AppliesIf::Field(path)) => needs.present.push(path.clone()),
                Some(AppliesIf::Label(key)) => {
                    needs.labels.insert(key.clone());
                }
                None => {}
            }
            if let AttestedBy::Condition(condition) = &attestor.by {
                needs.conditions.insert(condition.type_.clone());
            }
        }
        for membership in memberships {
            needs.labels.extend(membership.label.clone());
            needs.relations.extend(membership.name_fields.iter().cloned());
        }
        needs.relations.extend(rule.references.iter().cloned());
        needs.fields.extend(needs.relations.iter().cloned());
        needs
    }

    /// Keeps a condition that no rule reads.
    pub(super) fn keep_condition(&mut self, type_: &str) {
        self.conditions.insert(type_.to_owned());
    }

    /// Drops what is not needed.
    pub(super) fn slim(&self, mut view: ObjectView) -> ObjectView {
        if let Some(Annotations(annotations)) = &mut view.metadata.annotations {
            annotations.retain(|key, _| self.annotations.contains(key));
        }
        view.metadata.labels.retain(|key, _| self.labels.contains(key));
        let wanted = |condition: &crate::protocol::object::Condition| self.conditions.contains(&condition.type_);
        view.status.conditions.retain(wanted);
        view.status.conditions.shrink_to_fit();
        if let Some(v1beta2) = &mut view.status.v1beta2 {
            v1beta2.conditions.retain(wanted);
            v1beta2.conditions.shrink_to_fit();
        }
        let mut fields = BTreeMap::new();
        for path in &self.fields {
            if let Some(value) = view.field(path) {
                put(&mut fields, &path.0, value.clone());
            }
        }
        for path in &self.present {
            if view.field(path).is_some() {
                put(&mut fields, &path.0, Shallow::Opaque);
            }
        }
        view.fields = fields;
        view
    }
}

fn put(fields: &mut BTreeMap<String, Shallow>, path: &[String], value: Shallow) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    if rest.is_empty() {
        fields.entry(first.clone()).or_insert(value);
        return;
    }
    if let Shallow::Map(inner) = fields
        .entry(first.clone())
        .or_insert_with(|| Shallow::Map(BTreeMap::new()))
    {
        put(inner, rest, value);
    }
}
