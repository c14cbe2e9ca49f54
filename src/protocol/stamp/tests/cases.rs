//! DESIGN's sentences, one by one.

use super::world::{COMPANION, PAUSED, PERSON, World, annotate, annotations, noon, object, set_field};
use crate::protocol::{
    condition,
    intent::State,
    keys::{
        ACKNOWLEDGED, ACKNOWLEDGEMENT, GENERATION, GUARDED, MAX_GENERATION, MAX_RESTORED, OBSERVED_GENERATION, PENDING,
        REASON, STAMP, Standing, TOUCH, Why,
    },
    object::ObjectView,
    stamp::{Concern, Decision, Policies, Policy, Writer, concern, timestamp},
};

fn pause(world: &mut World) -> super::super::Answer {
    world.update(PERSON, |object| set_field(object, Some(true)))
}

fn resume(world: &mut World) -> super::super::Answer {
    world.update(PERSON, |object| set_field(object, Some(false)))
}

fn is_hasty(answer: &super::super::Answer) -> bool {
    match answer.decision {
        Decision::Stamped { hasty, .. } => hasty,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_first_flip_is_generation_1_and_clean() {
    let mut world = World::new();
    assert!(!is_hasty(&pause(&mut world)));
    let record = world.record();
    assert_eq!((record.stamp.generation, record.observed), (1, Some(0)));
    assert!(record.is_clean() && !record.is_acknowledged(&world.rule));
    assert_eq!(world.stored.metadata.annotation(ACKNOWLEDGED), Some(PENDING));
    assert_eq!(record.stamp.object_generation, world.stored.metadata.generation);
    assert_eq!(record.stamp.by, "ann");
    assert_eq!(record.stamp.at, "2026-01-01T12:00:00.123Z");
    assert_eq!(record.stamp.before.to_string(), "nothing");
    assert_eq!(record.stamp.after.to_string(), "spec.paused");
}

#[test]
fn a_flip_after_the_echo_is_clean_and_one_before_is_hasty() {
    let mut world = World::new();
    pause(&mut world);
    world.echo();
    assert_eq!(world.record().acknowledged, Some(State::Paused));
    assert!(world.record().is_acknowledged(&world.rule));
    assert!(!is_hasty(&resume(&mut world)));
    assert!(is_hasty(&pause(&mut world)));
    assert_eq!(world.generation(), 3);
    assert!(!world.record().is_clean());
    world.echo();
    assert!(!is_hasty(&resume(&mut world)));
}

#[test]
fn an_annotation_flip_records_no_object_generation() {
    let mut world = World::new();
    world.update(PERSON, |object| annotate(object, PAUSED, Some("")));
    let stamp = world.record().stamp;
    assert_eq!((stamp.object_generation, stamp.found_generation), (None, Some(1)));
    assert_eq!(stamp.least_generation(), 1);
    world.echo();
    assert_eq!(world.record().acknowledged, Some(State::PausedSelf));
    // Both inputs in one write are one flip, and it changes the spec.
    world.update(PERSON, |object| {
        annotate(object, PAUSED, None);
        set_field(object, Some(true));
    });
    let record = world.record();
    assert_eq!((record.stamp.generation, record.stamp.object_generation), (2, Some(2)));
    assert_eq!(
        (record.stamp.found_generation, record.stamp.least_generation()),
        (None, 2)
    );
}

#[test]
fn another_value_of_a_presence_annotation_is_no_flip() {
    let mut world = World::new();
    world.update(PERSON, |object| annotate(object, PAUSED, Some("")));
    let answer = world.update(PERSON, |object| annotate(object, PAUSED, Some("false")));
    assert_eq!(answer.decision, Decision::Unchanged);
    assert_eq!(world.generation(), 1);
}

#[test]
fn a_flip_that_went_by_unseen_leaves_a_gap() {
    for echoed in [true, false] {
        let mut world = World::new();
        pause(&mut world);
        if echoed {
            world.echo();
        }
        world.update_unseen(|object| set_field(object, Some(false)));
        assert!(is_hasty(&pause(&mut world)), "echoed: {echoed}");
        assert_eq!(world.generation(), 3);
        assert!(!world.record().is_clean());
    }
}

#[test]
fn whoever_touches_our_keys_after_an_unseen_flip_gets_it_stamped() {
    let mut world = World::new();
    pause(&mut world);
    world.echo();
    world.update_unseen(|object| set_field(object, Some(false)));
    world.update(COMPANION, |object| annotate(object, ACKNOWLEDGED, Some(PENDING)));
    let record = world.record();
    assert_eq!((record.stamp.generation, record.stamp.why), (3, Why::Missed));
    assert_eq!(record.stamp.after, world.intent());
    assert!(!record.is_clean());
}

#[test]
fn a_touch_makes_a_stamp_that_is_pending_and_hasty() {
    let mut world = World::new();
    for paused in [true, false] {
        world.update(PERSON, |object| set_field(object, Some(paused)));
        world.echo();
        let before = world.generation();
        assert!(is_hasty(&world.update(PERSON, |object| annotate(
            object,
            TOUCH,
            Some("please")
        ))));
        let record = world.record();
        assert_eq!((record.stamp.generation, record.stamp.why), (before + 2, Why::Touched));
        assert!(!record.is_clean() && !record.is_acknowledged(&world.rule));
        world.echo();
    }
}

#[test]
fn a_touch_of_an_object_without_keys_is_not_clean() {
    let mut world = World::new();
    world.update(PERSON, |object| annotate(object, TOUCH, Some("")));
    let record = world.record();
    assert_eq!((record.stamp.generation, record.observed), (1, None));
    assert!(!record.is_clean());
}

#[test]
fn a_touch_together_with_an_unseen_flip_survives_a_second_call() {
    let mut world = World::new();
    pause(&mut world);
    world.update_unseen(|object| set_field(object, Some(false)));
    world.update(PERSON, |object| annotate(object, TOUCH, Some("")));
    assert_eq!(world.record().stamp.why, Why::Missed);
    assert_eq!(world.generation(), 3);
}

#[test]
fn forged_removed_and_changed_keys_are_put_back() {
    let mut world = World::new();
    pause(&mut world);
    world.echo();
    resume(&mut world);
    let stood = world.stored.clone();
    let forgeries: [&dyn Fn(&mut ObjectView); 5] = [
        &|object| annotate(object, ACKNOWLEDGED, Some("running")),
        &|object| annotate(object, OBSERVED_GENERATION, Some("2")),
        &|object| annotate(object, GENERATION, None),
        &|object| GUARDED.iter().for_each(|key| annotate(object, key, None)),
        &|object| object.metadata.annotations = None,
    ];
    for forge in forgeries {
        let answer = world.update(PERSON, forge);
        assert_eq!(answer.decision, Decision::PutBack);
        assert_eq!(answer.warnings.len(), 1);
        assert!(answer.warnings[0].len() < 256, "{}", answer.warnings[0]);
        assert_eq!(world.stored.metadata.annotations, stood.metadata.annotations);
    }
}

#[test]
fn nobody_else_may_acknowledge() {
    let mut world = World::new();
    pause(&mut world);
    let (state, number, text) = world.acknowledgement();
    let echo = |object: &mut ObjectView| {
        annotate(object, ACKNOWLEDGED, Some(state));
        annotate(object, OBSERVED_GENERATION, Some(&number));
        annotate(object, ACKNOWLEDGEMENT, Some(&text));
    };
    assert_eq!(world.update(PERSON, echo).decision, Decision::PutBack);
    assert_eq!(world.record().observed, Some(0));
    assert_eq!(world.update(COMPANION, echo).decision, Decision::Unchanged);
    assert!(world.record().is_acknowledged(&world.rule));
}

#[test]
fn the_companion_acknowledges_only_what_stands() {
    let mut world = World::new();
    pause(&mut world);
    let late = world.acknowledgement();
    resume(&mut world);
    let (state, number, text) = world.acknowledgement();
    type Echo<'a> = (&'a str, &'a str, &'a str);
    let wrong: [Echo<'_>; 6] = [
        (late.0, &late.1, &late.2),
        (state, &number, &late.2),
        (state, &late.1, &text),
        ("paused", &number, &text),
        (state, "02", &text),
        (state, &number, "{}"),
    ];
    for (state, number, text) in wrong {
        let answer = world.update(COMPANION, |object| {
            annotate(object, ACKNOWLEDGED, Some(state));
            annotate(object, OBSERVED_GENERATION, Some(number));
            annotate(object, ACKNOWLEDGEMENT, Some(text));
        });
        assert_eq!(answer.decision, Decision::PutBack, "{state} {number} {text}");
    }
    let another_uid = text.replace("u-1", "u-2");
    let answer = world.update(COMPANION, |object| {
        annotate(object, ACKNOWLEDGED, Some(state));
        annotate(object, OBSERVED_GENERATION, Some(&number));
        annotate(object, ACKNOWLEDGEMENT, Some(&another_uid));
    });
    assert_eq!(answer.decision, Decision::PutBack);
    assert_eq!(world.echo().decision, Decision::Unchanged);
}

#[test]
fn a_word_that_the_stamp_does_not_call_for_acknowledges_nothing() {
    let mut world = World::new();
    pause(&mut world);
    world.echo();
    resume(&mut world);
    world.echo();
    assert!(world.record().is_acknowledged(&world.rule));
    // Somebody writes it while the keys webhook is away; the record of the echo beside it still stands.
    world.update_unseen(|object| annotate(object, ACKNOWLEDGED, Some("paused")));
    assert!(!world.record().is_acknowledged(&world.rule));
    assert_eq!(condition::acknowledged(&world.rule, &world.stored, true), None);
}

#[test]
fn the_companion_may_take_its_word_back() {
    let mut world = World::new();
    pause(&mut world);
    world.echo();
    let answer = world.update(COMPANION, |object| annotate(object, ACKNOWLEDGED, Some(PENDING)));
    assert_eq!(answer.decision, Decision::Unchanged);
    assert!(!world.record().is_acknowledged(&world.rule));
    // But nothing else with it.
    let answer = world.update(COMPANION, |object| {
        annotate(object, ACKNOWLEDGED, Some(PENDING));
        annotate(object, OBSERVED_GENERATION, None);
    });
    assert_eq!(answer.decision, Decision::PutBack);
}

#[test]
fn keys_of_another_object_are_not_believed() {
    let mut world = World::new();
    pause(&mut world);
    world.echo();
    world.update_unseen(|object| "u-2".clone_into(&mut object.metadata.uid));
    assert_eq!(world.standing(), Standing::Foreign);
    assert!(is_hasty(&resume(&mut world)));
    let record = world.record();
    assert_eq!((record.stamp.generation, record.observed), (3, None));
    assert_eq!(world.stored.metadata.annotation(ACKNOWLEDGEMENT), None);
}

#[test]
fn an_acknowledgement_of_another_uid_spoils_the_keys_beside_it() {
    // The stamp of a creation names no uid; a restore that no webhook saw is told by the acknowledgement.
    let mut world = World::new();
    let new = World::creation(|object| set_field(object, Some(true)));
    world.create(PERSON, &new, None);
    world.echo();
    assert!(world.record().is_acknowledged(&world.rule));
    world.update_unseen(|object| "u-3".clone_into(&mut object.metadata.uid));
    assert_eq!(world.standing(), Standing::Foreign);
    assert!(is_hasty(&resume(&mut world)));
    assert!(!world.record().is_clean());
}

#[test]
fn an_observed_generation_without_its_record_is_not_believed() {
    let mut world = World::new();
    pause(&mut world);
    world.echo();
    world.update_unseen(|object| annotate(object, ACKNOWLEDGEMENT, None));
    assert_eq!(world.record().observed, None);
    assert!(is_hasty(&resume(&mut world)));
    assert!(!world.record().is_clean());
    // Nor does a number from the future become the past of the next flip.
    let mut world = World::new();
    pause(&mut world);
    world.update_unseen(|object| annotate(object, OBSERVED_GENERATION, Some("9")));
    assert!(is_hasty(&resume(&mut world)));
    assert_eq!(world.generation(), 10);
    assert!(!world.record().is_clean());
}

#[test]
fn unbelievable_numbers_never_deny_a_flip() {
    let past = (MAX_GENERATION + 1).to_string();
    for number in [
        "-1",
        "07",
        "+7",
        "7.0",
        "1e3",
        "",
        " 7",
        "x",
        "\u{0661}",
        &past,
        "99999999999999999999",
    ] {
        let mut world = World::new();
        world.update_unseen(|object| annotate(object, GENERATION, Some(number)));
        assert_eq!(world.standing(), Standing::Broken, "{number:?}");
        assert!(is_hasty(&pause(&mut world)), "{number:?}");
        assert_eq!(world.generation(), 1, "{number:?}");
        assert_eq!(world.record().observed, None, "{number:?}");
    }
}

#[test]
fn the_last_numbers_start_over_instead_of_leaving_what_is_believed() {
    for last in [MAX_GENERATION - 2, MAX_GENERATION - 1, MAX_GENERATION] {
        let mut world = World::new();
        pause(&mut world);
        world.update_unseen(|object| {
            let mut stamp = Standing::of(&super::world::rule().group_kind, object)
                .record()
                .unwrap()
                .stamp
                .clone();
            stamp.generation = last;
            annotate(object, GENERATION, Some(&last.to_string()));
            annotate(object, STAMP, Some(&serde_json::to_string(&stamp).unwrap()));
        });
        world.echo();
        resume(&mut world);
        let record = world.record();
        if last == MAX_GENERATION - 2 {
            assert_eq!(record.stamp.generation, last + 1);
        } else {
            assert_eq!((record.stamp.generation, record.observed), (1, None));
        }
    }
}

#[test]
fn created_running_without_keys_is_no_concern() {
    let world = World::new();
    let new = World::creation(|object| set_field(object, Some(false)));
    assert_eq!(concern(&world.rule, None, &new), Concern::None);
}

#[test]
fn created_paused_is_generation_1_and_not_clean() {
    let mut world = World::new();
    let new = World::creation(|object| set_field(object, Some(true)));
    world.create(PERSON, &new, None);
    let record = world.record();
    assert_eq!((record.stamp.generation, record.observed), (1, None));
    assert_eq!((record.stamp.why, record.stamp.object_generation), (Why::Created, None));
    assert!(is_hasty(&resume(&mut world)));
}

#[test]
fn created_paused_with_generate_name() {
    let mut world = World::new();
    let new = World::creation(|object| {
        object.metadata.name.clear();
        annotate(object, PAUSED, Some(""));
    });
    world.create(PERSON, &new, Some("c-x7k2p"));
    assert_eq!(world.record().stamp.name, "");
    world.echo();
    assert!(world.record().is_acknowledged(&world.rule));
    world.update(PERSON, |object| annotate(object, PAUSED, None));
    assert_eq!(world.record().stamp.name, "c-x7k2p");
    assert!(world.record().is_clean());
}

#[test]
fn a_restore_goes_on_from_its_number_and_is_not_clean() {
    let mut world = World::new();
    pause(&mut world);
    world.echo();
    let saved = world.stored.clone();
    for paused in [true, false] {
        let new = World::creation(|object| {
            object.metadata.annotations.clone_from(&saved.metadata.annotations);
            set_field(object, Some(paused));
        });
        world.create(PERSON, &new, None);
        let record = world.record();
        assert_eq!((record.stamp.generation, record.stamp.why), (2, Why::Restored));
        assert_eq!(
            (record.observed, record.acknowledged, record.acknowledgement),
            (None, None, None)
        );
        assert_eq!(record.stamp.after, world.intent());
    }
}

#[test]
fn a_restored_number_past_its_limit_starts_over() {
    let mut world = World::new();
    pause(&mut world);
    for (number, next) in [(MAX_RESTORED, MAX_RESTORED + 1), (MAX_RESTORED + 1, 1)] {
        let mut stamp = world.record().stamp;
        stamp.generation = number;
        stamp.at = "2020-01-01T00:00:00.000Z".to_owned();
        let new = World::creation(|object| {
            object.metadata.annotations = Some(annotations([
                (GENERATION, &number.to_string()),
                (ACKNOWLEDGED, "paused"),
                (STAMP, &serde_json::to_string(&stamp).unwrap()),
            ]));
            set_field(object, Some(true));
        });
        world.create(PERSON, &new, None);
        assert_eq!(world.generation(), next);
    }
}

#[test]
fn a_copy_loses_the_keys() {
    let mut world = World::new();
    pause(&mut world);
    world.echo();
    let saved = world.stored.clone();
    let copies: [fn(&mut ObjectView); 3] = [
        |object| "c2".clone_into(&mut object.metadata.name),
        |object| "other".clone_into(&mut object.metadata.namespace),
        |object| object.metadata.name.clear(),
    ];
    for change in copies {
        let mut new = World::creation(change);
        new.metadata.annotations.clone_from(&saved.metadata.annotations);
        let name = new.metadata.name.is_empty().then_some("c-y");
        let answer = world.create(PERSON, &new, name);
        assert_eq!(answer.decision, Decision::CopyDropped);
        assert_eq!(world.standing(), Standing::Bare);
        // Paused itself, it gets a stamp of its own.
        set_field(&mut new, Some(true));
        world.create(PERSON, &new, name);
        assert_eq!(world.generation(), 1);
        assert_eq!(world.record().stamp.why, Why::Created);
    }
}

#[test]
fn a_move_may_replace_the_whole_annotation_map() {
    let mut world = World::new();
    world.policies = Policies {
        hasty: Policy::Deny,
        require_reason: Policy::Deny,
    };
    let exempt = Writer {
        is_exempt: true,
        ..PERSON
    };
    world.update(exempt, |object| {
        set_field(object, Some(true));
        annotate(object, PAUSED, Some(""));
    });
    let answer = world.update(PERSON, |object| {
        object.metadata.annotations = Some(annotations([("clusterctl.cluster.x-k8s.io/delete-for-move", "")]));
    });
    assert!(matches!(answer.decision, Decision::Stamped { .. }), "{answer:?}");
    assert_eq!(world.generation(), 2);
}

#[test]
fn policies_warn_and_deny_pauses_alone() {
    let mut world = World::new();
    world.policies = Policies {
        hasty: Policy::Warn,
        require_reason: Policy::Warn,
    };
    let warnings = pause(&mut world).warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("reason"), "{warnings:?}");
    assert_eq!(resume(&mut world).warnings, [""; 0]);
    let warnings = pause(&mut world).warnings;
    assert!(
        warnings[0].contains("not acknowledged yet") && warnings[0].contains("60 s"),
        "{warnings:?}"
    );
    assert_eq!(warnings.len(), 2);

    world.policies.hasty = Policy::Deny;
    assert!(matches!(resume(&mut world).decision, Decision::Stamped { .. }));
    assert!(matches!(pause(&mut world).decision, Decision::Denied(_)));
    assert!(world.intent().is_empty());
    world.echo();
    world.policies.require_reason = Policy::Deny;
    assert!(matches!(pause(&mut world).decision, Decision::Denied(_)));
    let with_reason = |object: &mut ObjectView| {
        set_field(object, Some(true));
        annotate(object, REASON, Some("CHG-1234"));
    };
    assert!(matches!(
        world.update(PERSON, with_reason).decision,
        Decision::Stamped { .. }
    ));
    assert_eq!(world.record().stamp.reason, "CHG-1234");
    world.echo();
    resume(&mut world);
    world.echo();
    // A standing reason does not count.
    assert!(matches!(
        world.update(PERSON, with_reason).decision,
        Decision::Denied(_)
    ));
}

#[test]
fn policies_do_not_apply_to_exempt_users() {
    let mut world = World::new();
    world.policies = Policies {
        hasty: Policy::Deny,
        require_reason: Policy::Deny,
    };
    let exempt = Writer {
        is_exempt: true,
        ..PERSON
    };
    for paused in [true, false, true] {
        let answer = world.update(exempt, |object| set_field(object, Some(paused)));
        assert!(matches!(answer.decision, Decision::Stamped { .. }));
    }
}

#[test]
fn false_that_pauses_is_warned_of() {
    let mut world = World::new();
    let answer = world.update(PERSON, |object| annotate(object, PAUSED, Some("False")));
    assert_eq!(answer.warnings.len(), 1);
    assert!(
        answer.warnings[0].contains("pauses by being there"),
        "{:?}",
        answer.warnings
    );
}

#[test]
fn a_reason_is_cut_between_characters() {
    let mut world = World::new();
    world.update(PERSON, |object| {
        set_field(object, Some(true));
        annotate(object, REASON, Some(&"\u{20ac}".repeat(100)));
    });
    assert_eq!(world.record().stamp.reason, "\u{20ac}".repeat(85));
}

#[test]
fn a_reason_added_between_two_calls_changes_no_number() {
    let mut world = World::new();
    let new = World::creation(|object| set_field(object, Some(true)));
    world.create(PERSON, &new, None);
    let again = World::creation(|object| {
        object
            .metadata
            .annotations
            .clone_from(&world.stored.metadata.annotations);
        set_field(object, Some(true));
        annotate(object, REASON, Some("late"));
    });
    world.create(PERSON, &again, None);
    let stamp = world.record().stamp;
    assert_eq!((stamp.generation, stamp.why, &*stamp.reason), (1, Why::Created, "late"));
}

#[test]
fn timestamps_have_milliseconds() {
    assert_eq!(timestamp(noon()), "2026-01-01T12:00:00.123Z");
    assert_eq!(
        timestamp("2026-01-01T12:00:00Z".parse().unwrap()),
        "2026-01-01T12:00:00.000Z"
    );
}

#[test]
fn an_object_with_no_annotations_at_all_is_bare() {
    assert_eq!(
        Standing::of(&super::world::rule().group_kind, &object()),
        Standing::Bare
    );
}
