//! The worlds that are checked. Each is about something; together they hold everything that the protocol has to bear.
//!
//! Wherever nothing else is said, time has no end, the companion may crash once, and the staleness bound is two ticks.
//! Every controller may restart and lose what it was doing at any time (see `controller`).

use super::{
    act::Person,
    config::{
        Config, LeaseOf,
        Reached::{self, *},
    },
    object::{Role, Way},
};

/// Its name, the world, and what is to be reached in it.
pub(super) type Named = (&'static str, Config, &'static [Reached]);

const FIELD: Person = Person::Flip {
    slot: 0,
    field: true,
    annotation: false,
};

fn world(children: usize, flips: u8) -> Config {
    Config::new(children, flips).with(|c| {
        (c.ticks, c.left.crashes) = (None, 1);
        c.lively = 1;
    })
}

fn role(role: Role, flips: u8) -> Config {
    world(2, flips).with(|c| {
        c.second = role;
        c.left.crashes = 0;
    })
}

fn deleted_while_frozen(flips: u8, ticks: u8) -> Config {
    Config::new(1, flips).with(|c| {
        (c.leases, c.ticks, c.prompt) = (LeaseOf::Managers, Some(ticks), true);
        (c.deletable, c.left.deletes, c.left.freezes) = (vec![1], 1, 1);
    })
}

/// The smallest world of all: a Cluster and two children in processes of their own, three flips, a crash of the companion.
fn smallest() -> Config {
    world(2, 3)
}

const EVERY_FLIP: [(usize, bool, bool); 4] = [(0, true, false), (0, false, true), (0, true, true), (1, false, true)];

/// Exhausted with the other tests, in a debug build.
pub(super) fn small() -> Vec<Named> {
    let hook = |on| Person::Hook { flip: on, keys: on };
    vec![
        (
            "a Cluster and a child, three flips",
            world(1, 3).with(|c| (c.left.crashes, c.lively) = (0, 4)),
            &[
                Attested, Settled, Paused, Running, Clean, Hasty, Settling, Disagrees, LostRace,
            ],
        ),
        (
            "as that, two flips, a crash",
            world(1, 2),
            &[Attested, Settled, BaselineTaken],
        ),
        (
            "as that, with conditions and a spec edit, two flips",
            world(1, 2).with(|c| {
                (c.conditions, c.prompt, c.left.edits, c.left.crashes) = (true, true, 1, 0);
                c.lively = 4;
            }),
            &[ConditionTrue, ConditionFalse, ConditionPending, Raised, LeftBehind],
        ),
        (
            "a cold start: no baseline but the Cluster's own generation",
            world(0, 2).with(|c| (c.warm, c.lively) = (false, 1)),
            &[OwnGeneration],
        ),
        (
            "field and annotation, also at once, two flips",
            world(1, 2).with(|c| {
                c.flips = EVERY_FLIP.to_vec();
                (c.left.crashes, c.lively, c.prompt) = (0, 4, true);
            }),
            &[Attested, PausedSelf],
        ),
        (
            "webhooks that go and come, and are enforced late",
            world(1, 0).with(|c| {
                c.script = vec![FIELD, hook(false), hook(true), FIELD, FIELD];
                (c.late, c.prompt, c.left.crashes, c.lively) = (true, true, 0, 16);
            }),
            &[Irregular, Repaired, Marked],
        ),
        (
            "a pair of flips that no webhook sees, with conditions",
            world(0, 0).with(|c| {
                c.script = vec![FIELD, hook(false), FIELD, FIELD];
                (c.conditions, c.left.crashes, c.lively) = (true, 0, 16);
            }),
            &[ConditionTrue],
        ),
        (
            "lists one by one, and a child that is made meanwhile",
            role(Role::Owned, 1).with(|c| (c.creator, c.split, c.ticks, c.lively) = (true, true, Some(0), 0)),
            &[Attested],
        ),
        ("a child that others refer to", role(Role::Referenced, 1), &[Attested]),
        ("a condition that tells no input", role(Role::Vague, 2), &[Unclear]),
        ("attestedBy: bound", role(Role::Bound, 2), &[OnlyTime, Settled]),
        ("attestedBy: none", role(Role::NotAsked, 2), &[Excluded, Attested]),
        ("managed elsewhere", role(Role::Managed, 1), &[Excluded]),
        ("without an owner yet", role(Role::Ownerless, 1), &[Excluded]),
        (
            "one that says nothing",
            role(Role::Mute, 1).with(|c| (c.grace, c.lively) = (Some(1), 0)),
            &[SaysNothing, NotReporting],
        ),
        (
            "a reference to a kind without a rule",
            role(Role::Unruled, 1).with(|c| (c.grace, c.lively) = (Some(1), 0)),
            &[Unruled, NotReporting],
        ),
        (
            "no Lease where the rule names one",
            world(1, 2).with(|c| (c.leases, c.prompt, c.left.crashes) = (LeaseOf::Absent, true, 0)),
            &[LeaseAbsent, Settled],
        ),
        (
            "Leases, a freeze, a takeover",
            Config::new(1, 2).with(|c| {
                (c.leases, c.ticks, c.prompt) = (LeaseOf::Managers, Some(3), true);
                (c.left.freezes, c.left.takeovers, c.lively) = (1, 1, 16);
            }),
            &[Settled],
        ),
        (
            "a child that leaves, and may come again",
            world(1, 2).with(|c| {
                (c.ways, c.left.joins) = (vec![(1, Way::Label)], 2);
                (c.prompt, c.left.crashes, c.lively) = (true, 0, 16);
            }),
            &[Leaving, Attested],
        ),
        (
            "as that, frozen and seen by a companion that has just begun, one flip",
            Config::new(1, 1).with(|c| {
                (c.ways, c.left.joins, c.prompt) = (vec![(1, Way::Label)], 1, true);
                (c.leases, c.ticks) = (LeaseOf::Managers, Some(3));
                (c.left.freezes, c.left.crashes, c.lively) = (1, 1, 16);
            }),
            &[Leaving],
        ),
        (
            "a child that is managed elsewhere for a time",
            world(1, 2).with(|c| {
                (c.ways, c.left.joins) = (vec![(1, Way::Here)], 2);
                (c.prompt, c.left.crashes, c.lively) = (true, 0, 16);
            }),
            &[Leaving, Excluded],
        ),
        (
            "an attestor that applies for a time",
            world(1, 1).with(|c| {
                (c.ways, c.left.joins) = (vec![(1, Way::Attestor)], 2);
                (c.prompt, c.lively) = (true, 16);
            }),
            &[Leaving],
        ),
        (
            "the Cluster's own attestor applies for a time",
            world(0, 2).with(|c| (c.ways, c.left.joins) = (vec![(0, Way::Attestor)], 2)),
            &[Leaving, Settled],
        ),
        (
            "owners that come and go: a member by its owner alone",
            role(Role::Owned, 1).with(|c| {
                (c.ways, c.left.joins) = (vec![(1, Way::Label), (2, Way::Owner)], 1);
                (c.prompt, c.left.crashes, c.lively) = (true, 1, 16);
            }),
            &[Leaving],
        ),
        (
            "owners that come and go: nobody answers for who has none",
            role(Role::Ownerless, 1).with(|c| {
                (c.ways, c.left.joins) = (vec![(2, Way::Owner)], 2);
                (c.prompt, c.lively) = (true, 16);
            }),
            &[Leaving, Excluded],
        ),
        (
            "a child that is deleted, and created anew, one flip",
            world(1, 1).with(|c| {
                (c.deletable, c.left.deletes, c.prompt) = (vec![1], 1, true);
                c.left.crashes = 0;
            }),
            &[Gone, Attested],
        ),
        (
            "a child that is deleted while it is frozen, one flip",
            deleted_while_frozen(1, 2),
            &[Gone],
        ),
        (
            "deleted, created anew, created paused, restored",
            world(1, 1).with(|c| {
                (c.deletable, c.left.deletes, c.left.crashes) = (vec![0], 1, 0);
                (c.prompt, c.lively) = (true, 1);
            }),
            &[Restored, Created],
        ),
        (
            "a Cluster that is deleted, and created anew under its name",
            Config::new(0, 0).with(|c| {
                let anew = Person::Create {
                    slot: 0,
                    restore: false,
                    paused: false,
                };
                (c.script, c.ticks) = (vec![FIELD, Person::Delete { slot: 0 }, anew, FIELD], None);
            }),
            &[Settled, Attested, BaselineTaken],
        ),
        (
            "copies with force, while the keys webhook is away",
            role(Role::Member, 2).with(|c| {
                c.flips = vec![(1, false, true), (2, false, true)];
                (c.keys_away, c.left.hooks, c.left.copies) = (true, 2, 1);
                (c.prompt, c.ticks) = (true, Some(0));
                c.lively = 0;
            }),
            &[Irregular, Marked],
        ),
        (
            "forged words",
            world(1, 1).with(|c| (c.left.forges, c.left.crashes) = (1, 0)),
            &[PutBack],
        ),
        (
            "a new stamp asked for",
            world(1, 0).with(|c| {
                c.script = vec![FIELD, Person::Touch { slot: 0 }, FIELD];
                c.left.crashes = 0;
            }),
            &[Touched],
        ),
    ]
}

/// As deep as there is time.
pub(super) fn deep() -> Vec<Named> {
    vec![
        (
            "the smallest world: two children, three flips, a crash",
            smallest(),
            &[Attested, Settled, LostRace],
        ),
        (
            "as that, kinds listed one by one",
            smallest().with(|c| (c.split, c.lively) = (true, 64)),
            &[Attested, Settled, LostRace],
        ),
        (
            "as that, two leaders, no crash",
            smallest().with(|c| (c.companions, c.left.crashes, c.lively) = (2, 0, 64)),
            &[Attested, Settled, LostRace],
        ),
        (
            "two children, four flips, a crash",
            world(2, 4).with(|c| c.lively = 64),
            &[Attested, Settled],
        ),
        (
            "conditions and a spec edit, three flips, a crash",
            world(1, 3).with(|c| (c.conditions, c.left.edits) = (true, 1)),
            &[ConditionTrue, ConditionFalse, Raised, LeftBehind],
        ),
        (
            "field and annotation, also at once, also on the child, three flips",
            world(1, 3).with(|c| {
                c.flips = EVERY_FLIP.to_vec();
                c.left.crashes = 0;
            }),
            &[Attested, PausedSelf],
        ),
        (
            "webhooks that go and come, enforced late, three flips",
            world(1, 3).with(|c| {
                (c.left.hooks, c.late, c.left.crashes, c.lively) = (2, true, 0, 64);
            }),
            &[Irregular, Repaired],
        ),
        (
            "as that, with conditions and a spec edit, a Cluster alone",
            world(0, 3).with(|c| {
                (c.left.hooks, c.late, c.conditions) = (2, true, true);
                (c.left.crashes, c.left.edits, c.lively) = (0, 1, 64);
            }),
            &[Raised],
        ),
        (
            "a watch that lags, five ticks, three flips",
            Config::new(1, 3).with(|c| (c.lag, c.ticks, c.lively) = (true, Some(5), 64)),
            &[Attested, Settled],
        ),
        (
            "a child made meanwhile, owned, lists one by one, three flips",
            world(2, 3).with(|c| (c.creator, c.second, c.split, c.lively) = (true, Role::Owned, true, 64)),
            &[Attested],
        ),
        (
            "a child that joins and leaves, with an old condition",
            world(1, 3).with(|c| (c.outsider, c.left.joins, c.ways) = (Some(1), 2, vec![(1, Way::Label)])),
            &[Attested],
        ),
        (
            "Leases, a freeze, a takeover, five ticks",
            Config::new(1, 3).with(|c| {
                (c.leases, c.ticks, c.lively) = (LeaseOf::Managers, Some(5), 64);
                (c.left.freezes, c.left.takeovers) = (1, 1);
            }),
            &[Settled, Attested],
        ),
        (
            "a child that leaves, is managed elsewhere, comes back; field and annotation",
            world(1, 3).with(|c| {
                c.flips = vec![(0, true, false), (0, false, true)];
                (c.ways, c.left.joins) = (vec![(1, Way::Label), (1, Way::Here)], 2);
                c.lively = 64;
            }),
            &[Leaving, Attested],
        ),
        (
            "a child that leaves, Leases, a freeze, a crash, five ticks",
            Config::new(1, 2).with(|c| {
                c.flips = vec![(0, true, false), (0, false, true)];
                (c.ways, c.left.joins) = (vec![(1, Way::Label)], 2);
                (c.leases, c.ticks, c.lively) = (LeaseOf::Managers, Some(5), 64);
                (c.left.freezes, c.left.crashes) = (1, 1);
            }),
            &[Leaving],
        ),
        (
            "a child that leaves and comes, a watch that lags, five ticks, two flips",
            Config::new(1, 2).with(|c| {
                (c.ways, c.left.joins) = (vec![(1, Way::Label)], 2);
                (c.outsider, c.lag, c.ticks, c.lively) = (Some(1), true, Some(5), 64);
            }),
            &[Leaving],
        ),
        (
            "a child that is deleted, and created anew, two flips, a crash",
            world(1, 2).with(|c| (c.deletable, c.left.deletes, c.prompt) = (vec![1], 1, true)),
            &[Gone, Attested],
        ),
        (
            "a child that is deleted while it is frozen",
            deleted_while_frozen(2, 3),
            &[Gone],
        ),
        (
            "deleted twice, created, restored",
            world(1, 2).with(|c| (c.deletable, c.left.deletes, c.left.crashes) = (vec![0, 1], 2, 0)),
            &[Restored, Created],
        ),
        (
            "attestedBy: bound, three flips, a crash",
            world(2, 3).with(|c| c.second = Role::Bound),
            &[OnlyTime],
        ),
    ]
}
