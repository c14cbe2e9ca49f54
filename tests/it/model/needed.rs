//! Each rule is needed: without it the checker finds a false acknowledgement, by the shortest way.
//!
//! Run with `--nocapture` to read the traces.

use pausegen::protocol::mutant::Mutant;
use stateright::{Checker, HasDiscoveries, Model};

use super::{
    act::Person,
    config::{Config, Flaw},
};

const FIELD: Person = Person::Flip {
    slot: 0,
    field: true,
    annotation: false,
};
const ANNOTATION: Person = Person::Flip {
    slot: 0,
    field: false,
    annotation: true,
};
const JOIN: Person = Person::Member { slot: 1, member: true };
const AWAY: Person = Person::Hook {
    flip: false,
    keys: false,
};
const BACK: Person = Person::Hook { flip: true, keys: true };

const fn child(slot: usize) -> Person {
    Person::Flip {
        slot,
        field: false,
        annotation: true,
    }
}

fn script(children: usize, script: &[Person]) -> Config {
    Config::new(children, 0).with(|config| config.script = script.to_vec())
}

/// The shortest way to something false, in words.
fn trace(config: Config, depth: usize) -> Option<(&'static str, Vec<String>, usize)> {
    let checker = config
        .checker()
        .threads(1)
        .target_max_depth(depth)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let states = checker.unique_state_count();
    let (property, path) = checker.discoveries().into_iter().next()?;
    let acts = path.into_actions();
    Some((property, acts.iter().map(ToString::to_string).collect(), states))
}

fn is_needed(name: &str, config: Config, mutant: Option<Mutant>, flaw: Option<Flaw>) {
    let broken = config
        .clone()
        .with(|config| (config.mutant, config.flaw) = (mutant, flaw));
    let (property, steps, states) = trace(broken, 40).unwrap_or_else(|| panic!("{name}: nothing false was found"));
    println!("{name} ({property}, {states} states)");
    for (i, step) in steps.iter().enumerate() {
        println!("  {}. {step}", i + 1);
    }
    let whole = trace(config, steps.len() + 2);
    assert_eq!(whole, None, "{name}: with every rule in place");
}

fn rule(name: &str, config: Config, mutant: Mutant) {
    is_needed(name, config, Some(mutant), None);
}

fn step(name: &str, config: Config, flaw: Flaw) {
    is_needed(name, config, None, Some(flaw));
}

#[test]
fn the_bit_is_not_taken_at_face_value() {
    rule("face value", script(1, &[FIELD, FIELD]), Mutant::FaceValue);
}

#[test]
fn a_changed_answer_needs_a_baseline() {
    let world = script(1, &[JOIN, FIELD]).with(|c| c.outsider = Some(1));
    rule("no baseline", world, Mutant::NoBaseline);
}

#[test]
fn a_baseline_waits_for_the_bound() {
    let world = script(1, &[FIELD, JOIN, FIELD]).with(|c| c.outsider = Some(1));
    rule("baseline without the wait", world, Mutant::NoWait);
}

#[test]
fn only_who_was_asked_leaves_a_baseline() {
    let world = script(1, &[FIELD, JOIN, ANNOTATION, FIELD]).with(|c| (c.outsider, c.prompt) = (Some(1), true));
    rule("baseline of somebody who was not asked", world, Mutant::UnaskedBaseline);
}

#[test]
fn hasty_flips_do_not_rest_on_baselines() {
    rule(
        "baseline for a hasty flip",
        script(1, &[FIELD, FIELD, FIELD]),
        Mutant::HastyBaseline,
    );
}

#[test]
fn a_hasty_flip_asks_everybody() {
    let world = script(1, &[FIELD, ANNOTATION]).with(|c| {
        (c.leases, c.ticks) = (true, 2);
        c.left.freezes = 1;
    });
    rule("hasty flip asks only its own", world, Mutant::HastyNarrow);
}

#[test]
fn a_webhook_configuration_that_came_back_is_another() {
    rule(
        "configuration that came back",
        script(1, &[AWAY, FIELD, FIELD, BACK, FIELD]),
        Mutant::GuardReturned,
    );
}

#[test]
fn a_lease_that_changed_hands_begins_anew() {
    let world = script(1, &[FIELD, FIELD]).with(|c| {
        (c.leases, c.ticks) = (true, 2);
        (c.left.freezes, c.left.takeovers) = (1, 1);
    });
    rule("Lease that changed hands", world, Mutant::LeaseHands);
}

#[test]
fn a_pause_asks_who_is_on_the_last_list() {
    let world = script(2, &[FIELD]).with(|c| (c.creator, c.work) = (true, true));
    rule("first list for a pause", world, Mutant::FirstListPause);
}

#[test]
fn owners_are_listed_first() {
    let world = script(2, &[FIELD]).with(|c| (c.creator, c.work, c.split) = (true, true, true));
    step("children listed before their owners", world, Flaw::ChildrenFirst);
}

#[test]
fn a_look_does_not_go_by_the_cache() {
    let world = script(2, &[FIELD]).with(|c| (c.creator, c.work, c.lag) = (true, true, true));
    step("cache instead of the look", world, Flaw::CacheLook);
}

#[test]
fn pending_comes_with_the_flip() {
    rule(
        "pending apart from the flip",
        script(1, &[FIELD, FIELD]),
        Mutant::NoPending,
    );
}

#[test]
fn observed_generation_never_runs_ahead() {
    rule(
        "observedGeneration ahead",
        script(1, &[FIELD, FIELD]),
        Mutant::ObservedAhead,
    );
}

#[test]
fn a_condition_is_raised_only_under_the_same_webhooks() {
    rule(
        "raised anyway",
        script(1, &[FIELD, AWAY, FIELD, FIELD, BACK]),
        Mutant::RaiseAnyway,
    );
}

#[test]
fn forged_keys_are_put_back() {
    rule(
        "no put-back",
        script(1, &[FIELD, Person::Forge { slot: 0 }]),
        Mutant::NoPutBack,
    );
}

#[test]
fn stamps_of_other_objects_are_not_believed() {
    let world = script(
        2,
        &[
            child(1),
            child(2),
            Person::Hook {
                flip: true,
                keys: false,
            },
            Person::Copy { from: 1, to: 2 },
        ],
    )
    .with(|c| c.keys_away = true);
    rule("stamp of another object", world, Mutant::AnyStamp);
}

#[test]
fn the_echo_tests_the_stamp() {
    step("echo without test", script(1, &[FIELD, FIELD, FIELD]), Flaw::EchoNoTest);
}

#[test]
fn the_echo_tests_the_uid() {
    let again = [
        Person::Delete { slot: 0 },
        Person::Create {
            slot: 0,
            restore: false,
            paused: true,
        },
    ];
    let world = script(1, &[again, again].concat()).with(|c| c.ticks = 2);
    step("echo without uid", world, Flaw::EchoNoUid);
}

#[test]
fn a_restart_reads_nothing_older() {
    let world = script(1, &[FIELD]).with(|c| c.left.restarts = 1);
    step("restart that reads what is older", world, Flaw::OldRestart);
}
