//! The answer of an audit. Its fields are the schema of `-o json` and `-o yaml`.

use serde::Serialize;

use crate::protocol::keys::Evidence;

/// `apiVersion` of a [`Report`].
pub const API_VERSION: &str = "pausegen.io/v1alpha1";
/// `kind` of a [`Report`].
pub const KIND: &str = "PauseAudit";

/// The answer of an audit.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// [`API_VERSION`].
    pub api_version: &'static str,
    /// [`KIND`].
    pub kind: &'static str,
    /// When the objects had been read, on the clock of whoever asked.
    pub at: String,
    /// The cluster, or the files, that were read.
    pub source: String,
    /// Whether everything could be read that the answer needs.
    pub complete: bool,
    /// What cannot be known, and why.
    pub unknown: Vec<String>,
    /// The counts.
    pub totals: Totals,
    /// One row an object.
    pub rows: Vec<Row>,
    /// Flips of these objects, from a history that was given; the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Past>,
}

/// A flip of the past.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Past {
    /// `Kind.group namespace/name`.
    pub object: String,
    /// The pause generation that it gave.
    pub generation: u64,
    /// When (RFC 3339).
    pub at: String,
    /// Whether any input was on since.
    pub paused: bool,
    /// By whom.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When it was acknowledged.
    pub acknowledged_at: Option<String>,
    /// How certain that was.
    pub evidence: Option<Evidence>,
    /// Whether the acknowledgement was taken back.
    pub withdrawn: bool,
}

/// Counts over all rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Objects of ruled kinds that were read.
    pub objects: usize,
    /// Rows.
    pub rows: usize,
    /// Rows of objects that are paused, by themselves or by what they inherit from.
    pub paused: usize,
    /// Rows of objects whose last flip is not acknowledged, or never was stamped.
    pub unacknowledged: usize,
    /// Findings.
    pub findings: usize,
}

/// How an object stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Status {
    /// The standing generation is acknowledged.
    Acknowledged,
    /// It is not acknowledged yet.
    Pending,
    /// The keys are not believed, or are not about the inputs as they are.
    Irregular,
    /// It is paused, and has no stamp.
    Unstamped,
    /// It is paused by what it inherits from alone; that object's row says whether it is acknowledged.
    Inherited,
    /// It is neither paused nor stamped.
    Running,
    /// It is not there any more; only a watch says so.
    Deleted,
}

impl Status {
    /// As it is printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acknowledged => "Acknowledged",
            Self::Pending => "Pending",
            Self::Irregular => "Irregular",
            Self::Unstamped => "Unstamped",
            Self::Inherited => "Inherited",
            Self::Running => "Running",
            Self::Deleted => "Deleted",
        }
    }
}

/// One object.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// `group/version` of the object as it was read.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// API group.
    pub group: String,
    /// Namespace; empty for a cluster-scoped object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// How it stands.
    pub status: Status,
    /// What it is called while acknowledged: `paused`, `paused-self` or `running`; else `pending`, where it has keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<String>,
    /// Whether it is paused, by its own inputs or by inherited ones.
    pub paused: bool,
    /// Its own inputs that are on.
    pub paused_by: Vec<String>,
    /// Objects whose pause it inherits.
    pub inherited_from: Vec<Inherited>,
    /// Objects that it is a member of, paused or not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub member_of: Vec<String>,
    /// The object that owns it, where that is one of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owned_by: Option<String>,
    /// The pause generation; absent where there is none that is believed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The observed generation; absent where there is none that is believed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<u64>,
    /// Whether the flip came before the last one was acknowledged; only said while it is pending.
    pub hasty: bool,
    /// How certain the acknowledgement is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// The staleness bound that the evidence rests on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_seconds: Option<u64>,
    /// `absent` where the bound was counted without the manager's Lease.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub lease: String,
    /// How many objects were asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<usize>,
    /// What was not asked, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<String>,
    /// When it was last flipped (RFC 3339), from the stamp; without one, from the controller's own condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Where `since` is from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_from: Option<SinceFrom>,
    /// By whom, as the stamp says.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Why, as the stamp says; without a stamp, as the annotation says.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When it was acknowledged (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledged_at: Option<String>,
    /// From the stamp to the acknowledgement, in seconds, by the clocks of those who wrote them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took_seconds: Option<f64>,
    /// Controllers that do not attest at present what is intended, as of the lists that were read.
    pub waits_for: Vec<Laggard>,
    /// How many controllers give the answer that is called for, while only time or the companion can tell whether it is an
    /// answer to this flip.
    pub to_be_proven: usize,
    /// What is to be looked at.
    pub findings: Vec<Finding>,
}

impl Row {
    /// `Kind.group namespace/name`.
    #[must_use]
    pub fn display(&self) -> String {
        let kind = crate::protocol::GroupKind::new(self.group.clone(), self.kind.clone());
        format!("{kind} {}", self.full_name())
    }

    /// `namespace/name`, or the name of a cluster-scoped object.
    #[must_use]
    pub fn full_name(&self) -> String {
        if self.namespace.is_empty() {
            self.name.clone()
        } else {
            format!("{}/{}", self.namespace, self.name)
        }
    }

    /// Whether its last flip is not acknowledged, or never was stamped.
    #[must_use]
    pub const fn is_unacknowledged(&self) -> bool {
        matches!(self.status, Status::Pending | Status::Irregular | Status::Unstamped)
    }
}

/// Where [`Row::since`] is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SinceFrom {
    /// The stamp: the flip itself, on the webhook's clock.
    Stamp,
    /// The stamp of the object that it inherits from.
    InheritedStamp,
    /// The controller's condition: when that controller first said so.
    Condition,
}

/// A pause that is inherited.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inherited {
    /// `Kind.group namespace/name` of the object that is paused.
    pub from: String,
    /// Its inherited inputs that are on.
    pub inputs: Vec<String>,
}

/// Somebody who does not attest what is intended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Laggard {
    /// `Kind.group` of the object.
    pub kind: String,
    /// Namespace of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// The controller that has to answer for it.
    pub attestor: String,
    /// What is the matter.
    pub lag: Lag,
}

impl Laggard {
    /// `Kind.group namespace/name`.
    #[must_use]
    pub fn display(&self) -> String {
        if self.namespace.is_empty() {
            format!("{} {}", self.kind, self.name)
        } else {
            format!("{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// What is the matter with a [`Laggard`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Lag {
    /// It attests what was.
    NotAnswered,
    /// It says nothing at all.
    SaysNothing,
    /// Its kind has no rule, or was not read: nobody knows whom to ask.
    NotKnown,
}

impl Lag {
    /// For people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotAnswered => "has not answered",
            Self::SaysNothing => "says nothing",
            Self::NotKnown => "has no rule, or was not read",
        }
    }
}

/// Something to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What it is about.
    pub code: Code,
    /// What is wrong, and what to do.
    pub message: String,
}

/// What a [`Finding`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Code {
    /// The last flip is not acknowledged.
    Pending,
    /// Paused without a stamp.
    Unstamped,
    /// The inputs are not those of the stamp: a flip passed unseen.
    InputsDiffer,
    /// The records name another object or uid.
    OfAnother,
    /// The keys make no record.
    Broken,
    /// It is said to be acknowledged, and no echo of this flip has said so.
    NotAnEcho,
    /// It is acknowledged, and somebody does not attest it at present.
    Contradicted,
    /// It has been paused for longer than was asked for.
    Old,
}

impl Code {
    /// As it is printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Unstamped => "Unstamped",
            Self::InputsDiffer => "InputsDiffer",
            Self::OfAnother => "OfAnother",
            Self::Broken => "Broken",
            Self::NotAnEcho => "NotAnEcho",
            Self::Contradicted => "Contradicted",
            Self::Old => "Old",
        }
    }
}
