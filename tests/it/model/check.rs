//! The checks that run with the other tests.

use stateright::{Checker, Model};

use super::config::{Config, Reached};

fn run(name: &str, config: Config, expect: &[Reached]) {
    let reached = config.clone();
    let start = std::time::Instant::now();
    let checker = config.checker().threads(2).spawn_bfs().join();
    println!(
        "{name}: {} states, {} unique, depth {}, {:?}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        start.elapsed()
    );
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        let steps: Vec<_> = path.into_actions().iter().map(|act| format!("  {act}")).collect();
        panic!("{name}: {property} does not hold:\n{}", steps.join("\n"));
    }
    for what in expect {
        assert!(reached.has_reached(*what), "{name} never reached {what:?}");
    }
}

#[test]
fn one_child_two_flips() {
    run("one child, two flips", Config::new(1, 2), &[Reached::Attested]);
}

#[test]
fn one_child() {
    run(
        "one child, three flips",
        Config::new(1, 3),
        &[Reached::Attested, Reached::LostRace],
    );
}
