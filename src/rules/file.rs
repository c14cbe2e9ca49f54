//! The rules file as it is written: its types, what serde and JSON Schema make of them, and nothing of what they mean.

use std::{collections::BTreeMap, fmt, time::Duration};

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

/// The version of the file that this program reads.
pub const API_VERSION: &str = "pausegen.io/v1alpha1";
/// The kind of the file.
pub const KIND: &str = "Rules";
/// Stands for every kind of a group.
pub const ANY: &str = "*";

/// A rules file: which kinds can be paused, by what, and who answers for it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RulesFile {
    /// Always `pausegen.io/v1alpha1`.
    #[schemars(with = "String")]
    pub api_version: Spanned<String>,
    /// Always `Rules`.
    #[schemars(with = "String")]
    pub kind: Spanned<String>,
    /// A built-in set of rules that comes after these: for a kind that several rules match, the first one counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Preset>")]
    pub extends: Option<Spanned<Preset>>,
    /// The assumption with a number: no controller acts on a view older than this. 60s unless it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Period>")]
    pub staleness_bound: Option<Spanned<Period>>,
    /// How long nothing may change before a missing answer is called NotReporting. 60s unless it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Period>")]
    pub grace: Option<Spanned<Period>>,
    /// The rules, owners before what they own. For a kind that several rules match, the first one counts.
    #[serde(default)]
    #[schemars(with = "Vec<RuleFile>")]
    pub rules: Vec<Spanned<RuleFile>>,
}

/// The built-in rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// Cluster API.
    Capi,
}

/// What holds for some kinds of one API group.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RuleFile {
    /// The API group.
    #[schemars(with = "String")]
    pub group: Spanned<String>,
    /// The kinds, or a single pattern (`"*"`, `"*Cluster"`, `"Docker*"`): the kinds of the group that no earlier
    /// rule is for, found by discovery.
    #[schemars(with = "Vec<String>")]
    pub kinds: Vec<Spanned<String>>,
    /// With a pattern: the kinds that are not meant, by name or by pattern.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub except: Vec<Spanned<String>>,
    /// The resource names of kinds whose plural is not formed regularly (`machines` of `Machine` is).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, String>")]
    pub plurals: BTreeMap<String, Spanned<String>>,
    /// What can pause an object by being set on the object itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<InputFile>")]
    pub inputs: Vec<Spanned<InputFile>>,
    /// How the objects are found that inherit this one's inherited inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<MembersFile>")]
    pub members: Option<Spanned<MembersFile>>,
    /// Whether an object is paused by the inherited inputs of the object that it is a member of.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inherits: bool,
    /// Fields that refer to another object, which then has to answer too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub references: Vec<Spanned<String>>,
    /// The controllers that answer for an object.
    #[schemars(with = "AttestedByFile")]
    pub attested_by: Spanned<AttestedByFile>,
    /// The controllers write no condition `Paused`: the companion writes one, a mirror of what is asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mirror: bool,
    /// The controllers do nothing before the object has an owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requires_owner: Option<RequiresOwnerFile>,
    /// The controllers skip objects that have this annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub managed_elsewhere: Option<Spanned<String>>,
    /// The staleness bound of these kinds' controllers, where it is not that of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Period>")]
    pub staleness_bound: Option<Spanned<Period>>,
    /// The grace of these kinds' controllers, where it is not that of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Period>")]
    pub grace: Option<Spanned<Period>>,
}

/// One thing that can pause an object: a field or an annotation.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InputFile {
    /// The path of a field, such as `spec.paused`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub field: Option<Spanned<String>>,
    /// The key of an annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub annotation: Option<Spanned<String>>,
    /// The value that pauses. A field: `true`, `false` or `{oneOf: [...]}`. An annotation: `present`, `boolean` or
    /// `{equals: ...}`.
    #[serde(rename = "match")]
    #[schemars(with = "MatchFile")]
    pub on: Spanned<MatchFile>,
    /// Whether the members of the object are paused by it too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inherited: bool,
}

/// The value that pauses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum MatchFile {
    /// This boolean.
    Boolean(bool),
    /// A word.
    Word(MatchWord),
    /// Exactly this value.
    Equals(EqualsFile),
    /// One of these values.
    OneOf(OneOfFile),
}

/// A match that is one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MatchWord {
    /// Any value pauses, also an empty one and "false".
    Present,
    /// What Go's `strconv.ParseBool` reads as true.
    Boolean,
}

/// `equals: VALUE`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EqualsFile {
    /// The value.
    pub equals: String,
}

/// `oneOf: [VALUE, ...]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OneOfFile {
    /// The values.
    pub one_of: Vec<String>,
}

impl<'de> Deserialize<'de> for MatchFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Match;
        impl<'de> Visitor<'de> for Match {
            type Value = MatchFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, present, boolean, {equals: VALUE} or {oneOf: [VALUE, ...]}")
            }
            fn visit_bool<E>(self, v: bool) -> Result<MatchFile, E> {
                Ok(MatchFile::Boolean(v))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<MatchFile, E> {
                match v {
                    "present" => Ok(MatchFile::Word(MatchWord::Present)),
                    "boolean" => Ok(MatchFile::Word(MatchWord::Boolean)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(v), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MatchFile, A::Error> {
                let found = match map.next_key::<String>()?.as_deref() {
                    Some("equals") => MatchFile::Equals(EqualsFile {
                        equals: map.next_value()?,
                    }),
                    Some("oneOf") => MatchFile::OneOf(OneOfFile {
                        one_of: map.next_value()?,
                    }),
                    Some(other) => return Err(de::Error::unknown_field(other, &["equals", "oneOf"])),
                    None => return Err(de::Error::invalid_length(0, &self)),
                };
                match map.next_key::<String>()? {
                    None => Ok(found),
                    Some(second) => Err(de::Error::custom(format!(
                        "`{second}` is one too many: a match has one key"
                    ))),
                }
            }
        }
        deserializer.deserialize_any(Match)
    }
}

/// How the members of an object are found, in its own namespace. Each way that is given adds members.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MembersFile {
    /// A label whose value is the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub label: Option<Spanned<String>>,
    /// Whether a chain of owner references to the object makes a member.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub owner_chain: bool,
    /// Fields whose value is the object's name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub name_fields: Vec<Spanned<String>>,
}

/// Who answers for an object: a word that holds for all, or a list of controllers.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum AttestedByFile {
    /// One controller, without a condition.
    Word(AttestWord),
    /// The controllers, each with a name.
    #[schemars(with = "Vec<AttestorFile>")]
    Attestors(Vec<Spanned<AttestorFile>>),
}

/// An answer without a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AttestWord {
    /// Not asked; named as excluded in every acknowledgement.
    None,
    /// Honours the pause without a trace: the staleness bound has to pass.
    Bound,
    /// `status.observedGeneration` tells which revision was read.
    ObservedGeneration,
}

impl<'de> Deserialize<'de> for AttestedByFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AttestedBy;
        impl<'de> Visitor<'de> for AttestedBy {
            type Value = AttestedByFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("none, bound, observedGeneration or a list of controllers")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<AttestedByFile, E> {
                match v {
                    "none" => Ok(AttestedByFile::Word(AttestWord::None)),
                    "bound" => Ok(AttestedByFile::Word(AttestWord::Bound)),
                    "observedGeneration" => Ok(AttestedByFile::Word(AttestWord::ObservedGeneration)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(v), &self)),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<AttestedByFile, A::Error> {
                let mut attestors = Vec::new();
                while let Some(attestor) = seq.next_element()? {
                    attestors.push(attestor);
                }
                Ok(AttestedByFile::Attestors(attestors))
            }
        }
        deserializer.deserialize_any(AttestedBy)
    }
}

/// A controller that answers for an object.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AttestorFile {
    /// What it is called; unique within the rule.
    #[schemars(with = "String")]
    pub name: Spanned<String>,
    /// The condition that it answers in. Either this or `by`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<ConditionFile>,
    /// How it answers without a condition. Either this or `condition`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<AttestWord>,
    /// The objects that it answers for; all, where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<AppliesIfFile>")]
    pub applies_if: Option<Spanned<AppliesIfFile>>,
    /// The inputs that it answers for; all, where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<InputRefFile>>")]
    pub answers_for: Option<Vec<Spanned<InputRefFile>>>,
    /// The leader Lease of the manager that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseFile>,
}

/// How a condition attests a pause.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConditionFile {
    /// Its type.
    #[serde(rename = "type")]
    #[schemars(with = "String")]
    pub type_: Spanned<String>,
    /// The list that it is in.
    #[serde(default)]
    pub at: ConditionsAtFile,
    /// The status that says "paused".
    #[serde(default)]
    pub status: StatusFile,
    /// The reason that it must have to say "paused", where the status alone does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The controller takes the condition away at a resume: where it is missing, the staleness bound has to pass.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub absent_means_off: bool,
    /// How its message tells the inputs apart. Without these only time can answer where there is more than one input.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<MessageFile>")]
    pub messages: Vec<Spanned<MessageFile>>,
}

/// The list that a condition is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionsAtFile {
    /// `status.conditions`
    #[default]
    #[serde(rename = "status.conditions")]
    Status,
    /// `status.v1beta2.conditions`
    #[serde(rename = "status.v1beta2.conditions")]
    StatusV1Beta2,
}

/// The status of a condition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StatusFile {
    /// `"True"`
    #[default]
    True,
    /// `"False"`
    False,
    /// `Unknown`
    Unknown,
}

impl StatusFile {
    /// As it is written in the condition.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// The text by which a condition's message names an input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MessageFile {
    /// An input of the object itself. Either this or `inherited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<String>,
    /// An input that the object inherits. Either this or `own`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<String>,
    /// One of the parts of the message, split at `, `, ends with this.
    pub ends_with: String,
}

/// An input, as an object sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InputRefFile {
    /// An input of the object itself. Either this or `inherited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<String>,
    /// An input that the object inherits. Either this or `own`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<String>,
}

/// The objects that a controller answers for. Either key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AppliesIfFile {
    /// Those that have this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Those that have this label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// A leader Lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeaseFile {
    /// Its name.
    pub name: String,
    /// Its namespace; where it is absent, every namespace that has a Lease of that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The owner that a controller waits for.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequiresOwnerFile {
    /// Owners that only made the object do not count: `Kind.group` each, `*.group` for all kinds of a group.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub other_than: Vec<Spanned<String>>,
}

/// A time span with a unit: `500ms`, `60s`, `5m`, `1h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

impl Period {
    /// Reads a time span.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at_checked(digits)?;
        let number: u64 = number.parse().ok()?;
        Some(Self(match unit {
            "ms" => Duration::from_millis(number),
            "s" => Duration::from_secs(number),
            "m" => Duration::from_secs(number.checked_mul(60)?),
            "h" => Duration::from_secs(number.checked_mul(3600)?),
            _ => return None,
        }))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.subsec_millis() == 0 {
            write!(f, "{}s", self.0.as_secs())
        } else {
            write!(f, "{}ms", self.0.as_millis())
        }
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            de::Error::invalid_value(
                de::Unexpected::Str(&text),
                &"a number with a unit: 500ms, 60s, 5m or 1h",
            )
        })
    }
}

impl JsonSchema for Period {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Period".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": "^[0-9]+(ms|s|m|h)$",
            "description": "A number with a unit: 500ms, 60s, 5m or 1h."
        })
    }
}
