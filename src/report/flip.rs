//! The merge patch with which a person pauses or resumes an object, by the inputs that its rule has.

use serde_json::{Map, Value, json};

use crate::protocol::{
    intent::{Intent, State, is_on},
    keys::REASON,
    object::ObjectView,
    rule::{AnnotationMatch, FieldMatch, Input, InputSource, KindRule},
};

/// What is to be done to an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Flip {
    /// The patch; `None` where the object is as wanted already.
    pub patch: Option<Value>,
    /// The inputs that it changes.
    pub inputs: Vec<String>,
    /// How the object will be called once that is acknowledged.
    pub state: State,
}

/// An object cannot be flipped so.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlipError {
    /// It only inherits.
    #[error("a {0} has no input of its own by these rules: pause what it inherits from")]
    NoInput(String),
    /// There is no such input.
    #[error("a {kind} has no input `{input}`: it has {known}")]
    NoSuchInput {
        /// The kind.
        kind: String,
        /// What was asked for.
        input: String,
        /// What there is.
        known: String,
    },
}

/// Pauses: by `input`, else by the first input that the rule has.
///
/// # Errors
/// The kind has no such input.
pub fn pause(
    rule: &KindRule,
    object: &ObjectView,
    input: Option<&str>,
    reason: Option<&str>,
) -> Result<Flip, FlipError> {
    let input = match input {
        Some(name) => named(rule, name)?,
        None => rule
            .inputs
            .first()
            .ok_or_else(|| FlipError::NoInput(rule.group_kind.to_string()))?,
    };
    let mut after = Intent::of(rule, object);
    after.0.insert(input.id.clone());
    let state = after.state(rule);
    if is_on(input, object) {
        return Ok(Flip {
            patch: None,
            inputs: Vec::new(),
            state,
        });
    }
    let mut patch = Map::new();
    set(&mut patch, input, true);
    if let Some(reason) = reason {
        annotate(&mut patch, REASON, json!(reason));
    }
    Ok(Flip {
        patch: Some(Value::Object(patch)),
        inputs: vec![input.id.to_string()],
        state,
    })
}

/// Resumes: takes back `input`, else every input that is on. A reason that stands goes with the pause that it was for.
///
/// # Errors
/// The kind has no such input.
pub fn resume(
    rule: &KindRule,
    object: &ObjectView,
    input: Option<&str>,
    reason: Option<&str>,
) -> Result<Flip, FlipError> {
    let inputs: Vec<&Input> = match input {
        Some(name) => vec![named(rule, name)?],
        None if rule.inputs.is_empty() => return Err(FlipError::NoInput(rule.group_kind.to_string())),
        None => rule.inputs.iter().collect(),
    };
    let on: Vec<&Input> = inputs.into_iter().filter(|input| is_on(input, object)).collect();
    let mut after = Intent::of(rule, object);
    after.0.retain(|id| on.iter().all(|input| input.id != *id));
    let mut patch = Map::new();
    for input in &on {
        set(&mut patch, input, false);
    }
    if let Some(reason) = reason {
        annotate(&mut patch, REASON, json!(reason));
    } else if after.is_empty() && object.metadata.annotation(REASON).is_some() {
        annotate(&mut patch, REASON, Value::Null);
    }
    Ok(Flip {
        patch: (!on.is_empty()).then_some(Value::Object(patch)),
        inputs: on.iter().map(|input| input.id.to_string()).collect(),
        state: after.state(rule),
    })
}

fn named<'a>(rule: &'a KindRule, name: &str) -> Result<&'a Input, FlipError> {
    rule.inputs
        .iter()
        .find(|input| input.id.0 == name)
        .ok_or_else(|| FlipError::NoSuchInput {
            kind: rule.group_kind.to_string(),
            input: name.to_owned(),
            known: match rule.inputs.as_slice() {
                [] => "none of its own".to_owned(),
                inputs => inputs
                    .iter()
                    .map(|input| input.id.to_string())
                    .collect::<Vec<_>>()
                    .join(", "),
            },
        })
}

fn set(patch: &mut Map<String, Value>, input: &Input, on: bool) {
    match &input.source {
        InputSource::Annotation { key, on: when } => {
            let value = match when {
                _ if !on => Value::Null,
                AnnotationMatch::Present | AnnotationMatch::Boolean => json!("true"),
                AnnotationMatch::Equals(value) => json!(value),
            };
            annotate(patch, key, value);
        }
        InputSource::Field { path, on: when } => {
            let value = match (when, on) {
                (FieldMatch::True, on) => json!(on),
                (FieldMatch::False, on) => json!(!on),
                (FieldMatch::OneOf(values), true) => json!(values.first()),
                // Which value means "running" the rule does not say; without the field its default counts.
                (FieldMatch::OneOf(_), false) => Value::Null,
            };
            put(patch, &path.0, value);
        }
    }
}

fn annotate(patch: &mut Map<String, Value>, key: &str, value: Value) {
    put(
        patch,
        &["metadata".to_owned(), "annotations".to_owned(), key.to_owned()],
        value,
    );
}

fn put(map: &mut Map<String, Value>, path: &[String], value: Value) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    if rest.is_empty() {
        map.insert(first.clone(), value);
        return;
    }
    if let Value::Object(inner) = map.entry(first.clone()).or_insert_with(|| json!({})) {
        put(inner, rest, value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{FlipError, pause, resume};
    use crate::{
        protocol::{GroupKind, intent::State, object::ObjectView},
        rules::Rules,
    };

    const ANNOTATION: &str = "cluster.x-k8s.io/paused";

    fn object(value: Value) -> ObjectView {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn by_field_or_annotation_as_the_rule_says() {
        let rules = Rules::capi().unwrap();
        let rule = |kind: &str| rules.rule_for(&GroupKind::new("cluster.x-k8s.io", kind)).unwrap();
        let running = object(json!({"metadata": {"name": "c"}}));
        let flip = pause(&rule("Cluster"), &running, None, Some("CHG-1")).unwrap();
        assert_eq!(
            flip.patch.unwrap(),
            json!({"spec": {"paused": true}, "metadata": {"annotations": {"pausegen.io/reason": "CHG-1"}}})
        );
        assert_eq!(flip.state, State::Paused);
        let flip = pause(&rule("Cluster"), &running, Some(ANNOTATION), None).unwrap();
        assert_eq!(
            (flip.state, flip.inputs),
            (State::PausedSelf, vec![ANNOTATION.to_owned()])
        );
        let flip = pause(&rule("Machine"), &running, None, None).unwrap();
        assert_eq!(
            flip.patch.unwrap(),
            json!({"metadata": {"annotations": {ANNOTATION: "true"}}})
        );
        assert!(matches!(
            pause(&rule("Cluster"), &running, Some("spec.x"), None),
            Err(FlipError::NoSuchInput { .. })
        ));

        let both = object(
            json!({"metadata": {"annotations": {ANNOTATION: "", "pausegen.io/reason": "x"}}, "spec": {"paused": true}}),
        );
        assert_eq!(pause(&rule("Cluster"), &both, None, None).unwrap().patch, None);
        let flip = resume(&rule("Cluster"), &both, None, None).unwrap();
        assert_eq!(
            flip.patch.unwrap(),
            json!({"spec": {"paused": false}, "metadata": {"annotations": {ANNOTATION: null, "pausegen.io/reason": null}}})
        );
        assert_eq!(flip.state, State::Running);
        let flip = resume(&rule("Cluster"), &both, Some(ANNOTATION), None).unwrap();
        assert_eq!(
            (flip.state, flip.patch.unwrap()),
            (State::Paused, json!({"metadata": {"annotations": {ANNOTATION: null}}}))
        );
        assert_eq!(resume(&rule("Cluster"), &running, None, None).unwrap().patch, None);
    }
}
