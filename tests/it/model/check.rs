//! The checks of whole worlds: small ones that run with the other tests, and deep ones by
//! `cargo test --test it model::check::deep -- --ignored --nocapture` (`PAUSEGEN_MODEL_SECONDS` each, 600 unless told).

use std::time::{Duration, Instant};

use stateright::{Checker, Model};

use super::config::{Config, Reached};

fn run(name: &str, config: Config, limit: Duration, expect: &[Reached]) {
    let reached = config.clone();
    let start = Instant::now();
    let checker = config.checker().threads(2).timeout(limit).spawn_bfs().join();
    let took = start.elapsed();
    println!(
        "{name}: {} transitions, {} states, depth {}, {} s, {}; reached {:?}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        took.as_secs(),
        if took < limit { "exhausted" } else { "stopped" },
        reached.all_reached(),
    );
    let found = checker.discoveries().into_iter().next().map(|(property, path)| {
        let steps: Vec<_> = path.into_actions().iter().map(|act| format!("  {act}")).collect();
        format!("{name}: {property} does not hold:\n{}", steps.join("\n"))
    });
    assert_eq!(found, None);
    for what in expect {
        assert!(reached.has_reached(*what), "{name} never reached {what:?}");
    }
}

const SHORT: Duration = Duration::from_secs(40);

#[test]
fn one_child_two_flips() {
    use Reached::*;
    let expect = [
        Attested,
        Clean,
        Hasty,
        Paused,
        WithoutBaseline,
        Disagrees,
        LostRace,
        ConditionTrue,
    ];
    run("one child, two flips", Config::new(1, 2), SHORT, &expect);
}

#[test]
fn time_and_restarts() {
    use Reached::*;
    let world = Config::new(1, 2).with(|c| {
        c.ticks = 2;
        (c.left.crashes, c.left.restarts) = (1, 1);
    });
    run(
        "one child, two flips, time, crash, restart",
        world,
        SHORT,
        &[Attested, Hasty],
    );
}

fn seconds() -> Duration {
    let told = std::env::var("PAUSEGEN_MODEL_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(told.unwrap_or(600))
}

#[test]
#[ignore = "takes as long as it is given"]
fn deep() {
    use Reached::*;
    let limit = seconds();
    let three = Config::new(1, 3).with(|c| (c.left.crashes, c.left.restarts) = (1, 1));
    run(
        "one child, three flips, crash, restart",
        three,
        limit,
        &[Attested, LostRace],
    );
    let two_children = Config::new(2, 3).with(|c| (c.left.crashes, c.left.restarts) = (1, 1));
    run(
        "two children, three flips, crash, restart",
        two_children,
        limit,
        &[Attested],
    );
    let inputs = Config::new(1, 3).with(|c| {
        c.flips = vec![(0, true, false), (0, false, true), (0, true, true), (1, false, true)];
        c.ticks = 2;
    });
    run(
        "field and annotation, also at once, also on the child, with time",
        inputs,
        limit,
        &[Attested],
    );
    let away = Config::new(1, 3).with(|c| (c.left.hooks, c.left.edits, c.lag) = (2, 1, true));
    run(
        "webhooks away, a spec edit, a watch that lags",
        away,
        limit,
        &[Irregular, Repaired],
    );
    let created = Config::new(2, 2).with(|c| (c.creator, c.work, c.split, c.lag) = (true, true, true, true));
    run(
        "a child created meanwhile, lists one by one",
        created,
        limit,
        &[Attested],
    );
    let joined = Config::new(1, 3).with(|c| {
        (c.outsider, c.left.joins, c.companions) = (Some(1), 2, 2);
    });
    run(
        "a child that joins and leaves, two leaders",
        joined,
        limit,
        &[Attested, LostRace],
    );
    let leases = Config::new(1, 2).with(|c| {
        (c.leases, c.ticks) = (true, 4);
        (c.left.freezes, c.left.takeovers) = (1, 1);
    });
    run("Leases, a freeze, a takeover", leases, limit, &[Settled]);
    let again = Config::new(1, 2).with(|c| (c.deletable, c.left.deletes, c.ticks) = (vec![0, 1], 1, 2));
    run("deleted, created, restored", again, limit, &[Restored]);
}
