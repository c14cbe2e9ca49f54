//! Each rule is needed: without it the checker finds something false, by the shortest way. The ways are kept, written out
//! for people, in `docs/counterexamples.md`; a test fails where that file does not say what it has found.
//!
//! `PAUSEGEN_WRITE_TRACES=1 cargo test --test it model::needed` writes them anew.

use std::{fs, path::Path, sync::Mutex};

use pausegen::protocol::mutant::Mutant;

use super::{
    act::Person,
    config::{Config, Flaw, LeaseOf},
    object::{Role, Way},
    trace::shortest,
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
const JOIN: Person = Person::Way {
    slot: 1,
    way: Way::Label,
    there: true,
};
const LEAVE: Person = Person::Way {
    slot: 1,
    way: Way::Label,
    there: false,
};
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

static FILE: Mutex<()> = Mutex::new(());

/// What the file says under a heading, or is made to say.
fn kept(heading: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/counterexamples.md");
    let _alone = FILE.lock();
    let text = fs::read_to_string(&path).unwrap_or_default();
    let section = format!("## {heading}\n\n{found}");
    if text.contains(&section) {
        return;
    }
    assert!(
        std::env::var_os("PAUSEGEN_WRITE_TRACES").is_some(),
        "docs/counterexamples.md does not say this; PAUSEGEN_WRITE_TRACES=1 writes it:\n{section}"
    );
    let begin = text.find(&format!("## {heading}\n")).unwrap_or(text.len());
    let end = text[begin..].find("\n## ").map_or(text.len(), |at| begin + at + 1);
    let rest = text[end..].trim_start();
    let gap = if rest.is_empty() { "" } else { "\n" };
    let before = text[..begin].trim_end();
    fs::write(path, format!("{before}\n\n{section}{gap}{rest}")).unwrap();
}

fn is_needed(heading: &str, config: Config, mutant: Option<Mutant>, flaw: Option<Flaw>) {
    let sound = config.clone();
    let broken = config.with(|config| (config.mutant, config.flaw) = (mutant, flaw));
    let trace = shortest(&broken, 60).unwrap_or_else(|| panic!("{heading}: nothing false was found"));
    println!("{heading} ({}, {} states)", trace.property, trace.states);
    let found: String = trace
        .lines
        .iter()
        .enumerate()
        .map(|(i, line)| match i == trace.depth {
            true => format!("\n**{line}.**\n"),
            false => format!("{}. {line}\n", i + 1),
        })
        .collect();
    println!("{found}");
    let whole = shortest(&sound, trace.depth + 3).map(|trace| trace.lines);
    assert_eq!(whole, None, "{heading}: with every rule in place");
    kept(heading, &found);
}

fn rule(heading: &str, config: Config, mutant: Mutant) {
    is_needed(heading, config, Some(mutant), None);
}

fn step(heading: &str, config: Config, flaw: Flaw) {
    is_needed(heading, config, None, Some(flaw));
}

#[test]
fn the_bit_is_not_taken_at_face_value() {
    rule("The bit at face value", script(1, &[FIELD, FIELD]), Mutant::FaceValue);
}

#[test]
fn a_changed_answer_needs_a_baseline() {
    let world = script(1, &[JOIN, FIELD]).with(|c| c.outsider = Some(1));
    rule("No baseline", world, Mutant::NoBaseline);
}

#[test]
fn a_baseline_waits_for_the_bound() {
    let world = script(1, &[FIELD, JOIN, FIELD]).with(|c| c.outsider = Some(1));
    rule("A baseline without the bound's wait", world, Mutant::NoWait);
}

#[test]
fn only_who_was_asked_leaves_a_baseline() {
    let world = script(1, &[FIELD, JOIN, ANNOTATION, FIELD]).with(|c| (c.outsider, c.prompt) = (Some(1), true));
    rule(
        "A baseline from an object that was no evidence in the echo",
        world,
        Mutant::UnaskedBaseline,
    );
}

#[test]
fn whoever_leaves_is_asked_until_it_has_to_know() {
    rule(
        "Whoever is let go left out at once",
        script(1, &[FIELD, LEAVE]),
        Mutant::LeftAtOnce,
    );
}

#[test]
fn whoever_left_before_the_companion_began_is_asked() {
    let world = script(1, &[FIELD, FIELD, LEAVE]).with(|c| {
        (c.leases, c.ticks) = (LeaseOf::Managers, Some(3));
        (c.left.crashes, c.left.freezes, c.prompt) = (1, 1, true);
    });
    rule(
        "Only those asked whom this process has seen leave",
        world,
        Mutant::KnownLeavers,
    );
}

#[test]
fn whoever_leaves_and_comes_back_is_asked() {
    let world = script(1, &[FIELD, FIELD, LEAVE, JOIN]);
    rule("Whoever left and came back, as new", world, Mutant::ReturnUnasked);
}

#[test]
fn a_look_that_lists_nobody_forgets_nobody() {
    // Child 2 is a member through child 1 alone, so that nothing of its own changes.
    let world = script(2, &[FIELD, Person::Delete { slot: 1 }, ANNOTATION, FIELD])
        .with(|c| (c.second, c.prompt) = (Role::Owned, true));
    rule(
        "A look that lists nobody forgets who has left; child 2 belongs by its owner, child 1",
        world,
        Mutant::ForgetLeavers,
    );
}

#[test]
fn hasty_flips_do_not_rest_on_baselines() {
    rule(
        "A baseline for a hasty flip",
        script(1, &[FIELD, FIELD, FIELD]),
        Mutant::HastyBaseline,
    );
}

#[test]
fn a_hasty_flip_asks_everybody() {
    let world = script(1, &[FIELD, ANNOTATION]).with(|c| {
        (c.leases, c.ticks) = (LeaseOf::Managers, Some(2));
        c.left.freezes = 1;
    });
    rule(
        "A hasty flip that asks only whom its own input concerns",
        world,
        Mutant::HastyNarrow,
    );
}

#[test]
fn a_webhook_configuration_that_came_back_is_another() {
    rule(
        "A webhook configuration that came back",
        script(1, &[AWAY, FIELD, FIELD, BACK, FIELD]),
        Mutant::GuardReturned,
    );
}

#[test]
fn a_lease_that_changed_hands_begins_anew() {
    let world = script(1, &[FIELD, FIELD]).with(|c| {
        (c.leases, c.ticks) = (LeaseOf::Managers, Some(2));
        (c.left.freezes, c.left.takeovers) = (1, 1);
    });
    rule("A Lease that changed hands, ignored", world, Mutant::LeaseHands);
}

#[test]
fn a_pause_asks_who_is_on_the_last_list() {
    let world = script(2, &[FIELD]).with(|c| c.creator = true);
    rule("The first list for a pause", world, Mutant::FirstListPause);
}

#[test]
fn owners_are_listed_first() {
    let world = script(2, &[FIELD]).with(|c| {
        (c.creator, c.second) = (true, Role::Owned);
        (c.split, c.lag) = (true, true);
    });
    step("Children listed before their owners", world, Flaw::ChildrenFirst);
}

#[test]
fn a_look_does_not_go_by_the_cache() {
    let world = script(2, &[FIELD]).with(|c| (c.creator, c.lag) = (true, true));
    step("The cache instead of the consistent look", world, Flaw::CacheLook);
}

#[test]
fn the_moment_of_a_look_is_when_it_began() {
    let world = script(1, &[FIELD, FIELD, FIELD]).with(|c| (c.split, c.ticks, c.bound) = (true, None, 1));
    step("The time told after the look", world, Flaw::LateMoment);
}

#[test]
fn a_webhook_configuration_is_enforced_some_time_after_it_stands() {
    let world = script(1, &[AWAY, BACK, FIELD, FIELD, FIELD]).with(|c| (c.late, c.ticks) = (true, None));
    rule(
        "A webhook configuration trusted from when it stands",
        world,
        Mutant::GuardYoung,
    );
}

#[test]
fn pending_comes_with_the_flip() {
    rule(
        "`pending` not in the flip's own write",
        script(1, &[FIELD, FIELD]),
        Mutant::NoPending,
    );
}

#[test]
fn observed_generation_never_runs_ahead() {
    let world = script(1, &[FIELD, FIELD]).with(|c| c.conditions = true);
    rule("`observedGeneration` that runs ahead", world, Mutant::ObservedAhead);
}

#[test]
fn a_condition_is_raised_only_under_the_same_webhooks() {
    let world = script(1, &[FIELD, AWAY, FIELD, FIELD, BACK]).with(|c| c.conditions = true);
    rule(
        "A condition raised whatever became of the webhooks",
        world,
        Mutant::RaiseAnyway,
    );
}

#[test]
fn an_echo_acknowledges_no_revision_above_the_flips_own() {
    let world = Config::new(0, 0).with(|c| {
        c.script = vec![FIELD, AWAY, FIELD, FIELD];
        c.conditions = true;
    });
    rule(
        "The revision that was looked at, whatever became of the webhooks",
        world,
        Mutant::LookedGeneration,
    );
}

#[test]
fn forged_keys_are_put_back() {
    rule(
        "No put-back",
        script(1, &[FIELD, Person::Forge { slot: 0 }]),
        Mutant::NoPutBack,
    );
}

#[test]
fn stamps_of_other_objects_are_not_believed() {
    let keys_away = Person::Hook {
        flip: true,
        keys: false,
    };
    let world =
        script(2, &[child(1), child(2), keys_away, Person::Copy { from: 1, to: 2 }]).with(|c| c.keys_away = true);
    rule("Stamps of other objects believed", world, Mutant::AnyStamp);
}

#[test]
fn the_echo_tests_the_stamp() {
    step(
        "No `test` of the stamp in the echo",
        script(1, &[FIELD, FIELD, FIELD]),
        Flaw::EchoNoTest,
    );
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
    let world = script(1, &[again, again].concat()).with(|c| c.ticks = Some(2));
    step("An echo that does not test the uid", world, Flaw::EchoNoUid);
}

#[test]
fn what_is_deleted_may_still_be_worked_on() {
    let world = script(1, &[FIELD, Person::Delete { slot: 1 }]);
    rule("Nobody asked about what was deleted", world, Mutant::GoneAtOnce);
}

#[test]
fn another_object_of_the_name_may_have_been_read() {
    let anew = Person::Create {
        slot: 0,
        restore: false,
        paused: false,
    };
    let world = script(0, &[FIELD, Person::Delete { slot: 0 }, anew, FIELD]);
    rule(
        "A revision read of an object that is deleted",
        world,
        Mutant::FormerObject,
    );
}

#[test]
fn a_restart_reads_nothing_older() {
    let world = script(1, &[FIELD]).with(|c| c.left.restarts = 1);
    step(
        "A restart that reads what is older than attested",
        world,
        Flaw::OldRestart,
    );
}

#[test]
fn the_bound_holds() {
    let world = script(1, &[FIELD, FIELD]).with(|c| c.ticks = None);
    step("A view that is older than the bound", world, Flaw::OlderThanBound);
}
