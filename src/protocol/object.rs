//! The little that the protocol reads of an object, and how it is decoded.
//!
//! Everything else in the document is skipped while parsing: lists, long strings, deep structures and managed fields
//! never become values of ours, so a watch cache holds a few hundred bytes an object.

use std::{cell::Cell, collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{
    GroupKind, keys,
    lenient::{self, Lenient},
};

/// Values of foreign annotations are kept up to this many bytes: enough to compare with a literal.
const FOREIGN_VALUE_LIMIT: usize = 256;
/// Foreign annotations are kept up to this many bytes of keys and values, in the order of the document. The API server
/// stores no object with more (`TotalAnnotationSizeLimitB` in k8s.io/apimachinery), but asks about one.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;
/// How many fields the object of a write may have outside of its metadata, status and lists.
const FIELDS_LIMIT: usize = 100_000;
/// Strings in fields are kept up to this many bytes (a Kubernetes name has at most 253).
const STRING_LIMIT: usize = 256;
/// How many segments the path of a field that is kept has at most:
/// `spec.template.spec.bootstrap.configRef.name` of a MachinePool is the deepest in use.
pub const DEPTH_LIMIT: usize = 6;

/// What the protocol reads of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ObjectView {
    /// `group/version`, or `version` for the core group. Absent on items of some lists.
    pub api_version: String,
    /// Kind. Absent on items of some lists.
    pub kind: String,
    /// Metadata.
    pub metadata: Meta,
    /// Status.
    pub status: Status,
    /// The other top-level fields (`spec` above all), without lists, long strings and deep structures.
    pub fields: BTreeMap<String, Shallow>,
}

// By hand, because serde's `flatten` would first build the whole document in memory.
impl<'de> Deserialize<'de> for ObjectView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let left = Cell::new(usize::MAX);
        let whole = Object {
            left: &left,
            is_write: false,
        };
        deserializer.deserialize_map(whole)
    }
}

/// An object of a write, which need not be one that can be stored: whoever writes it may put in as much as a request can
/// hold. Its status, labels and owners, which say nothing of a write, are skipped; what is kept is a few times the size of
/// the largest object that can be stored at most.
///
/// # Errors
/// It is no object, or has more than 100,000 fields.
pub(crate) fn written<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ObjectView>, D::Error> {
    struct Written(ObjectView);
    impl<'de> Deserialize<'de> for Written {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let left = Cell::new(FIELDS_LIMIT);
            let write = Object {
                left: &left,
                is_write: true,
            };
            deserializer.deserialize_map(write).map(Self)
        }
    }
    Ok(Option::<Written>::deserialize(deserializer)?.map(|written| written.0))
}

struct Object<'a> {
    /// How many fields may still be kept.
    left: &'a Cell<usize>,
    is_write: bool,
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ObjectView;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<ObjectView, A::Error> {
        let mut view = ObjectView::default();
        while let Some(key) = access.next_key::<String>()? {
            match key.as_str() {
                "apiVersion" => view.api_version = access.next_value()?,
                "kind" => view.kind = access.next_value()?,
                "metadata" if self.is_write => {
                    view.metadata = access.next_value::<Option<WrittenMeta>>()?.unwrap_or_default().into();
                }
                "metadata" => view.metadata = access.next_value::<Option<Meta>>()?.unwrap_or_default(),
                "status" if self.is_write => {
                    access.next_value::<IgnoredAny>()?;
                }
                "status" => view.status = access.next_value::<Lenient<Status>>()?.0,
                _ => {
                    let value = access.next_value_seed(ShallowSeed {
                        depth: DEPTH_LIMIT,
                        left: self.left,
                    })?;
                    view.fields.insert(key, value);
                }
            }
        }
        Ok(view)
    }
}

impl ObjectView {
    /// Group and kind, from the object's own `apiVersion` and `kind`.
    #[must_use]
    pub fn group_kind(&self) -> GroupKind {
        GroupKind::new(group_of(&self.api_version), &self.kind)
    }

    /// The scalar at a dotted path that starts at a top-level field other than `metadata` and `status`.
    #[must_use]
    pub fn field(&self, path: &FieldPath) -> Option<&Shallow> {
        let (first, rest) = path.0.split_first()?;
        rest.iter().try_fold(self.fields.get(first)?, |at, key| match at {
            Shallow::Map(map) => map.get(key),
            _ => None,
        })
    }
}

/// The group of an `apiVersion`: empty for the core group.
#[must_use]
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Object metadata, as far as it is read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Name; empty on a CREATE with `generateName`.
    pub name: String,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// UID; empty on a CREATE.
    pub uid: String,
    /// `metadata.generation`; absent on a CREATE.
    pub generation: Option<i64>,
    /// Opaque version of the stored object.
    pub resource_version: String,
    /// Labels.
    #[serde(deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations; `None` where the map is missing or null (a JSON Patch must then create it).
    pub annotations: Option<Annotations>,
    /// Owners.
    #[serde(deserialize_with = "null_is_default")]
    pub owner_references: Vec<Owner>,
    /// When deletion was asked for, if it was.
    pub deletion_timestamp: Option<String>,
}

/// What a write says of itself.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenMeta {
    name: String,
    namespace: String,
    uid: String,
    generation: Option<i64>,
    annotations: Option<Annotations>,
}

impl From<WrittenMeta> for Meta {
    fn from(written: WrittenMeta) -> Self {
        let WrittenMeta {
            name,
            namespace,
            uid,
            generation,
            annotations,
        } = written;
        Self {
            name,
            namespace,
            uid,
            generation,
            annotations,
            ..Self::default()
        }
    }
}

impl Meta {
    /// The value of an annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref().and_then(|a| a.0.get(key)).map(String::as_str)
    }
}

/// Annotations: every key that a stored object can have, with values of keys that are not ours cut to 256 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Annotations(pub BTreeMap<String, String>);

// By hand, because a map of whole values that is made into another one takes three times the memory of a document that
// is nothing but annotations.
impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Annotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Annotations, A::Error> {
                let mut map = BTreeMap::new();
                let mut size = 0;
                while let Some((key, value)) = access.next_entry::<String, Option<String>>()? {
                    let mut value = value.unwrap_or_default();
                    let is_ours = key.starts_with(keys::PREFIX);
                    if !is_ours {
                        size += key.len() + value.len();
                        if size > ANNOTATIONS_LIMIT {
                            continue;
                        }
                    }
                    if value.len() > FOREIGN_VALUE_LIMIT && !is_ours {
                        truncate(&mut value, FOREIGN_VALUE_LIMIT);
                        value.shrink_to_fit();
                    }
                    map.insert(key, value);
                }
                Ok(Annotations(map))
            }
        }
        deserializer.deserialize_map(Map)
    }
}

/// An owner reference.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Owner {
    /// `group/version` of the owner.
    pub api_version: String,
    /// Kind of the owner.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// UID of the owner.
    pub uid: String,
}

/// Status, as far as it is read. What has another shape than expected is passed over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// `status.conditions`.
    #[serde(deserialize_with = "lenient::list")]
    pub conditions: Vec<Condition>,
    /// `status.v1beta2`, where Cluster API's v1beta1 objects keep their newer conditions.
    #[serde(deserialize_with = "lenient::optional")]
    pub v1beta2: Option<V1Beta2Status>,
    /// `status.observedGeneration`.
    #[serde(deserialize_with = "lenient::integer")]
    pub observed_generation: Option<i64>,
}

/// `status.v1beta2`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct V1Beta2Status {
    /// `status.v1beta2.conditions`.
    #[serde(deserialize_with = "lenient::list")]
    pub conditions: Vec<Condition>,
}

/// A condition, as `metav1.Condition`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Type.
    #[serde(rename = "type", deserialize_with = "lenient::text")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    #[serde(deserialize_with = "lenient::text")]
    pub status: String,
    /// Reason.
    #[serde(deserialize_with = "lenient::text")]
    pub reason: String,
    /// Message.
    #[serde(deserialize_with = "lenient::text")]
    pub message: String,
    /// `metadata.generation` of the revision that the condition was derived from.
    #[serde(deserialize_with = "lenient::integer")]
    pub observed_generation: Option<i64>,
    /// When the status last changed.
    #[serde(deserialize_with = "lenient::optional_text")]
    pub last_transition_time: Option<String>,
}

/// A dotted path to a field, such as `spec.paused`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(pub Vec<String>);

impl FieldPath {
    /// Splits a dotted path. Keys that hold dots cannot be expressed.
    #[must_use]
    pub fn parse(path: &str) -> Self {
        Self(path.split('.').map(str::to_owned).collect())
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// A value without lists, long strings and deep structures.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Shallow {
    /// null, a list, or something too deep: it is there, and that is all that is known.
    Opaque,
    /// A boolean.
    Bool(bool),
    /// A number, as it is written in JSON.
    Number(String),
    /// A string, cut to 256 bytes.
    String(String),
    /// An object.
    Map(BTreeMap<String, Shallow>),
}

impl Shallow {
    /// The scalar as text (`true`, `7`, `Hold`); `None` for what is no scalar.
    #[must_use]
    pub fn scalar(&self) -> Option<&str> {
        match self {
            Self::Bool(true) => Some("true"),
            Self::Bool(false) => Some("false"),
            Self::Number(text) | Self::String(text) => Some(text),
            Self::Opaque | Self::Map(_) => None,
        }
    }

    /// The string at a key of this object.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        match self {
            Self::Map(map) => match map.get(key) {
                Some(Self::String(text)) => Some(text),
                _ => None,
            },
            _ => None,
        }
    }
}

fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Cuts a string at a character boundary, to at most `limit` bytes.
pub(crate) fn truncate(text: &mut String, limit: usize) {
    if text.len() > limit {
        let end = (0..=limit).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
        text.truncate(end);
    }
}

struct ShallowSeed<'a> {
    depth: usize,
    left: &'a Cell<usize>,
}

impl<'de> serde::de::DeserializeSeed<'de> for ShallowSeed<'_> {
    type Value = Shallow;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shallow, D::Error> {
        if self.depth == 0 {
            IgnoredAny::deserialize(deserializer)?;
            return Ok(Shallow::Opaque);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ShallowSeed<'_> {
    type Value = Shallow;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E>(self, v: bool) -> Result<Shallow, E> {
        Ok(Shallow::Bool(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Shallow, E> {
        Ok(Shallow::Number(v.to_string()))
    }
    fn visit_u64<E>(self, v: u64) -> Result<Shallow, E> {
        Ok(Shallow::Number(v.to_string()))
    }
    fn visit_f64<E>(self, v: f64) -> Result<Shallow, E> {
        Ok(Shallow::Number(v.to_string()))
    }
    fn visit_str<E>(self, v: &str) -> Result<Shallow, E> {
        let mut end = v.len().min(STRING_LIMIT);
        while !v.is_char_boundary(end) {
            end -= 1;
        }
        Ok(Shallow::String(v.get(..end).unwrap_or_default().to_owned()))
    }
    fn visit_unit<E>(self) -> Result<Shallow, E> {
        Ok(Shallow::Opaque)
    }
    fn visit_none<E>(self) -> Result<Shallow, E> {
        Ok(Shallow::Opaque)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shallow, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Shallow::Opaque)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Shallow, A::Error> {
        let mut map = BTreeMap::new();
        while let Some(key) = access.next_key::<String>()? {
            let left = self.left.get().checked_sub(1);
            self.left
                .set(left.ok_or_else(|| A::Error::custom(format_args!("more than {FIELDS_LIMIT} fields")))?);
            let value = ShallowSeed {
                depth: self.depth - 1,
                left: self.left,
            };
            map.insert(key, access.next_value_seed(value)?);
        }
        Ok(Shallow::Map(map))
    }
}

#[cfg(test)]
mod tests;
