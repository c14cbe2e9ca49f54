//! The watch cache: what the watches have shown of the objects of ruled kinds, and which objects a change concerns.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use super::{metrics::Pending, slim::Needs};
use crate::protocol::{
    GroupKind, Moment,
    keys::Standing,
    object::{ObjectView, Shallow},
    rule::{KindRule, Membership},
    scope::Ruled,
};

/// Names one object. Its uid is checked where it matters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    /// Group and kind.
    pub(super) kind: GroupKind,
    /// Namespace; empty for a cluster-scoped object.
    pub(super) namespace: String,
    /// Name.
    pub(super) name: String,
}

impl Key {
    pub(super) fn of(kind: &GroupKind, object: &ObjectView) -> Self {
        Self {
            kind: kind.clone(),
            namespace: object.metadata.namespace.clone(),
            name: object.metadata.name.clone(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// An object in the cache.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// The object and its rule.
    pub(super) ruled: Ruled,
    /// Since when what makes it a member of another object has not changed.
    pub(super) related_since: Moment,
    /// Since when nothing has changed that says who has to answer for it, for certain: from its creation on, if the
    /// watch has shown that, else since it was first seen, or last after a gap in the watch.
    pub(super) unchanged_since: Moment,
    /// The object is known to be no older than this: when a consistent read that returned this state, or an earlier
    /// one, was sent.
    pub(super) view: Option<Moment>,
}

/// How the cache learns of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// An event of a watch: nothing of the object has happened between the last one and this.
    Event,
    /// A list or another read: anything may have happened.
    List,
}

/// What a change of the cache concerns.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Concern {
    /// The object itself has changed.
    pub(super) own: bool,
    /// It has come, gone, or changed what it belongs to.
    pub(super) relations: bool,
    /// Objects that it belongs to, or did until now.
    pub(super) heads: BTreeSet<Key>,
    /// What it belongs to cannot be told from the object alone.
    pub(super) unlinked: bool,
}

type Namespace = BTreeMap<GroupKind, BTreeMap<String, Entry>>;

/// The watch cache.
#[derive(Debug, Default)]
pub(super) struct Cache {
    namespaces: BTreeMap<String, Namespace>,
    /// Kinds that others inherit from.
    heads: BTreeMap<GroupKind, Membership>,
    /// When an object of a kind was last found gone, by its namespace and what it belonged to, if that could be told.
    gone: BTreeMap<(GroupKind, String, Option<Key>), Moment>,
    /// When the watch of a kind last began, or began anew: until then objects may have come and gone unseen.
    begun: BTreeMap<GroupKind, Moment>,
}

impl Cache {
    /// A kind that others inherit from, or no longer.
    pub(super) fn set_head(&mut self, kind: &GroupKind, rule: Option<&KindRule>) {
        match rule
            .filter(|rule| rule.has_heirs())
            .and_then(|rule| rule.membership.clone())
        {
            Some(membership) => {
                self.heads.insert(kind.clone(), membership);
            }
            None => {
                self.heads.remove(kind);
            }
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Entry> {
        self.namespaces.get(&key.namespace)?.get(&key.kind)?.get(&key.name)
    }

    /// Every object that may be a member of one in this namespace: those beside it, or all for a cluster-scoped one.
    pub(super) fn around(&self, namespace: &str) -> Vec<Entry> {
        let inherits = |objects: &BTreeMap<String, Entry>| {
            let first = objects.values().next();
            first.is_some_and(|entry| entry.ruled.rule.inherits)
        };
        let near: Vec<&Namespace> = if namespace.is_empty() {
            self.namespaces.values().collect()
        } else {
            self.namespaces.get(namespace).into_iter().collect()
        };
        near.into_iter()
            .flat_map(BTreeMap::values)
            .filter(|objects| inherits(objects))
            .flat_map(|objects| objects.values().cloned())
            .collect()
    }

    /// The objects that can hand a pause down to this one.
    pub(super) fn heads(&self, object: &ObjectView) -> Vec<Ruled> {
        let keys = self.heads_of(object);
        let entries = keys.iter().filter_map(|key| self.get(key));
        entries.map(|entry| entry.ruled.clone()).collect()
    }

    /// Whether an object inherits from another one than `flipped`. What that itself inherits from is no other.
    pub(super) fn belongs_elsewhere(&self, object: &ObjectView, flipped: &ObjectView) -> bool {
        let others = self.heads(object);
        let mut uids = others.iter().map(|head| &head.object.metadata.uid);
        let above = self.heads(flipped);
        let is_own =
            |uid: &String| *uid == flipped.metadata.uid || above.iter().any(|head| head.object.metadata.uid == *uid);
        !uids.all(is_own)
    }

    /// Since when nothing has changed that says who has to answer for an object, as another read has shown it. `None`: the
    /// watch has not shown that state yet.
    pub(super) fn unchanged_since(&self, kind: &GroupKind, object: &ObjectView) -> Option<Moment> {
        let entry = self.get(&Key::of(kind, object))?;
        let (seen, read) = (&entry.ruled.object, object);
        let is_shown = seen.metadata.uid == read.metadata.uid
            && (seen.metadata.resource_version == read.metadata.resource_version || is_older(read, seen));
        is_shown.then_some(entry.unchanged_since)
    }

    /// The watch of a kind has shown all that there is, and shows each change from now on.
    pub(super) fn begin(&mut self, now: Moment, kind: &GroupKind) {
        self.begun.insert(kind.clone(), now);
    }

    /// When an object of this kind that may have belonged to another one was last deleted, for all that is known. `None`: the
    /// watch has not begun.
    pub(super) fn gone_since(&self, kind: &GroupKind, head: &Key) -> Option<Moment> {
        let begun = *self.begun.get(kind)?;
        let gone = self.gone.iter().filter(|((of, namespace, belonged), _)| {
            of == kind
                && (head.namespace.is_empty() || *namespace == head.namespace)
                && belonged.as_ref().is_none_or(|belonged| belonged == head)
        });
        gone.map(|(_, at)| *at).chain([begun]).max()
    }

    fn note_gone(&mut self, now: Moment, entry: &Entry) {
        let object = &entry.ruled.object;
        let kind = &entry.ruled.rule.group_kind;
        let heads = self.heads_of(object);
        let belonged: Vec<Option<Key>> = match heads.is_empty() {
            true => vec![None],
            false => heads.into_iter().map(Some).collect(),
        };
        for head in belonged {
            let key = (kind.clone(), object.metadata.namespace.clone(), head);
            self.gone.insert(key, now);
        }
    }

    /// All objects of a kind in a namespace; in all of them, if that is empty.
    pub(super) fn of_kind(&self, kind: &GroupKind, namespace: &str) -> Vec<Key> {
        self.keys(|entry| {
            let meta = &entry.ruled.object.metadata;
            entry.ruled.rule.group_kind == *kind && (namespace.is_empty() || meta.namespace == namespace)
        })
    }

    /// All objects that can be flipped.
    pub(super) fn flippable(&self) -> Vec<Key> {
        self.keys(|entry| !entry.ruled.rule.inputs.is_empty())
    }

    /// What waits for its acknowledgement, by kind.
    pub(super) fn pending(&self) -> Pending {
        let mut pending = Pending::new();
        for (kind, objects) in self.namespaces.values().flat_map(|namespace| namespace.iter()) {
            for Entry { ruled, .. } in objects.values().filter(|entry| !entry.ruled.rule.inputs.is_empty()) {
                let (count, oldest) = pending.entry(kind.clone()).or_default();
                if let Standing::Own(record) = Standing::of(kind, &ruled.object)
                    && !record.is_acknowledged(&ruled.rule)
                {
                    *count += 1;
                    let at = record.stamp.at.parse().ok();
                    *oldest = oldest.iter().copied().chain(at).min();
                }
            }
        }
        pending
    }

    fn keys(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<Key> {
        let all = self.namespaces.values().flat_map(|namespace| namespace.iter());
        all.flat_map(|(kind, objects)| objects.values().map(move |entry| (kind, entry)))
            .filter(|(_, entry)| wanted(entry))
            .map(|(kind, entry)| Key::of(kind, &entry.ruled.object))
            .collect()
    }

    /// The watch has shown an object. `None` where the cache has something newer.
    pub(super) fn put(
        &mut self,
        now: Moment,
        needs: &Needs,
        object: ObjectView,
        rule: &Arc<KindRule>,
        source: Source,
    ) -> Option<Concern> {
        let key = Key::of(&rule.group_kind, &object);
        let object = Arc::new(object);
        let known = self.get(&key);
        if let Some(known) = known
            && known.ruled.object.metadata.uid == object.metadata.uid
            && is_older(&object, &known.ruled.object)
        {
            return None;
        }
        let mut concern = Concern::default();
        let (mut related_since, mut view) = (now, None);
        let mut unchanged_since = match source {
            Source::Event => Moment::default(),
            Source::List => now,
        };
        match known {
            Some(known) if known.ruled.object.metadata.uid == object.metadata.uid => {
                view = known.view;
                concern.own = differs(&known.ruled.object, &object);
                concern.relations = !same_relations(needs, &known.ruled.object, &object);
                if !concern.relations {
                    related_since = known.related_since;
                }
                let is_next = source == Source::Event
                    || known.ruled.object.metadata.resource_version == object.metadata.resource_version;
                let is_same = is_next && !concern.relations && answers_alike(rule, &known.ruled.object, &object);
                unchanged_since = if is_same { known.unchanged_since } else { now };
            }
            _ => {
                concern.own = true;
                concern.relations = true;
            }
        }
        let replaced = known
            .filter(|known| rule.inherits && known.ruled.object.metadata.uid != object.metadata.uid)
            .cloned();
        if concern.own && rule.inherits {
            let mut heads = self.heads_of(&object);
            if concern.relations
                && let Some(known) = known
            {
                heads.extend(self.heads_of(&known.ruled.object));
            }
            concern.unlinked = heads.is_empty();
            concern.heads = heads;
        }
        let entry = Entry {
            ruled: Ruled {
                object,
                rule: Arc::clone(rule),
            },
            related_since,
            unchanged_since,
            view,
        };
        if let Some(replaced) = replaced {
            self.note_gone(now, &replaced);
        }
        self.namespaces
            .entry(key.namespace)
            .or_default()
            .entry(key.kind)
            .or_default()
            .insert(key.name, entry);
        Some(concern)
    }

    /// A consistent read that was sent at `sent` has returned this object. Only what the watch has shown is renewed: an
    /// object that it has removed meanwhile stays away.
    pub(super) fn confirm(
        &mut self,
        now: Moment,
        sent: Moment,
        needs: &Needs,
        object: ObjectView,
        rule: &Arc<KindRule>,
    ) -> Option<Concern> {
        let key = Key::of(&rule.group_kind, &object);
        let uid = object.metadata.uid.clone();
        if self.get(&key)?.ruled.object.metadata.uid != uid {
            return None;
        }
        let concern = self.put(now, needs, object, rule, Source::List);
        if let Some(entry) = self
            .namespaces
            .get_mut(&key.namespace)
            .and_then(|namespace| namespace.get_mut(&key.kind))
            .and_then(|objects| objects.get_mut(&key.name))
        {
            // The cache has what was read, or something newer.
            entry.view = entry.view.max(Some(sent));
        }
        concern
    }

    /// The watch has shown that an object is gone.
    pub(super) fn remove(&mut self, now: Moment, key: &Key, uid: Option<&str>) -> Option<Concern> {
        let namespace = self.namespaces.get_mut(&key.namespace)?;
        let objects = namespace.get_mut(&key.kind)?;
        if uid.is_some_and(|uid| {
            objects
                .get(&key.name)
                .is_some_and(|e| e.ruled.object.metadata.uid != uid)
        }) {
            return None;
        }
        let entry = objects.remove(&key.name)?;
        if objects.is_empty() {
            namespace.remove(&key.kind);
        }
        if namespace.is_empty() {
            self.namespaces.remove(&key.namespace);
        }
        let heads = if entry.ruled.rule.inherits {
            self.note_gone(now, &entry);
            self.heads_of(&entry.ruled.object)
        } else {
            BTreeSet::new()
        };
        Some(Concern {
            own: true,
            relations: true,
            unlinked: entry.ruled.rule.inherits && heads.is_empty(),
            heads,
        })
    }

    /// The keys of a kind's objects other than these.
    pub(super) fn others(&self, kind: &GroupKind, seen: &BTreeSet<(String, String)>) -> Vec<Key> {
        self.keys(|entry| {
            let meta = &entry.ruled.object.metadata;
            entry.ruled.rule.group_kind == *kind && !seen.contains(&(meta.namespace.clone(), meta.name.clone()))
        })
    }

    /// The objects that can hand a pause down to this one: by label, name field, or a chain of owners.
    fn heads_of(&self, object: &ObjectView) -> BTreeSet<Key> {
        let mut found = BTreeSet::new();
        for (kind, membership) in &self.heads {
            let label = membership
                .label
                .as_ref()
                .and_then(|label| object.metadata.labels.get(label));
            let fields = membership
                .name_fields
                .iter()
                .filter_map(|path| object.field(path)?.scalar());
            for name in label.map(String::as_str).into_iter().chain(fields) {
                for namespace in [object.metadata.namespace.as_str(), ""] {
                    let key = Key {
                        kind: kind.clone(),
                        namespace: namespace.to_owned(),
                        name: name.to_owned(),
                    };
                    if self.get(&key).is_some() {
                        found.insert(key);
                    }
                }
            }
        }
        let mut seen = BTreeSet::new();
        let mut open: Vec<Key> = owners(object).collect();
        while let Some(key) = open.pop() {
            if !seen.insert(key.clone()) {
                continue;
            }
            if self.heads.contains_key(&key.kind) {
                found.insert(key);
            } else if let Some(entry) = self.get(&key) {
                open.extend(owners(&entry.ruled.object));
            }
        }
        found
    }
}

fn owners(object: &ObjectView) -> impl Iterator<Item = Key> {
    object.metadata.owner_references.iter().map(|owner| Key {
        kind: GroupKind::new(
            crate::protocol::object::group_of(&owner.api_version),
            owner.kind.clone(),
        ),
        namespace: object.metadata.namespace.clone(),
        name: owner.name.clone(),
    })
}

/// Whether `a` is an older version than `b` of the same object (KEP-5504: resource versions compare as numbers).
pub(super) fn is_older(a: &ObjectView, b: &ObjectView) -> bool {
    let version = |object: &ObjectView| object.metadata.resource_version.parse::<u128>().ok();
    matches!((version(a), version(b)), (Some(a), Some(b)) if a < b)
}

fn differs(a: &ObjectView, b: &ObjectView) -> bool {
    a.fields != b.fields
        || a.status != b.status
        || a.metadata.labels != b.metadata.labels
        || a.metadata.annotations != b.metadata.annotations
        || a.metadata.owner_references != b.metadata.owner_references
        || a.metadata.generation != b.metadata.generation
        || a.metadata.deletion_timestamp != b.metadata.deletion_timestamp
}

/// Whether the same attestors have to answer for both states of an object, as far as that is not a matter of relations.
fn answers_alike(rule: &KindRule, a: &ObjectView, b: &ObjectView) -> bool {
    let elsewhere = |object: &ObjectView| {
        let key = rule.managed_elsewhere.as_ref();
        key.is_some_and(|key| object.metadata.annotation(key).is_some())
    };
    elsewhere(a) == elsewhere(b)
        && rule
            .attestors
            .iter()
            .all(|attestor| attestor.applies(a) == attestor.applies(b))
}

fn same_relations(needs: &Needs, a: &ObjectView, b: &ObjectView) -> bool {
    let value = |object: &ObjectView, path| -> Option<Shallow> { object.field(path).cloned() };
    a.metadata.labels == b.metadata.labels
        && a.metadata.owner_references == b.metadata.owner_references
        && needs.relations.iter().all(|path| value(a, path) == value(b, path))
}

#[cfg(test)]
mod tests;
