//! Which kinds a rule is for.

use std::fmt;

use crate::protocol::GroupKind;

/// The name of a kind, or a pattern with one `*` in front or at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KindName {
    /// `*`: every kind.
    Any,
    /// `*Template`: every kind that ends so.
    EndsWith(String),
    /// `Docker*`: every kind that begins so.
    StartsWith(String),
    /// This kind.
    Exactly(String),
}

impl KindName {
    /// Reads a name or a pattern; `None` where it is neither.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let name = |text: &str| {
            let sound = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric());
            sound.then(|| text.to_owned())
        };
        if text == "*" {
            Some(Self::Any)
        } else if let Some(end) = text.strip_prefix('*') {
            name(end).map(Self::EndsWith)
        } else if let Some(start) = text.strip_suffix('*') {
            name(start).map(Self::StartsWith)
        } else {
            name(text).map(Self::Exactly)
        }
    }

    /// Whether it stands for this kind.
    #[must_use]
    pub fn matches(&self, kind: &str) -> bool {
        match self {
            Self::Any => true,
            Self::EndsWith(end) => kind.ends_with(end.as_str()),
            Self::StartsWith(start) => kind.starts_with(start.as_str()),
            Self::Exactly(name) => kind == name,
        }
    }

    /// Whether it is a pattern.
    #[must_use]
    pub const fn is_pattern(&self) -> bool {
        !matches!(self, Self::Exactly(_))
    }
}

impl fmt::Display for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::EndsWith(end) => write!(f, "*{end}"),
            Self::StartsWith(start) => write!(f, "{start}*"),
            Self::Exactly(name) => f.write_str(name),
        }
    }
}

/// The kinds of one group that a rule is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// The group.
    pub group: String,
    /// Names, or a single pattern.
    pub kinds: Vec<KindName>,
    /// With a pattern: what is not meant.
    pub except: Vec<KindName>,
}

impl Selector {
    /// Whether the rule is for this kind.
    #[must_use]
    pub fn matches(&self, kind: &GroupKind) -> bool {
        self.group == kind.group
            && self.kinds.iter().any(|name| name.matches(&kind.kind))
            && !self.except.iter().any(|name| name.matches(&kind.kind))
    }

    /// Whether its kinds are found by discovery.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.kinds.iter().any(KindName::is_pattern)
    }

    /// The kinds that it names, in order; none for a pattern.
    pub fn names(&self) -> impl Iterator<Item = GroupKind> {
        self.kinds.iter().filter_map(|name| match name {
            KindName::Exactly(kind) => Some(GroupKind::new(self.group.clone(), kind.clone())),
            _ => None,
        })
    }
}
