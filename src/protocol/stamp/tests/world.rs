//! One object behind a webhook: what is stored, and what a write makes of it.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

use crate::protocol::{
    GroupKind,
    intent::Intent,
    keys::{
        ACKNOWLEDGED, ACKNOWLEDGEMENT, Acknowledgement, Evidence, GUARDED, OBSERVED_GENERATION, Record, Standing, TOUCH,
    },
    object::{Annotations, FieldPath, ObjectView, Shallow},
    rule::{AnnotationMatch, FieldMatch, Input, InputId, InputSource, KindRule, Membership},
    stamp::{Answer, Concern, Decision, Policies, Write, Writer, concern, mutate, validate},
};

pub(super) const PAUSED: &str = "cluster.x-k8s.io/paused";
pub(super) const PERSON: Writer<'static> = Writer {
    recorded: "ann",
    is_companion: false,
    is_exempt: false,
};
pub(super) const COMPANION: Writer<'static> = Writer {
    recorded: "companion",
    is_companion: true,
    is_exempt: false,
};

/// The rule of a kind like a Cluster: a field that members inherit, and an annotation that they do not.
pub(super) fn rule() -> KindRule {
    KindRule {
        group_kind: GroupKind::new("cluster.x-k8s.io", "Cluster"),
        inputs: vec![
            Input {
                id: InputId("spec.paused".to_owned()),
                source: InputSource::Field {
                    path: FieldPath::parse("spec.paused"),
                    on: FieldMatch::True,
                },
                inherited: true,
            },
            Input {
                id: InputId(PAUSED.to_owned()),
                source: InputSource::Annotation {
                    key: PAUSED.to_owned(),
                    on: AnnotationMatch::Present,
                },
                inherited: false,
            },
        ],
        attestors: Vec::new(),
        membership: Some(Membership::default()),
        inherits: false,
        references: Vec::new(),
        requires_owner: None,
        managed_elsewhere: None,
        staleness_bound: Duration::from_secs(60),
        grace: Duration::from_secs(60),
    }
}

/// A moment; any will do.
pub(super) fn noon() -> Timestamp {
    "2026-01-01T12:00:00.123Z".parse().unwrap()
}

/// An object without our keys, running.
pub(super) fn object() -> ObjectView {
    let mut object = ObjectView::default();
    object.metadata.name = "c1".to_owned();
    object.metadata.namespace = "ns".to_owned();
    object.metadata.uid = "u-1".to_owned();
    object.metadata.generation = Some(1);
    object
}

/// Sets an annotation, or removes it.
pub(super) fn annotate(object: &mut ObjectView, key: &str, value: Option<&str>) {
    let map = &mut object.metadata.annotations.get_or_insert_default().0;
    match value {
        Some(value) => map.insert(key.to_owned(), value.to_owned()),
        None => map.remove(key),
    };
}

/// Sets `spec.paused`, or removes it.
pub(super) fn set_field(object: &mut ObjectView, value: Option<bool>) {
    let spec = value
        .map(|value| ("paused".to_owned(), Shallow::Bool(value)))
        .into_iter()
        .collect();
    object.fields.insert("spec".to_owned(), Shallow::Map(spec));
}

/// The annotations that are none of our business.
pub(super) fn foreign(object: &ObjectView) -> BTreeMap<String, String> {
    let mut map = object.metadata.annotations.clone().unwrap_or_default().0;
    map.retain(|key, _| !GUARDED.contains(&key.as_str()) && key != TOUCH);
    map
}

/// An object with the edits of an answer made.
pub(super) fn apply(mut object: ObjectView, answer: &Answer) -> ObjectView {
    for (key, value) in &answer.edits {
        annotate(&mut object, key, value.as_deref());
    }
    object
}

pub(super) struct World {
    pub(super) rule: KindRule,
    pub(super) stored: ObjectView,
    pub(super) now: Timestamp,
    pub(super) policies: Policies,
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            rule: rule(),
            stored: object(),
            now: noon(),
            policies: Policies::default(),
        }
    }

    pub(super) fn ask<'a>(&'a self, new: &'a ObjectView, writer: Writer<'a>) -> Write<'a> {
        Write {
            rule: &self.rule,
            old: Some(&self.stored),
            new,
            writer,
            at: self.now,
            policies: self.policies,
        }
    }

    /// An UPDATE through both webhooks, with what has to hold of any.
    pub(super) fn update(&mut self, writer: Writer<'_>, edit: impl FnOnce(&mut ObjectView)) -> Answer {
        let mut new = self.stored.clone();
        edit(&mut new);
        let answer = mutate(&self.ask(&new, writer));
        if matches!(answer.decision, Decision::Denied(_)) {
            assert!(answer.edits.is_empty());
            return answer;
        }
        if concern(&self.rule, Some(&self.stored), &new) == Concern::None {
            assert!(answer.edits.is_empty() && answer.warnings.is_empty(), "{answer:?}");
        }
        let result = apply(new.clone(), &answer);
        assert_eq!(foreign(&result), foreign(&new));
        assert_eq!(result.metadata.annotation(TOUCH), None);
        for later in [0, 5] {
            let again = Write {
                at: self.now + SignedDuration::from_secs(later),
                ..self.ask(&result, writer)
            };
            assert_eq!(
                mutate(&again).edits,
                [],
                "called again with its own output, {later} s later"
            );
            assert_eq!(validate(&again), Ok(()), "{result:#?}");
        }
        self.store(result);
        answer
    }

    /// An UPDATE while no webhook is called.
    pub(super) fn update_unseen(&mut self, edit: impl FnOnce(&mut ObjectView)) {
        let mut new = self.stored.clone();
        edit(&mut new);
        self.store(new);
    }

    fn store(&mut self, mut new: ObjectView) {
        if new.fields != self.stored.fields {
            new.metadata.generation = new.metadata.generation.map(|generation| generation + 1);
        }
        self.stored = new;
    }

    /// The companion's echo.
    pub(super) fn echo(&mut self) -> Answer {
        let (state, number, text) = self.acknowledgement();
        self.update(COMPANION, |object| {
            annotate(object, ACKNOWLEDGED, Some(state));
            annotate(object, OBSERVED_GENERATION, Some(&number));
            annotate(object, ACKNOWLEDGEMENT, Some(&text));
        })
    }

    /// What an echo of the standing generation writes.
    pub(super) fn acknowledgement(&self) -> (&'static str, String, String) {
        let record = self.record();
        let generation = record.stamp.generation;
        let acknowledgement = Acknowledgement {
            generation,
            uid: self.stored.metadata.uid.clone(),
            evidence: Evidence::Settled,
            objects: 1,
            bound_seconds: None,
            lease: String::new(),
            excluded: Vec::new(),
            object_generation: 1,
            at: String::new(),
        };
        (
            self.intent().state(&self.rule).as_str(),
            generation.to_string(),
            serde_json::to_string(&acknowledgement).unwrap(),
        )
    }

    pub(super) fn intent(&self) -> Intent {
        Intent::of(&self.rule, &self.stored)
    }

    pub(super) fn standing(&self) -> Standing {
        Standing::of(&self.rule.group_kind, &self.stored)
    }

    /// The record that stands.
    pub(super) fn record(&self) -> Record {
        match self.standing() {
            Standing::Own(record) => *record,
            other => panic!("{other:?}: {:#?}", self.stored.metadata.annotations),
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.standing().record().map_or(0, |record| record.stamp.generation)
    }

    pub(super) fn wait(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    /// A new object, as the API server first asks about it: no uid, no generation.
    pub(super) fn creation(edit: impl FnOnce(&mut ObjectView)) -> ObjectView {
        let mut new = object();
        new.metadata.uid.clear();
        new.metadata.generation = None;
        edit(&mut new);
        new
    }

    fn ask_create<'a>(&'a self, new: &'a ObjectView, writer: Writer<'a>, at: Timestamp) -> Write<'a> {
        Write {
            old: None,
            at,
            ..self.ask(new, writer)
        }
    }

    /// A CREATE through both webhooks, with what has to hold of any. `name` is given between the two, as for
    /// `generateName`.
    pub(super) fn create(&mut self, writer: Writer<'_>, new: &ObjectView, name: Option<&str>) -> Answer {
        let answer = mutate(&self.ask_create(new, writer, self.now));
        let mut result = apply(new.clone(), &answer);
        assert_eq!(foreign(&result), foreign(new));
        assert_eq!(result.metadata.annotation(TOUCH), None);
        for later in [0, 5] {
            let again = mutate(&self.ask_create(&result, writer, self.now + SignedDuration::from_secs(later)));
            assert_eq!(again.edits, [], "called again with its own output, {later} s later");
        }
        "u-new".clone_into(&mut result.metadata.uid);
        result.metadata.generation = Some(1);
        if let Some(name) = name {
            name.clone_into(&mut result.metadata.name);
        }
        for skew in [-120, 0, 120] {
            let at = self.now + SignedDuration::from_secs(skew);
            assert_eq!(
                validate(&self.ask_create(&result, writer, at)),
                Ok(()),
                "{skew} s: {result:#?}"
            );
        }
        self.stored = result;
        answer
    }
}

/// Annotations from pairs.
pub(super) fn annotations<const N: usize>(pairs: [(&str, &str); N]) -> Annotations {
    Annotations(pairs.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
}
