//! The checks of whole worlds: small ones, exhausted with the other tests, and deep ones by
//! `cargo test --test it model::check::deep -- --ignored --nocapture` (`PAUSEGEN_MODEL_SECONDS` each, 600 unless told;
//! `PAUSEGEN_MODEL_WORLD` for one alone).

use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use super::{
    config::{ALL, Config, Reached},
    trace::shortest,
    worlds,
};

fn run(name: &str, mut config: Config, limit: Duration, expect: &[Reached]) -> Result<bool, String> {
    let (reached, again) = (config.clone(), config.clone());
    let start = Instant::now();
    config.until = Some(start + limit);
    let checker = config
        .checker()
        .threads(1)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_dfs()
        .join();
    let took = start.elapsed();
    let exhausted = took < limit;
    println!(
        "{name}: {} transitions, {} states, depth {}, {} s, {}; reached {:?}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        took.as_secs(),
        if exhausted { "exhausted" } else { "stopped" },
        reached.all_reached(),
    );
    let found = checker.discoveries().into_iter().next().map(|(property, path)| {
        let steps: Vec<_> = match shortest(&again, 60) {
            Some(trace) => trace.lines,
            None => path.into_actions().iter().map(ToString::to_string).collect(),
        };
        format!("{name}: {property} does not hold:\n  {}", steps.join("\n  "))
    });
    let missed = expect
        .iter()
        .filter(|what| exhausted && !reached.has_reached(**what))
        .map(|what| format!("{name} never reached {what:?}"));
    let all: Vec<String> = found.into_iter().chain(missed).collect();
    if all.is_empty() {
        Ok(exhausted)
    } else {
        Err(all.join("\n"))
    }
}

/// Runs them all, and fails with everything that was wrong.
fn run_all(worlds: Vec<worlds::Named>, limit: Duration, must_exhaust: bool) {
    let mut wrong = Vec::new();
    for (name, world, expect) in worlds {
        match run(name, world, limit, expect) {
            Ok(false) if must_exhaust => wrong.push(format!("{name} is no small world any more")),
            Ok(_) => {}
            Err(what) => wrong.push(what),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Worlds that are small enough to be exhausted with the other tests.
#[test]
fn small_worlds() {
    // As long as it takes: the bound is there so that a world which grows is noticed.
    run_all(worlds::small(), Duration::from_secs(300), true);
}

#[test]
fn every_branch_is_expected_somewhere() {
    let all = worlds::small();
    for what in ALL {
        assert!(all.iter().any(|(.., expect)| expect.contains(&what)), "{what:?}");
    }
}

fn told(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[test]
#[ignore = "takes as long as it is given"]
fn deep() {
    let seconds = told("PAUSEGEN_MODEL_SECONDS").and_then(|text| text.parse().ok());
    let limit = Duration::from_secs(seconds.unwrap_or(600));
    let only = told("PAUSEGEN_MODEL_WORLD");
    let worlds = worlds::deep();
    let asked = worlds
        .into_iter()
        .filter(|(name, ..)| only.as_ref().is_none_or(|only| name.contains(only.as_str())));
    run_all(asked.collect(), limit, false);
}
