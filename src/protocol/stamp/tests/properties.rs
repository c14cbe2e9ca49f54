//! What has to hold whoever writes whatever.

use proptest::prelude::*;

use super::world::{COMPANION, PAUSED, PERSON, World, annotate, set_field};
use crate::protocol::{
    keys::{
        ACKNOWLEDGED, ACKNOWLEDGEMENT, GENERATION, GUARDED, OBSERVED_GENERATION, PENDING, STAMP, TOUCH, Why,
        parse_generation,
    },
    object::ObjectView,
    stamp::{Concern, Decision, concern},
};
use crate::testing::cases;

/// One thing that a write does.
#[derive(Debug, Clone)]
enum Step {
    Field(Option<bool>),
    Annotation(Option<&'static str>),
    Touch,
    Reason(&'static str),
    Foreign(&'static str),
    WipeAnnotations,
    /// Sets a key to a text.
    Forge(usize, &'static str),
    /// Removes a key.
    Remove(usize),
    /// Writes our keys as they would look a few generations on, or back, acknowledged or not.
    ForgeRecord(i64, bool),
    /// Writes an echo as it would look for a number.
    ForgeEcho(i64),
}

/// A write: its steps, and whether the companion makes it; and how long after the last one.
#[derive(Debug, Clone)]
struct Act {
    steps: Vec<Step>,
    companion: bool,
    echo: bool,
    seconds: i64,
}

fn step() -> impl Strategy<Value = Step> {
    let texts = prop::sample::select(vec![
        "",
        "0",
        "1",
        "2",
        "3",
        "07",
        "-1",
        "9007199254740993",
        "pending",
        "paused",
        "running",
        "{}",
        "{\"generation\":3}",
    ]);
    prop_oneof![
        4 => prop::sample::select(vec![None, Some(true), Some(false)]).prop_map(Step::Field),
        4 => prop::sample::select(vec![None, Some(""), Some("true"), Some("false")]).prop_map(Step::Annotation),
        1 => Just(Step::Touch),
        1 => prop::sample::select(vec!["CHG-1", "CHG-2"]).prop_map(Step::Reason),
        1 => prop::sample::select(vec!["a", "b"]).prop_map(Step::Foreign),
        1 => Just(Step::WipeAnnotations),
        2 => (0..GUARDED.len(), texts).prop_map(|(key, text)| Step::Forge(key, text)),
        2 => (0..GUARDED.len()).prop_map(Step::Remove),
        2 => (-2..4_i64, any::<bool>()).prop_map(|(by, acknowledged)| Step::ForgeRecord(by, acknowledged)),
        2 => (-2..4_i64).prop_map(Step::ForgeEcho),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    (prop::collection::vec(step(), 1..4), any::<bool>(), 0..3_u8, 0..100_i64).prop_map(
        |(steps, companion, echo, seconds)| Act {
            steps,
            companion,
            echo: echo == 0,
            seconds,
        },
    )
}

fn take(step: &Step, object: &mut ObjectView, world: &World) {
    match step {
        Step::Field(value) => set_field(object, *value),
        Step::Annotation(value) => annotate(object, PAUSED, *value),
        Step::Touch => annotate(object, TOUCH, Some("")),
        Step::Reason(text) => annotate(object, crate::protocol::keys::REASON, Some(text)),
        Step::Foreign(text) => annotate(object, "example.com/a", Some(text)),
        Step::WipeAnnotations => object.metadata.annotations = None,
        Step::Forge(key, text) => annotate(object, GUARDED[*key], Some(text)),
        Step::Remove(key) => annotate(object, GUARDED[*key], None),
        Step::ForgeRecord(by, acknowledged) => {
            let Some(mut stamp) = world.standing().record().map(|record| record.stamp.clone()) else {
                return;
            };
            stamp.generation = stamp.generation.saturating_add_signed(*by);
            stamp.before = stamp.after.clone();
            stamp.after = crate::protocol::intent::Intent::of(&world.rule, object);
            stamp.why = if *acknowledged { Why::Flip } else { Why::Touched };
            annotate(object, GENERATION, Some(&stamp.generation.to_string()));
            annotate(object, STAMP, Some(&serde_json::to_string(&stamp).unwrap()));
            annotate(
                object,
                ACKNOWLEDGED,
                Some(if *acknowledged { "paused" } else { PENDING }),
            );
        }
        Step::ForgeEcho(by) => {
            if world.standing().record().is_none() {
                return;
            }
            let (state, number, text) = world.acknowledgement();
            let forged = number.parse::<u64>().unwrap().saturating_add_signed(*by).to_string();
            let text = text.replace(&format!("\"generation\":{number}"), &format!("\"generation\":{forged}"));
            annotate(object, ACKNOWLEDGED, Some(state));
            annotate(object, OBSERVED_GENERATION, Some(&forged));
            annotate(object, ACKNOWLEDGEMENT, Some(&text));
        }
    }
}

fn observed(object: &ObjectView) -> Option<u64> {
    object
        .metadata
        .annotation(OBSERVED_GENERATION)
        .and_then(parse_generation)
}

/// Makes a write and checks what has to hold of it.
fn write(world: &mut World, act: &Act) {
    world.wait(act.seconds);
    let mut new = world.stored.clone();
    for step in &act.steps {
        take(step, &mut new, world);
    }
    let concerned = concern(&world.rule, Some(&world.stored), &new);
    let (before, generation, intent) = (world.stored.clone(), world.generation(), world.intent());
    let legitimate = world.standing().record().is_some() && {
        let (state, number, text) = world.acknowledgement();
        let get = |key| new.metadata.annotation(key);
        act.companion
            && get(ACKNOWLEDGED) == Some(state)
            && get(OBSERVED_GENERATION) == Some(&*number)
            && get(ACKNOWLEDGEMENT) == Some(&*text)
    };
    let writer = if act.companion { COMPANION } else { PERSON };
    let answer = world.update(writer, |object| *object = new);

    let get = |key| world.stored.metadata.annotation(key);
    let same = |key| before.metadata.annotation(key) == get(key);
    let touched = matches!(&answer.decision, Decision::Stamped { stamp, .. } if stamp.why == Why::Touched);
    match concerned {
        Concern::Flip => {
            assert_eq!(world.generation(), generation + 1, "one step per flip");
            let record = world.record();
            assert_eq!((record.stamp.before, record.stamp.after), (intent, world.intent()));
            assert_eq!(record.stamp.uid, "u-1");
            assert_eq!(get(ACKNOWLEDGED), Some(PENDING));
            assert!(same(ACKNOWLEDGEMENT));
            assert!(generation == 0 || same(OBSERVED_GENERATION));
        }
        _ if touched => {
            let step = if generation == 0 { 1 } else { 2 };
            assert_eq!(world.generation(), generation + step);
            assert_eq!(get(ACKNOWLEDGED), Some(PENDING));
            assert_eq!(observed(&world.stored), None);
        }
        Concern::Keys | Concern::None => {
            assert_eq!(world.generation(), generation, "no step without a flip or a touch");
            assert!(same(STAMP) && same(GENERATION));
            if !same(OBSERVED_GENERATION)
                || !same(ACKNOWLEDGEMENT)
                || (!same(ACKNOWLEDGED) && get(ACKNOWLEDGED) != Some(PENDING))
            {
                assert!(legitimate, "only the companion acknowledges, and only what stands");
            }
        }
    }
    if let Decision::Stamped { hasty, .. } = answer.decision {
        assert_eq!(hasty, !world.record().is_clean());
    }
    if let Some(record) = world.standing().record() {
        assert!(record.observed.is_none_or(|k| k <= record.stamp.generation));
        assert_eq!(record.stamp.after, world.intent());
    }
}

proptest! {
    #![proptest_config(cases(300))]

    /// Generations strictly increase, one step per flip; no request lowers, skips or forges one, or an acknowledgement.
    #[test]
    fn no_sequence_of_writes_forges_anything(acts in prop::collection::vec(act(), 1..25)) {
        let mut world = World::new();
        for act in &acts {
            write(&mut world, act);
            if act.echo && world.standing().record().is_some() {
                world.echo();
                prop_assert!(world.record().is_acknowledged(&world.rule));
            }
        }
    }

    /// A write that went by unseen, whatever it flipped, leaves the next flip hasty: there is a gap.
    #[test]
    fn an_unseen_flip_leaves_a_gap(
        flips in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()), 1..12),
    ) {
        let mut world = World::new();
        for (field, paused, seen, echo) in flips {
            let edit = |object: &mut ObjectView| if field {
                set_field(object, Some(paused));
            } else {
                annotate(object, PAUSED, paused.then_some(""));
            };
            if seen {
                let standing = world.standing();
                let missed = standing.record().is_some_and(|record| record.stamp.after != world.intent());
                let last = world.generation();
                let answer = world.update(PERSON, edit);
                if let Decision::Stamped { hasty, .. } = answer.decision {
                    prop_assert!(!missed || hasty);
                    prop_assert!(!missed || !world.record().is_clean());
                    prop_assert!(!missed || world.generation() == last + 2);
                }
            } else {
                world.update_unseen(edit);
            }
            let agrees = world.standing().record().is_some_and(|record| record.stamp.after == world.intent());
            if echo && agrees {
                world.echo();
            }
        }
    }

    /// Whatever our keys hold, however it came there, a flip is stamped, and never with a number below what is believed.
    #[test]
    fn a_flip_is_stamped_on_any_ground(
        keys in prop::collection::vec(prop::option::of("\\PC{0,20}|[0-9]{1,17}"), GUARDED.len()),
        steps in prop::collection::vec(step(), 0..6),
    ) {
        let mut world = World::new();
        world.update(PERSON, |object| set_field(object, Some(true)));
        world.update_unseen(|object| {
            for (key, value) in GUARDED.iter().zip(&keys) {
                if value.is_some() {
                    annotate(object, key, value.as_deref());
                }
            }
        });
        let mut ground = world.stored.clone();
        for step in &steps {
            take(step, &mut ground, &world);
        }
        world.update_unseen(|object| *object = ground);
        let paused = world.intent().has(&crate::protocol::rule::InputId("spec.paused".to_owned()));
        let largest = crate::protocol::keys::largest(&world.stored);
        let answer = world.update(PERSON, |object| set_field(object, Some(!paused)));
        let Decision::Stamped { stamp, .. } = answer.decision else {
            return Err(TestCaseError::fail(format!("{answer:?}")));
        };
        if let Some(largest) = largest.filter(|n| *n < (1 << 53) - 1) {
            prop_assert!(stamp.generation > largest);
        }
        prop_assert_eq!(&world.record().stamp, &*stamp);
        prop_assert_eq!(world.stored.metadata.annotation(ACKNOWLEDGED), Some(PENDING));
    }
}
