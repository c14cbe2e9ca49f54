//! The objects of the world and their rules: a Cluster and children, as `ObjectView`s that the protocol reads.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    ops::Deref,
    sync::{Arc, OnceLock},
    time::Duration,
};

use pausegen::protocol::{
    GroupKind,
    object::{Annotations, Condition, FieldPath, Meta, ObjectView, Owner, Shallow},
    rule::{
        AnnotationMatch, AppliesIf, AttestedBy, Attestor, ConditionRule, ConditionsAt, FieldMatch, Input, InputId,
        InputRef, InputSource, KindRule, LeaseName, Membership,
    },
    scope::Ruled,
};

/// The flipped object that children inherit from.
pub(crate) const CLUSTER: usize = 0;
pub(crate) const FIELD: &str = "spec.paused";
pub(crate) const ANNOTATION: &str = "cluster.x-k8s.io/paused";
const LABEL: &str = "cluster.x-k8s.io/cluster-name";
const FIELD_TEXT: &str = "Cluster spec.paused is set to true";
const ANNOTATION_TEXT: &str = "has the cluster.x-k8s.io/paused annotation";
const MANAGED: &str = "managed-by";
const ANSWERED: &str = "answered";
pub(crate) const KINDS: [&str; 3] = ["Cluster", "MachineSet", "Machine"];

/// A value that is hashed once and shared.
pub(crate) struct Shared<T> {
    hash: u64,
    pub(crate) value: Arc<T>,
}

impl<T: Hash> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Self {
            hash: hasher.finish(),
            value: Arc::new(value),
        }
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self {
            hash: self.hash,
            value: Arc::clone(&self.value),
        }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.value, &other.value) || (self.hash == other.hash && self.value == other.value)
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// What a controller of Cluster API says in `Paused`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Paused {
    pub(crate) field: bool,
    pub(crate) annotation: bool,
    pub(crate) observed: u8,
}

impl Paused {
    pub(crate) fn is_true(self) -> bool {
        self.field || self.annotation
    }
}

pub(crate) fn input(id: usize) -> InputId {
    InputId([FIELD, ANNOTATION][id].to_owned())
}

/// What child 2 is; child 1 is always a [`Role::Member`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// A member by its label, whose controller answers in a condition.
    Member,
    /// A member because child 1 owns it.
    Owned,
    /// A member because child 1 refers to it.
    Referenced,
    /// Its condition does not say which input it is about.
    Vague,
    /// Its controller honours a pause without a trace: `attestedBy: bound`.
    Bound,
    /// As that, and it is not asked: `attestedBy: none`.
    NotAsked,
    /// Not asked, since it is managed elsewhere.
    Managed,
    /// Not asked, since it has no owner yet.
    Ownerless,
    /// Its controller says nothing, though the rule expects it to.
    Mute,
    /// It does not exist; child 1 refers to an object of a kind without a rule.
    Unruled,
}

/// What makes somebody answer for an object, each of which can come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    /// The label that makes it a member.
    Label,
    /// Its owner: of child 2, which is a member because of it ([`Role::Owned`]), or is left alone without one
    /// ([`Role::Ownerless`]).
    Owner,
    /// That it is not marked as managed elsewhere.
    Here,
    /// The label by which its attestor applies.
    Attestor,
}

impl Role {
    /// Whether its controller writes a condition, where it reconciles it.
    pub(crate) fn answers(self) -> bool {
        matches!(
            self,
            Self::Member | Self::Owned | Self::Referenced | Self::Vague | Self::Managed | Self::Ownerless
        )
    }
}

/// The rules: of a kind per slot.
pub(crate) struct Rules(pub(crate) Vec<Arc<KindRule>>);

impl Rules {
    pub(crate) fn new(slots: usize, bound: u8, leases: bool, second: Role, grace: u8, ways: &[(usize, Way)]) -> Self {
        let rule = |slot: usize| {
            let own = InputRef::Own(input(1));
            let role = if slot == 2 { second } else { Role::Member };
            let field_of = if slot == CLUSTER {
                InputRef::Own
            } else {
                InputRef::Inherited
            };
            let mut texts = vec![
                (field_of(input(0)), FIELD_TEXT.to_owned()),
                (own, ANNOTATION_TEXT.to_owned()),
            ];
            if role == Role::Vague {
                texts.clear();
            }
            let field = Input {
                id: input(0),
                source: InputSource::Field {
                    path: FieldPath::parse(FIELD),
                    on: FieldMatch::True,
                },
                inherited: true,
            };
            let annotation = Input {
                id: input(1),
                source: InputSource::Annotation {
                    key: ANNOTATION.to_owned(),
                    on: AnnotationMatch::Present,
                },
                inherited: false,
            };
            let by = match role {
                Role::Bound => AttestedBy::Bound,
                Role::NotAsked => AttestedBy::None,
                _ => AttestedBy::Condition(ConditionRule {
                    at: ConditionsAt::Status,
                    type_: "Paused".to_owned(),
                    status: "True".to_owned(),
                    reason: None,
                    absent_is_off: false,
                    texts,
                }),
            };
            let refers = slot == 1 && matches!(second, Role::Referenced | Role::Unruled);
            Arc::new(KindRule {
                group_kind: GroupKind::new("x", KINDS[slot]),
                inputs: if slot == CLUSTER {
                    vec![field, annotation]
                } else {
                    vec![annotation]
                },
                attestors: vec![Attestor {
                    name: "controller".to_owned(),
                    by,
                    applies_if: ways
                        .contains(&(slot, Way::Attestor))
                        .then(|| AppliesIf::Label(ANSWERED.to_owned())),
                    inputs: None,
                    lease: leases.then(|| lease(slot)),
                }],
                membership: (slot == CLUSTER).then(|| Membership {
                    label: Some(LABEL.to_owned()),
                    owner_chain: true,
                    name_fields: Vec::new(),
                }),
                inherits: slot != CLUSTER,
                references: refers.then(|| FieldPath::parse("spec.ref")).into_iter().collect(),
                requires_owner: (role == Role::Ownerless).then(Vec::new),
                managed_elsewhere: (slot != CLUSTER).then(|| MANAGED.to_owned()),
                staleness_bound: Duration::from_secs(bound.into()),
                grace: Duration::from_secs(grace.into()),
            })
        };
        Self((0..slots).map(rule).collect())
    }

    /// Whether there is a rule for a kind.
    pub(crate) fn has(kind: &GroupKind) -> bool {
        KINDS.contains(&kind.kind.as_str())
    }

    pub(crate) fn ruled(&self, slot: usize, object: &Shared<ObjectView>) -> Ruled {
        Ruled {
            object: Arc::clone(&object.value),
            rule: Arc::clone(&self.0[slot]),
        }
    }
}

pub(crate) fn lease(slot: usize) -> LeaseName {
    LeaseName {
        name: format!("lease-{slot}"),
        namespace: None,
    }
}

/// A new object, as a request to create it carries it: no uid, no `metadata.generation`.
pub(crate) fn blank(slot: usize, second: Role) -> ObjectView {
    let mut object = ObjectView {
        api_version: "x/v1".to_owned(),
        kind: KINDS[slot].to_owned(),
        metadata: Meta {
            name: KINDS[slot].to_lowercase(),
            namespace: "ns".to_owned(),
            annotations: Some(Annotations::default()),
            ..Meta::default()
        },
        ..ObjectView::default()
    };
    match (slot, second) {
        (CLUSTER, _) => {}
        (2, Role::Owned) => object.set_way(Way::Owner, true),
        (2, Role::Referenced) => {}
        _ => object.set_way(Way::Label, true),
    }
    object.set_way(Way::Attestor, true);
    let other = match second {
        Role::Referenced => Some(KINDS[2]),
        Role::Unruled => Some("Unheard"),
        _ => None,
    };
    if let Some(kind) = other.filter(|_| slot == 1) {
        let text = |text: &str| Shallow::String(text.to_owned());
        let reference = BTreeMap::from([
            ("apiVersion".to_owned(), text("x/v1")),
            ("kind".to_owned(), text(kind)),
            ("name".to_owned(), text(&kind.to_lowercase())),
        ]);
        let spec = BTreeMap::from([("ref".to_owned(), Shallow::Map(reference))]);
        object.fields.insert("spec".to_owned(), Shallow::Map(spec));
    }
    if slot == 2 && second == Role::Managed {
        object.set_way(Way::Here, false);
    }
    object
}

/// Reads and writes the parts of an object that the world is about.
pub(crate) trait Parts {
    fn on(&self, input: usize) -> bool;
    fn set(&mut self, input: usize, on: bool);
    fn key(&self, key: &str) -> Option<&str>;
    fn set_key(&mut self, key: &str, value: Option<&str>);
    fn has(&self, way: Way) -> bool;
    fn set_way(&mut self, way: Way, there: bool);
    /// How often what makes somebody answer for it has come or gone.
    fn turns(&self) -> u8;
    fn generation(&self) -> u8;
    fn set_generation(&mut self, generation: u8);
    fn paused(&self) -> Option<Paused>;
    fn set_paused(&mut self, paused: Paused);
    fn set_condition(&mut self, condition: Condition);
}

fn texts() -> &'static [String; 4] {
    static TEXTS: OnceLock<[String; 4]> = OnceLock::new();
    TEXTS.get_or_init(|| {
        [
            String::new(),
            FIELD_TEXT.to_owned(),
            format!("Kind {ANNOTATION_TEXT}"),
            format!("{FIELD_TEXT}, Kind {ANNOTATION_TEXT}"),
        ]
    })
}

impl Parts for ObjectView {
    fn on(&self, input: usize) -> bool {
        match input {
            0 => matches!(self.fields.get("spec"), Some(Shallow::Map(spec)) if spec.contains_key("paused")),
            _ => self.key(ANNOTATION).is_some(),
        }
    }
    fn set(&mut self, input: usize, on: bool) {
        match (input, on) {
            (0, true) => {
                let spec = BTreeMap::from([("paused".to_owned(), Shallow::Bool(true))]);
                self.fields.insert("spec".to_owned(), Shallow::Map(spec));
            }
            (0, false) => {
                self.fields.remove("spec");
            }
            _ => self.set_key(ANNOTATION, on.then_some("")),
        }
    }
    fn key(&self, key: &str) -> Option<&str> {
        self.metadata.annotation(key)
    }
    fn set_key(&mut self, key: &str, value: Option<&str>) {
        let map = &mut self.metadata.annotations.get_or_insert_default().0;
        match value {
            Some(value) => map.insert(key.to_owned(), value.to_owned()),
            None => map.remove(key),
        };
    }
    fn has(&self, way: Way) -> bool {
        match way {
            Way::Label => self.metadata.labels.contains_key(LABEL),
            Way::Owner => !self.metadata.owner_references.is_empty(),
            Way::Here => self.key(MANAGED).is_none(),
            Way::Attestor => self.metadata.labels.contains_key(ANSWERED),
        }
    }
    fn set_way(&mut self, way: Way, there: bool) {
        let label = match way {
            Way::Label => LABEL,
            Way::Attestor => ANSWERED,
            Way::Here => return self.set_key(MANAGED, (!there).then_some("")),
            Way::Owner => {
                let owner = || Owner {
                    api_version: "x/v1".to_owned(),
                    kind: KINDS[1].to_owned(),
                    name: KINDS[1].to_lowercase(),
                    uid: "1-1".to_owned(),
                };
                self.metadata.owner_references = there.then(owner).into_iter().collect();
                return;
            }
        };
        self.metadata.labels.remove(label);
        if there {
            self.metadata
                .labels
                .insert(label.to_owned(), KINDS[CLUSTER].to_lowercase());
        }
    }
    fn turns(&self) -> u8 {
        self.metadata.resource_version.parse().unwrap_or_default()
    }
    fn generation(&self) -> u8 {
        u8::try_from(self.metadata.generation.unwrap_or_default()).unwrap()
    }
    fn set_generation(&mut self, generation: u8) {
        self.metadata.generation = Some(generation.into());
    }
    fn paused(&self) -> Option<Paused> {
        let condition = self.status.conditions.iter().find(|c| c.type_ == "Paused")?;
        let text = texts().iter().position(|text| *text == condition.message).unwrap();
        Some(Paused {
            field: text & 1 != 0,
            annotation: text & 2 != 0,
            observed: u8::try_from(condition.observed_generation.unwrap()).unwrap(),
        })
    }
    fn set_paused(&mut self, paused: Paused) {
        self.set_condition(Condition {
            type_: "Paused".to_owned(),
            status: if paused.is_true() { "True" } else { "False" }.to_owned(),
            reason: if paused.is_true() { "Paused" } else { "NotPaused" }.to_owned(),
            message: texts()[usize::from(paused.field) | usize::from(paused.annotation) << 1].clone(),
            observed_generation: Some(paused.observed.into()),
            last_transition_time: None,
        });
    }
    fn set_condition(&mut self, condition: Condition) {
        let list = &mut self.status.conditions;
        list.retain(|c| c.type_ != condition.type_);
        list.push(condition);
        list.sort_by(|a, b| a.type_.cmp(&b.type_));
    }
}
