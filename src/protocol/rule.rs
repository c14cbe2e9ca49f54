//! What a rules file says of a kind, as the protocol reads it. The file's own format is `crate::rules`.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    GroupKind,
    object::{FieldPath, ObjectView, group_of},
};

/// Names one input of a kind: the path of its field (`spec.paused`) or the key of its annotation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InputId(pub String);

impl fmt::Display for InputId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One thing that can pause an object of this kind by being set on the object itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Its name; unique within the kind.
    pub id: InputId,
    /// Where it is read.
    pub source: InputSource,
    /// Whether the members of this object are paused by it too.
    pub inherited: bool,
}

/// Where an input is read, and what turns it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputSource {
    /// A field.
    Field {
        /// Its path; never below `metadata` or `status`.
        path: FieldPath,
        /// The value that pauses.
        on: FieldMatch,
    },
    /// An annotation.
    Annotation {
        /// Its key.
        key: String,
        /// The value that pauses.
        on: AnnotationMatch,
    },
}

/// The value of a field that pauses. A missing field never does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldMatch {
    /// The boolean true; the string "true" is not it.
    True,
    /// The boolean false (an inverse field, such as Kueue's `spec.active`).
    False,
    /// One of these strings.
    OneOf(Vec<String>),
}

/// The value of an annotation that pauses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnnotationMatch {
    /// Any value, also the empty one and "false" (Cluster API, Metal3).
    Present,
    /// Exactly this value.
    Equals(String),
    /// What Go's `strconv.ParseBool` reads as true: 1, t, T, TRUE, true, True.
    Boolean,
}

/// An input as an attestor's object sees it: its own, or that of the object which it inherits from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InputRef {
    /// An input of the attesting object itself.
    Own(InputId),
    /// An inherited input of the object that the attesting object is a member of.
    Inherited(InputId),
}

/// A controller that answers for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attestor {
    /// Its name; unique within the kind.
    pub name: String,
    /// How it answers.
    pub by: AttestedBy,
    /// It answers only for objects of which this holds; `None`: for all.
    pub applies_if: Option<AppliesIf>,
    /// The inputs that it answers for; `None`: all.
    pub inputs: Option<Vec<InputRef>>,
    /// The leader Lease of the manager that runs it.
    pub lease: Option<LeaseName>,
}

impl Attestor {
    /// Whether it answers for this object at present.
    #[must_use]
    pub fn applies(&self, object: &ObjectView) -> bool {
        self.applies_if.as_ref().is_none_or(|what| match what {
            AppliesIf::Field(path) => object.field(path).is_some(),
            AppliesIf::Label(key) => object.metadata.labels.contains_key(key),
        })
    }

    /// Whether it may tell which revision of an object it has read.
    #[must_use]
    pub const fn tells_generation(&self) -> bool {
        matches!(self.by, AttestedBy::Condition(_) | AttestedBy::ObservedGeneration)
    }

    /// Whether this input is its concern.
    #[must_use]
    pub fn answers_for(&self, input: &InputRef) -> bool {
        self.inputs.as_ref().is_none_or(|inputs| inputs.contains(input))
    }
}

/// Which objects an attestor answers for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppliesIf {
    /// Those that have this field (topology on a Cluster: `spec.topology`).
    Field(FieldPath),
    /// Those that have this label (topology on a MachineDeployment: `topology.cluster.x-k8s.io/owned`).
    Label(String),
}

/// How an attestor answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttestedBy {
    /// A condition.
    Condition(ConditionRule),
    /// `status.observedGeneration`: it tells which revision was read, and nothing of an annotation or a parent.
    ObservedGeneration,
    /// Honours the pause without a trace: time alone can answer for it.
    Bound,
    /// Not asked; named as excluded in the acknowledgement.
    None,
}

/// How a condition attests a pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionRule {
    /// Which list it is in.
    pub at: ConditionsAt,
    /// Its type.
    pub type_: String,
    /// The status that says "paused".
    pub status: String,
    /// The reason that it must have to say "paused", if the status alone does not say it.
    pub reason: Option<String>,
    /// Its controller takes it away at a resume: where it is missing, time alone can answer.
    pub absent_is_off: bool,
    /// How the message names the inputs: one of the parts of the message (split at `, `) ends with the text.
    pub texts: Vec<(InputRef, String)>,
}

/// The list that a condition is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionsAt {
    /// `status.conditions`
    Status,
    /// `status.v1beta2.conditions`
    StatusV1Beta2,
}

/// A leader Lease.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseName {
    /// Its name.
    pub name: String,
    /// Its namespace; `None`: every namespace that has a Lease of that name.
    pub namespace: Option<String>,
}

/// How the members of an object are found, in its own namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Membership {
    /// A label whose value is the object's name.
    pub label: Option<String>,
    /// Whether a chain of owner references to the object makes a member.
    pub owner_chain: bool,
    /// Fields whose value is the object's name (`spec.clusterName`).
    pub name_fields: Vec<FieldPath>,
}

/// Everything that the protocol knows of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindRule {
    /// Group and kind.
    pub group_kind: GroupKind,
    /// What can pause an object of it; may be empty for a kind that only inherits.
    pub inputs: Vec<Input>,
    /// Who answers for an object of it.
    pub attestors: Vec<Attestor>,
    /// How its members are found; `None` where nobody inherits from it.
    pub membership: Option<Membership>,
    /// Whether an object of it can inherit from the object that it is a member of.
    pub inherits: bool,
    /// Fields that refer to another object (`{apiGroup | apiVersion, kind, name}`), which then is in the scope too.
    pub references: Vec<FieldPath>,
    /// Its controller does nothing before it has an owner other than these, who only made it (kind `*`: all of the
    /// group); `None`: it waits for none.
    pub requires_owner: Option<Vec<GroupKind>>,
    /// Its controller skips objects with this annotation.
    pub managed_elsewhere: Option<String>,
    /// The staleness bound of its attestors.
    pub staleness_bound: Duration,
    /// How long nothing may change before a missing attestation is called `NotReporting`.
    pub grace: Duration,
}

impl KindRule {
    /// The input of that name.
    #[must_use]
    pub fn input(&self, id: &InputId) -> Option<&Input> {
        self.inputs.iter().find(|input| input.id == *id)
    }

    /// Whether its controller still waits for an owner of this object, and so cannot attest it.
    ///
    /// An owner that no rule knows of ends the wait: an object is rather asked in vain than left out in error.
    #[must_use]
    pub fn waits_for_owner(&self, object: &ObjectView) -> bool {
        self.requires_owner.as_ref().is_some_and(|makers| {
            object.metadata.owner_references.iter().all(|owner| {
                makers.iter().any(|maker| {
                    maker.group == group_of(&owner.api_version) && (maker.kind == "*" || maker.kind == owner.kind)
                })
            })
        })
    }

    /// Whether any input of this kind is inherited by members.
    #[must_use]
    pub fn has_heirs(&self) -> bool {
        self.membership.is_some() && self.inputs.iter().any(|input| input.inherited)
    }
}
