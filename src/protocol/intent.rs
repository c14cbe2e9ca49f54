//! Which inputs of an object are on.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Serialize};

use super::{
    object::{ObjectView, Shallow},
    rule::{AnnotationMatch, FieldMatch, Input, InputId, InputSource, KindRule},
};

/// The inputs of an object that are on. A write that changes it is a *flip*.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Intent(pub BTreeSet<InputId>);

impl Intent {
    /// Reads the intent of an object.
    #[must_use]
    pub fn of(rule: &KindRule, object: &ObjectView) -> Self {
        Self(
            rule.inputs
                .iter()
                .filter(|input| is_on(input, object))
                .map(|input| input.id.clone())
                .collect(),
        )
    }

    /// Whether this input is on.
    #[must_use]
    pub fn has(&self, id: &InputId) -> bool {
        self.0.contains(id)
    }

    /// Whether nothing is on.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The inputs that differ between the two.
    #[must_use]
    pub fn changed(&self, other: &Self) -> BTreeSet<InputId> {
        self.0.symmetric_difference(&other.0).cloned().collect()
    }

    /// Whether a change from this intent to `after` turns any input on.
    #[must_use]
    pub fn pauses(&self, after: &Self) -> bool {
        !after.0.is_subset(&self.0)
    }

    /// What a pause of this intent is called once it is acknowledged.
    #[must_use]
    pub fn state(&self, rule: &KindRule) -> State {
        if self.is_empty() {
            State::Running
        } else if rule.has_heirs() && !rule.inputs.iter().any(|input| input.inherited && self.has(&input.id)) {
            State::PausedSelf
        } else {
            State::Paused
        }
    }
}

impl fmt::Display for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing");
        }
        for (i, id) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(" and ")?;
            }
            write!(f, "{id}")?;
        }
        Ok(())
    }
}

/// The acknowledged state of an object, as the `acknowledged` annotation names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Paused, with everything that inherits it.
    Paused,
    /// Only the object itself is paused, while an input that its members inherit is off.
    PausedSelf,
    /// No input of the object itself is on.
    Running,
}

impl State {
    /// As it is written in the `acknowledged` annotation.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::PausedSelf => "paused-self",
            Self::Running => "running",
        }
    }

    /// Reads the `acknowledged` annotation; `None` for `pending` and anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Paused, Self::PausedSelf, Self::Running]
            .into_iter()
            .find(|state| state.as_str() == text)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether an input is on. A field of another type than its match calls for is off, like a missing one.
#[must_use]
pub fn is_on(input: &Input, object: &ObjectView) -> bool {
    match &input.source {
        InputSource::Field { path, on } => match (on, object.field(path)) {
            (FieldMatch::True, Some(Shallow::Bool(value))) => *value,
            (FieldMatch::False, Some(Shallow::Bool(value))) => !value,
            (FieldMatch::OneOf(literals), Some(Shallow::String(value))) => literals.contains(value),
            _ => false,
        },
        InputSource::Annotation { key, on } => object.metadata.annotation(key).is_some_and(|value| match on {
            AnnotationMatch::Present => true,
            AnnotationMatch::Equals(literal) => value == literal,
            AnnotationMatch::Boolean => matches!(value, "1" | "t" | "T" | "TRUE" | "true" | "True"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Intent, State, is_on};
    use crate::protocol::{
        object::{FieldPath, ObjectView},
        rule::{AnnotationMatch, FieldMatch, Input, InputId, InputSource},
    };

    fn field(on: FieldMatch, value: &serde_json::Value) -> bool {
        let object: ObjectView = serde_json::from_value(json!({ "spec": { "x": value } })).unwrap();
        let source = InputSource::Field {
            path: FieldPath::parse("spec.x"),
            on,
        };
        is_on(&input(source), &object)
    }

    fn annotation(on: AnnotationMatch, value: Option<&str>) -> bool {
        let annotations = value.map_or(json!({}), |value| json!({ "k": value }));
        let object: ObjectView = serde_json::from_value(json!({ "metadata": { "annotations": annotations } })).unwrap();
        is_on(
            &input(InputSource::Annotation {
                key: "k".to_owned(),
                on,
            }),
            &object,
        )
    }

    fn input(source: InputSource) -> Input {
        Input {
            id: InputId("x".to_owned()),
            source,
            inherited: false,
        }
    }

    #[test]
    fn fields() {
        assert!(field(FieldMatch::True, &json!(true)));
        assert!(field(FieldMatch::False, &json!(false)));
        let hold = || FieldMatch::OneOf(vec!["Hold".to_owned(), "true".to_owned()]);
        assert!(field(hold(), &json!("Hold")));
        for value in [
            json!(null),
            json!("x"),
            json!(1),
            json!([true]),
            json!({ "true": true }),
        ] {
            for on in [FieldMatch::True, FieldMatch::False, hold()] {
                assert!(!field(on.clone(), &value), "{on:?} {value}");
            }
        }
        // Another type than the match calls for is off.
        assert!(!field(FieldMatch::True, &json!("true")));
        assert!(!field(FieldMatch::False, &json!("false")));
        assert!(!field(hold(), &json!(true)));
    }

    #[test]
    fn annotations() {
        for value in ["", "true", "false"] {
            assert!(annotation(AnnotationMatch::Present, Some(value)));
        }
        for value in ["1", "t", "T", "TRUE", "true", "True"] {
            assert!(annotation(AnnotationMatch::Boolean, Some(value)));
        }
        for value in ["0", "f", "", "tRUE", "yes", " true"] {
            assert!(!annotation(AnnotationMatch::Boolean, Some(value)), "{value:?}");
        }
        let disabled = || AnnotationMatch::Equals("disabled".to_owned());
        assert!(annotation(disabled(), Some("disabled")));
        assert!(!annotation(disabled(), Some("Disabled")));
        for on in [AnnotationMatch::Present, AnnotationMatch::Boolean, disabled()] {
            assert!(!annotation(on, None));
        }
    }

    #[test]
    fn which_changes_pause() {
        let intent = |ids: &[&str]| Intent(ids.iter().map(|id| InputId((*id).to_owned())).collect());
        assert!(intent(&[]).pauses(&intent(&["a"])));
        assert!(intent(&["a"]).pauses(&intent(&["a", "b"])));
        assert!(intent(&["a"]).pauses(&intent(&["b"])));
        assert!(!intent(&["a", "b"]).pauses(&intent(&["a"])));
        assert!(!intent(&["a"]).pauses(&intent(&["a"])));
        assert_eq!(intent(&["a", "b"]).changed(&intent(&["b", "c"])), intent(&["a", "c"]).0);
    }

    #[test]
    fn states_read_back_as_they_are_written() {
        for state in [State::Paused, State::PausedSelf, State::Running] {
            assert_eq!(State::parse(state.as_str()), Some(state));
            assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{state}\""));
        }
        assert_eq!(State::parse("pending"), None);
    }
}
