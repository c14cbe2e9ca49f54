//! The way to something false, written out for people.

use pausegen::protocol::{
    intent::State,
    keys::{ACKNOWLEDGED, GENERATION},
};
use stateright::{Checker, HasDiscoveries, Model};

use super::{
    act::{Act, NAMES, Person},
    config::Config,
    object::{CLUSTER, Parts},
    world::World,
};

/// A way to something false.
pub(crate) struct Trace {
    pub(crate) property: &'static str,
    /// How many steps it takes.
    pub(crate) depth: usize,
    pub(crate) states: usize,
    /// The steps, and what is false at the end.
    pub(crate) lines: Vec<String>,
}

/// The shortest way to something false, of at most so many steps. The checker stops some states after the first that is
/// false, so it is asked again for a shorter way until there is none.
pub(crate) fn shortest(config: &Config, depth: usize) -> Option<Trace> {
    let mut found = search(config, depth)?;
    while let Some(shorter) = search(config, found.depth + 1) {
        found = shorter;
    }
    Some(found)
}

fn search(config: &Config, depth: usize) -> Option<Trace> {
    let checker = config
        .clone()
        .checker()
        .threads(1)
        .target_max_depth(depth)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let states = checker.unique_state_count();
    // Several can be false at once.
    let (property, path) = checker.discoveries().into_iter().min_by_key(|(name, _)| *name)?;
    let steps = path.into_vec();
    let mut lines: Vec<String> = steps
        .iter()
        .zip(steps.iter().skip(1))
        .filter_map(|((before, act), (after, _))| Some(line(config, before, act.as_ref()?, after)))
        .collect();
    let depth = lines.len();
    if let Some((world, _)) = steps.last() {
        lines.push(end(config, world, property));
    }
    Some(Trace {
        property,
        depth,
        states,
        lines,
    })
}

fn line(config: &Config, before: &World, act: &Act, after: &World) -> String {
    let mut text = act.to_string();
    match act {
        Act::Person(Person::Flip { slot, .. } | Person::Create { slot, .. } | Person::Copy { to: slot, .. }) => {
            text.push_str(&keys(after, *slot));
        }
        Act::Echo(_) | Act::Mark(_) => {
            let changed = (0..config.slots).find(|slot| before.slots[*slot].stored != after.slots[*slot].stored);
            text.push_str(&changed.map_or(": the API server refuses it".to_owned(), |slot| keys(after, slot)));
        }
        Act::Reconcile(what) => {
            let seen = after.view(what.who, CLUSTER).unwrap_or_default();
            let all = after.slots[CLUSTER].flips;
            let behind =
                u32::from(all[0] - seen[0]) + u32::from(if what.who == CLUSTER { all[1] - seen[1] } else { 0 });
            match behind {
                0 => {}
                1 => text.push_str(", from a view that the last flip is not in"),
                n => text.push_str(&format!(", from a view that the last {n} flips are not in")),
            }
        }
        _ => {}
    }
    text
}

fn keys(world: &World, slot: usize) -> String {
    let Some(object) = &world.slots[slot].stored else {
        return String::new();
    };
    match (object.key(GENERATION), object.key(ACKNOWLEDGED)) {
        (Some(generation), Some(word)) => format!(": generation {generation}, {word}"),
        _ => ": unseen".to_owned(),
    }
}

fn end(config: &Config, world: &World, property: &str) -> String {
    if let Some(bad) = world.bad {
        return bad.to_owned();
    }
    for (slot, name) in NAMES.iter().enumerate().take(config.slots) {
        let Some(object) = &world.slots[slot].stored else {
            continue;
        };
        let least = if property == "no false condition" {
            [world.slots[slot].flips[0], 0]
        } else {
            world.slots[slot].stamped
        };
        let what = if property == "no false condition" {
            "`kubectl wait` for the condition succeeds".to_owned()
        } else if let Some(word) = object.key(ACKNOWLEDGED).filter(|word| State::parse(word).is_some()) {
            format!("{name} says `{word}`")
        } else {
            continue;
        };
        let on = [object.on(0), object.on(1)];
        let is_paused = on[0] || on[1];
        if let Some(who) = world.has_not_seen(config, slot, least) {
            return format!("{what}, and the controller of {} has not seen the flip", NAMES[who]);
        }
        if property != "acknowledged when flips stop" && slot == CLUSTER {
            return format!(
                "{what}, though it is {}",
                if is_paused { "paused" } else { "not paused" }
            );
        }
    }
    property.to_owned()
}
