//! Which objects get a row. The rest is read all the same: it may have to answer for one of these.

use std::{collections::BTreeSet, fmt, str::FromStr};

use jiff::SignedDuration;

use crate::protocol::{
    GroupKind,
    object::{FieldPath, ObjectView, Shallow},
    scope::Ruled,
};

/// Which objects get a row.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Only in this namespace.
    pub namespace: Option<String>,
    /// Only of these kinds; empty: of all.
    pub kinds: Vec<KindFilter>,
    /// Only with these labels.
    pub labels: LabelSelector,
    /// Only with these fields.
    pub fields: FieldSelector,
    /// Only the object of this name that others inherit from (a Cluster), with its whole tree, paused or not.
    pub cluster: Option<String>,
    /// Only what has been paused for longer than this.
    pub older_than: Option<SignedDuration>,
    /// Only what is not acknowledged.
    pub unacknowledged: bool,
    /// Say of every row what it is a member of.
    pub tree: bool,
    /// Also what is neither paused nor stamped.
    pub all: bool,
}

impl Query {
    /// Whether the object itself is selected.
    #[must_use]
    pub fn selects(&self, ruled: &Ruled) -> bool {
        let object = &*ruled.object;
        self.namespace
            .as_ref()
            .is_none_or(|namespace| *namespace == object.metadata.namespace)
            && (self.kinds.is_empty() || self.kinds.iter().any(|kind| kind.matches(&ruled.rule.group_kind)))
            && self.labels.matches(object)
            && self.fields.matches(object)
    }
}

/// A kind as people write it: `Machine`, `machines`, `machine.cluster.x-k8s.io`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindFilter {
    kind: String,
    group: Option<String>,
}

impl FromStr for KindFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, group) = match text.split_once('.') {
            Some((kind, group)) => (kind, Some(group.to_ascii_lowercase())),
            None => (text, None),
        };
        if kind.is_empty() || !kind.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err("a kind is a name such as `Machine`, or with its group `machine.cluster.x-k8s.io`".to_owned());
        }
        Ok(Self {
            kind: kind.to_ascii_lowercase(),
            group,
        })
    }
}

impl fmt::Display for KindFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        self.group.as_ref().map_or(Ok(()), |group| write!(f, ".{group}"))
    }
}

impl KindFilter {
    pub(super) fn matches(&self, kind: &GroupKind) -> bool {
        let name = kind.kind.to_ascii_lowercase();
        let named = self.kind == name
            || self.kind.strip_suffix("es").is_some_and(|stem| stem == name)
            || self.kind.strip_suffix('s').is_some_and(|stem| stem == name)
            || self
                .kind
                .strip_suffix("ies")
                .is_some_and(|stem| name.strip_suffix('y') == Some(stem));
        named && self.group.as_ref().is_none_or(|group| *group == kind.group)
    }
}

/// A label selector, as `kubectl -l` takes it: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    op: Op,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Op {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    Absent,
}

impl LabelSelector {
    /// Whether an object has these labels.
    #[must_use]
    pub fn matches(&self, object: &ObjectView) -> bool {
        self.0.iter().all(|Requirement { key, op }| {
            let value = object.metadata.labels.get(key);
            match op {
                Op::In(values) => value.is_some_and(|value| values.contains(value)),
                Op::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Op::Exists => value.is_some(),
                Op::Absent => value.is_none(),
            }
        })
    }
}

impl FromStr for LabelSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        split(text, true)?
            .into_iter()
            .map(requirement)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// Splits at commas that are not in parentheses.
fn split(text: &str, parentheses: bool) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_u32);
    for (at, c) in text.char_indices() {
        match c {
            '(' if parentheses => depth += 1,
            ')' if parentheses => depth = depth.checked_sub(1).ok_or("a `)` without its `(`")?,
            ',' if depth == 0 => {
                parts.push(text.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err("a `(` without its `)`".to_owned());
    }
    parts.push(text.get(start..).unwrap_or_default());
    Ok(parts
        .into_iter()
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect())
}

fn requirement(part: &str) -> Result<Requirement, String> {
    let one = |value: &str| BTreeSet::from([value.trim().to_owned()]);
    let (key, op) = if let Some((key, value)) = part.split_once("!=") {
        (key, Op::NotIn(one(value)))
    } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        (key, Op::In(one(value)))
    } else if let Some(key) = part.strip_prefix('!') {
        (key, Op::Absent)
    } else if let Some((head, list)) = part.split_once('(') {
        let list = list
            .strip_suffix(')')
            .ok_or_else(|| format!("`{part}` does not end with `)`"))?;
        let values = list.split(',').map(|value| value.trim().to_owned()).collect();
        let mut words = head.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some(key), Some("in"), None) => (key, Op::In(values)),
            (Some(key), Some("notin"), None) => (key, Op::NotIn(values)),
            _ => return Err(format!("`{part}` is neither `key in (a,b)` nor `key notin (a,b)`")),
        }
    } else {
        (part, Op::Exists)
    };
    let key = key.trim();
    let sound = !key.is_empty()
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'/'));
    if sound {
        Ok(Requirement {
            key: key.to_owned(),
            op,
        })
    } else {
        Err(format!("`{key}` is no label key"))
    }
}

/// A field selector: `metadata.name=a`, `metadata.namespace!=b`, and fields of the spec (`spec.clusterName=c`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<(String, bool, String)>);

impl FieldSelector {
    /// Whether an object has these fields.
    #[must_use]
    pub fn matches(&self, object: &ObjectView) -> bool {
        self.0.iter().all(|(path, equal, wanted)| {
            let value = match path.as_str() {
                "metadata.name" => &object.metadata.name,
                "metadata.namespace" => &object.metadata.namespace,
                path => object
                    .field(&FieldPath::parse(path))
                    .and_then(Shallow::scalar)
                    .unwrap_or_default(),
            };
            (value == wanted) == *equal
        })
    }
}

impl FromStr for FieldSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        split(text, false)?
            .into_iter()
            .map(|part| {
                let (path, equal, value) = if let Some((path, value)) = part.split_once("!=") {
                    (path, false, value)
                } else if let Some((path, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                    (path, true, value)
                } else {
                    return Err(format!("`{part}` is neither `field=value` nor `field!=value`"));
                };
                let path = path.trim();
                if matches!(path, "metadata.name" | "metadata.namespace") || path.starts_with("spec.") {
                    Ok((path.to_owned(), equal, value.trim().to_owned()))
                } else {
                    Err(format!(
                        "`{path}` cannot be selected by: use metadata.name, metadata.namespace or a field of the spec"
                    ))
                }
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{FieldSelector, KindFilter, LabelSelector};
    use crate::protocol::{GroupKind, object::ObjectView};

    fn object() -> ObjectView {
        serde_json::from_value(json!({
            "metadata": { "name": "a", "namespace": "n", "labels": { "team": "racks", "x/y": "1" } },
            "spec": { "clusterName": "c", "paused": true }
        }))
        .unwrap()
    }

    #[test]
    fn labels() {
        for (selector, expected) in [
            ("", true),
            ("team=racks", true),
            ("team==racks,x/y=1", true),
            ("team=other", false),
            ("team!=other", true),
            ("gone!=other", true),
            ("team", true),
            ("!team", false),
            ("!gone", true),
            ("team in (other, racks),x/y", true),
            ("team notin (other,racks)", false),
        ] {
            let parsed: LabelSelector = selector.parse().unwrap();
            assert_eq!(parsed.matches(&object()), expected, "{selector}");
        }
        for wrong in ["=a", "a in b", "a in (b", "a)", "a b", "a within (b)", "\u{1b}[31m"] {
            assert!(wrong.parse::<LabelSelector>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn fields() {
        for (selector, expected) in [
            ("metadata.name=a", true),
            ("metadata.name!=a", false),
            ("metadata.namespace=n,spec.clusterName=c", true),
            ("spec.paused=true", true),
            ("spec.missing=true", false),
        ] {
            let parsed: FieldSelector = selector.parse().unwrap();
            assert_eq!(parsed.matches(&object()), expected, "{selector}");
        }
        for wrong in ["metadata.name", "status.phase=x", "name=a"] {
            assert!(wrong.parse::<FieldSelector>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn kinds() {
        let machine = GroupKind::new("cluster.x-k8s.io", "Machine");
        for (text, expected) in [
            ("Machine", true),
            ("machines", true),
            ("machine.cluster.x-k8s.io", true),
            ("machine.example.org", false),
            ("MachineSet", false),
        ] {
            assert_eq!(
                text.parse::<KindFilter>().unwrap().matches(&machine),
                expected,
                "{text}"
            );
        }
        let class = GroupKind::new("cluster.x-k8s.io", "ClusterClass");
        assert!("clusterclasses".parse::<KindFilter>().unwrap().matches(&class));
        assert!("".parse::<KindFilter>().is_err());
    }
}
