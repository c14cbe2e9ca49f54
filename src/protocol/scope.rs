//! Who has to answer for a flip: the object itself, and those that inherit from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    GroupKind,
    object::{ObjectView, Shallow, group_of},
    rule::KindRule,
};

/// An object of a ruled kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruled {
    /// The object; its `apiVersion` and `kind` are set.
    pub object: Arc<ObjectView>,
    /// The rule of its kind.
    pub rule: Arc<KindRule>,
}

/// The members of an object.
#[derive(Debug, Clone, Default)]
pub struct Members<'a> {
    /// Objects that inherit from it, as they stand in the list that was given.
    pub members: Vec<&'a Ruled>,
    /// Objects that it or a member refers to, of a kind without a rule: `Kind.group namespace/name`.
    pub unruled: BTreeSet<String>,
}

/// Finds the members of `flipped` among `all` (which may hold it too), by label, owner chain, a field that holds its
/// name, and the references of members. `has_rule` tells whether there is a rule for a kind at all.
#[must_use]
pub fn members<'a>(
    flipped: &ObjectView,
    rule: &KindRule,
    all: &'a [Ruled],
    has_rule: &dyn Fn(&GroupKind) -> bool,
) -> Members<'a> {
    let Some(membership) = &rule.membership else {
        return Members::default();
    };
    let near = |object: &ObjectView| {
        flipped.metadata.namespace.is_empty() || object.metadata.namespace == flipped.metadata.namespace
    };
    let candidates: Vec<&Ruled> = all
        .iter()
        .filter(|ruled| ruled.rule.inherits && near(&ruled.object) && ruled.object.metadata.uid != flipped.metadata.uid)
        .collect();

    let name = flipped.metadata.name.as_str();
    let mut uids: BTreeSet<&str> = candidates
        .iter()
        .filter(|ruled| {
            let by_label = membership.label.as_ref().is_some_and(|label| {
                ruled
                    .object
                    .metadata
                    .labels
                    .get(label)
                    .is_some_and(|value| value == name)
            });
            let by_field = membership.name_fields.iter().any(|path| {
                ruled
                    .object
                    .field(path)
                    .and_then(Shallow::scalar)
                    .is_some_and(|value| value == name)
            });
            by_label || by_field
        })
        .map(|ruled| ruled.object.metadata.uid.as_str())
        .collect();
    uids.insert(&flipped.metadata.uid);

    let by_name: BTreeMap<(GroupKind, &str, &str), &str> = candidates
        .iter()
        .map(|ruled| {
            let meta = &ruled.object.metadata;
            (
                (
                    ruled.rule.group_kind.clone(),
                    meta.namespace.as_str(),
                    meta.name.as_str(),
                ),
                meta.uid.as_str(),
            )
        })
        .collect();
    let mut unruled = BTreeSet::new();
    loop {
        let mut found: BTreeSet<&str> = BTreeSet::new();
        if membership.owner_chain {
            found.extend(candidates.iter().filter_map(|ruled| {
                let owned = ruled
                    .object
                    .metadata
                    .owner_references
                    .iter()
                    .any(|owner| uids.contains(owner.uid.as_str()));
                owned.then_some(ruled.object.metadata.uid.as_str())
            }));
        }
        let referring = candidates
            .iter()
            .filter(|r| uids.contains(r.object.metadata.uid.as_str()));
        for (object, rule) in referring.map(|r| (&*r.object, &*r.rule)).chain([(flipped, rule)]) {
            for (kind, namespace, name) in references(object, rule) {
                match by_name.get(&(kind.clone(), namespace, name)) {
                    Some(uid) => {
                        found.insert(uid);
                    }
                    // Not there (any more): nobody to ask. In another namespace it was not looked for.
                    None if has_rule(&kind) && namespace == flipped.metadata.namespace => {}
                    None => {
                        unruled.insert(format!("{kind} {namespace}/{name}"));
                    }
                }
            }
        }
        let before = uids.len();
        uids.extend(found);
        if uids.len() == before {
            break;
        }
    }
    let members = candidates
        .into_iter()
        .filter(|ruled| uids.contains(ruled.object.metadata.uid.as_str()))
        .collect();
    Members { members, unruled }
}

fn references<'a>(object: &'a ObjectView, rule: &'a KindRule) -> impl Iterator<Item = (GroupKind, &'a str, &'a str)> {
    rule.references.iter().filter_map(|path| {
        let reference = object.field(path)?;
        let name = reference.text("name").filter(|name| !name.is_empty())?;
        let kind = reference.text("kind").filter(|kind| !kind.is_empty())?;
        let group = match (reference.text("apiGroup"), reference.text("apiVersion")) {
            (Some(group), _) => group,
            (None, Some(version)) => group_of(version),
            (None, None) => return None,
        };
        let namespace = reference.text("namespace").unwrap_or(&object.metadata.namespace);
        Some((GroupKind::new(group, kind), namespace, name))
    })
}

/// `Kind.group namespace/name`, for people.
#[must_use]
pub fn display(group_kind: &GroupKind, object: &ObjectView) -> String {
    let meta = &object.metadata;
    if meta.namespace.is_empty() {
        format!("{group_kind} {}", meta.name)
    } else {
        format!("{group_kind} {}/{}", meta.namespace, meta.name)
    }
}
