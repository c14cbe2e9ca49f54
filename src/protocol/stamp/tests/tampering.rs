//! Another webhook, after ours: what the validating webhook lets pass, and what not.

use super::world::{PAUSED, PERSON, World, annotate, apply, set_field};
use crate::protocol::{
    keys::{ACKNOWLEDGED, ACKNOWLEDGEMENT, GENERATION, GUARDED, OBSERVED_GENERATION, STAMP, Stamp},
    object::ObjectView,
    stamp::{Write, mutate, validate},
};

type Change = (&'static str, fn(&mut ObjectView));

/// What has to be noticed.
const TAMPERINGS: [Change; 21] = [
    ("no generation", |o| annotate(o, GENERATION, None)),
    ("no stamp", |o| annotate(o, STAMP, None)),
    ("no acknowledged", |o| annotate(o, ACKNOWLEDGED, None)),
    ("no keys", |o| GUARDED.iter().for_each(|key| annotate(o, key, None))),
    ("no annotations", |o| o.metadata.annotations = None),
    ("another generation", |o| annotate(o, GENERATION, Some("7"))),
    ("acknowledged", |o| annotate(o, ACKNOWLEDGED, Some("paused"))),
    ("another observed generation", |o| {
        annotate(o, OBSERVED_GENERATION, Some("5"));
    }),
    ("an acknowledgement", |o| annotate(o, ACKNOWLEDGEMENT, Some("{}"))),
    ("a stamp that is none", |o| annotate(o, STAMP, Some("{"))),
    ("both numbers", |o| {
        annotate(o, GENERATION, Some("7"));
        restamp(o, |stamp| stamp.generation = 7);
    }),
    ("the stamp's number", |o| restamp(o, |stamp| stamp.generation += 1)),
    ("the stamp's kind", |o| {
        restamp(o, |stamp| "Machine".clone_into(&mut stamp.kind));
    }),
    ("the stamp's namespace", |o| restamp(o, |stamp| stamp.namespace.clear())),
    ("the stamp's name", |o| {
        restamp(o, |stamp| "c2".clone_into(&mut stamp.name));
    }),
    ("the stamp's uid", |o| {
        restamp(o, |stamp| "u-2".clone_into(&mut stamp.uid));
    }),
    ("the stamp's before", |o| {
        restamp(o, |stamp| stamp.before = stamp.after.clone());
    }),
    ("the stamp's after", |o| restamp(o, |stamp| stamp.after.0.clear())),
    ("the stamp's object generation", |o| {
        restamp(o, |stamp| stamp.object_generation = Some(99));
    }),
    ("one input more", |o| annotate(o, PAUSED, Some(""))),
    ("a stamp for a reason of its own", |o| {
        restamp(o, |stamp| stamp.why = crate::protocol::keys::Why::Missed);
    }),
];

/// What may change.
const HARMLESS: [Change; 4] = [
    ("when", |o| {
        restamp(o, |stamp| "2020-01-01T00:00:00.000Z".clone_into(&mut stamp.at));
    }),
    ("by whom", |o| restamp(o, |stamp| "bob".clone_into(&mut stamp.by))),
    ("why", |o| restamp(o, |stamp| "because".clone_into(&mut stamp.reason))),
    ("something else", |o| annotate(o, "example.com/owner", Some("team-a"))),
];

fn restamp(object: &mut ObjectView, change: impl FnOnce(&mut Stamp)) {
    let mut stamp: Stamp = serde_json::from_str(object.metadata.annotation(STAMP).unwrap()).unwrap();
    change(&mut stamp);
    annotate(object, STAMP, Some(&serde_json::to_string(&stamp).unwrap()));
}

fn check(write: Write<'_>, stamped: &ObjectView) {
    assert_eq!(validate(&write), Ok(()));
    for (what, tamper) in TAMPERINGS {
        let mut tampered = stamped.clone();
        tamper(&mut tampered);
        assert_ne!(tampered, *stamped, "{what}");
        let message = validate(&Write {
            new: &tampered,
            ..write
        })
        .expect_err(what);
        assert!(message.contains("reinvocationPolicy"), "{message}");
    }
    for (what, change) in HARMLESS {
        let mut changed = stamped.clone();
        change(&mut changed);
        assert_eq!(validate(&Write { new: &changed, ..write }), Ok(()), "{what}");
    }
}

#[test]
fn tampering_with_an_update_is_noticed() {
    for history in 0..3 {
        let mut world = World::new();
        for flip in 0..history {
            world.update(PERSON, |object| set_field(object, Some(flip % 2 == 0)));
            world.echo();
        }
        let mut new = world.stored.clone();
        set_field(&mut new, Some(history % 2 == 0));
        let answer = mutate(&world.ask(&new, PERSON));
        let stamped = apply(new, &answer);
        // With `after` empty already, emptying it is no tampering: those resumes are left to the other cases.
        if history % 2 == 0 {
            check(world.ask(&stamped, PERSON), &stamped);
        }
        // The pause taken back again: a stamp without a flip, which the companion repairs.
        let mut taken_back = stamped.clone();
        set_field(&mut taken_back, Some(history % 2 != 0));
        assert_eq!(validate(&world.ask(&taken_back, PERSON)), Ok(()));
    }
}

#[test]
fn tampering_with_a_creation_is_noticed() {
    let mut world = World::new();
    let new = World::creation(|object| set_field(object, Some(true)));
    let create = Write {
        old: None,
        ..world.ask(&new, PERSON)
    };
    let answer = mutate(&create);
    let mut stamped = apply(new.clone(), &answer);
    "u-9".clone_into(&mut stamped.metadata.uid);
    world.wait(3);
    let write = Write {
        old: None,
        ..world.ask(&stamped, PERSON)
    };
    check(write, &stamped);
}

#[test]
fn a_flip_that_was_never_stamped_is_denied() {
    let world = World::new();
    let mut new = world.stored.clone();
    annotate(&mut new, PAUSED, Some(""));
    let message = validate(&world.ask(&new, PERSON)).unwrap_err();
    assert!(message.contains("from nothing to cluster.x-k8s.io/paused"), "{message}");
}
