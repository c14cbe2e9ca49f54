//! The steps of the world, and how they read in a trace.

use std::fmt;

/// What people (and controllers that copy annotations) do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Person {
    Flip { slot: usize, field: bool, annotation: bool },
    Edit { slot: usize },
    Member { slot: usize, member: bool },
    Delete { slot: usize },
    Create { slot: usize, restore: bool, paused: bool },
    Forge { slot: usize },
    Copy { from: usize, to: usize },
    Hook { flip: bool, keys: bool },
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    Person(Person),
    /// The next version of its own object reaches a controller.
    Own(usize),
    /// The next version of the Cluster reaches a child's controller.
    Parent(usize),
    /// A reconcile begins with what the caches show.
    Reconcile(usize),
    /// A reconcile ends; with `fail` before it has written what it writes last, with `create` it has made a child.
    Land {
        who: usize,
        fail: bool,
        create: bool,
    },
    Restart(usize),
    Freeze(usize),
    Thaw(usize),
    /// Another process takes the Lease of a frozen one.
    Takeover(usize),
    /// The companion's watch shows the newest version.
    Deliver {
        who: usize,
        slot: usize,
    },
    SeeHook(usize),
    Baselines {
        who: usize,
        slot: usize,
    },
    Check(usize),
    Look {
        who: usize,
        slot: usize,
    },
    List(usize),
    Echo(usize),
    Mark(usize),
    Project {
        who: usize,
        slot: usize,
    },
    Crash(usize),
    Tick,
}

const NAMES: [&str; 3] = ["the Cluster", "child 1", "child 2"];

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = |slot: &usize| NAMES[*slot];
        match self {
            Self::Person(person) => match person {
                Person::Flip {
                    slot,
                    field,
                    annotation,
                } => write!(
                    f,
                    "a person flips {} of {}",
                    match (field, annotation) {
                        (true, true) => "field and annotation",
                        (true, false) => "the field",
                        _ => "the annotation",
                    },
                    n(slot)
                ),
                Person::Edit { slot } => write!(f, "a person edits the spec of {}", n(slot)),
                Person::Member { slot, member: true } => write!(f, "{} gets the Cluster's label", n(slot)),
                Person::Member { slot, .. } => write!(f, "{} loses the Cluster's label", n(slot)),
                Person::Delete { slot } => write!(f, "{} is deleted", n(slot)),
                Person::Create {
                    slot, restore: true, ..
                } => write!(f, "{} is restored with its annotations", n(slot)),
                Person::Create { slot, paused: true, .. } => write!(f, "{} is created paused", n(slot)),
                Person::Create { slot, .. } => write!(f, "{} is created", n(slot)),
                Person::Forge { slot } => write!(f, "a person writes `acknowledged` on {}", n(slot)),
                Person::Copy { from, to } => write!(f, "the annotations of {} are copied onto {}", n(from), n(to)),
                Person::Hook { flip, keys } => {
                    let word = |on: &bool| if *on { "there" } else { "away" };
                    write!(f, "webhooks: flip is {}, keys is {}", word(flip), word(keys))
                }
            },
            Self::Own(who) => write!(f, "the controller of {} sees its object's next version", n(who)),
            Self::Parent(who) => write!(f, "the controller of {} sees the Cluster's next version", n(who)),
            Self::Reconcile(who) => write!(f, "the controller of {} begins a reconcile", n(who)),
            Self::Land { who, fail: true, .. } => write!(f, "the reconcile of {} fails", n(who)),
            Self::Land { who, create: true, .. } => write!(f, "the reconcile of {} creates its child", n(who)),
            Self::Land { who, .. } => write!(f, "the reconcile of {} ends", n(who)),
            Self::Restart(who) => write!(f, "the controller of {} restarts", n(who)),
            Self::Freeze(who) => write!(f, "the controller of {} freezes", n(who)),
            Self::Thaw(who) => write!(f, "the controller of {} thaws", n(who)),
            Self::Takeover(who) => write!(f, "another process takes the Lease for {}", n(who)),
            Self::Deliver { slot, .. } => write!(f, "the companion's watch shows {}", n(slot)),
            Self::SeeHook(_) => f.write_str("the companion sees the webhook configuration"),
            Self::Baselines { slot, .. } => write!(f, "the companion takes baselines for {}", n(slot)),
            Self::Check(_) => f.write_str("a consistent list finds the companion's watch current"),
            Self::Look { slot, .. } => write!(f, "the companion looks at {}", n(slot)),
            Self::List(_) => f.write_str("the companion lists the next kind"),
            Self::Echo(_) => f.write_str("the companion writes the echo"),
            Self::Mark(_) => f.write_str("the companion writes `pending`"),
            Self::Project { slot, .. } => write!(f, "the companion writes the condition of {}", n(slot)),
            Self::Crash(_) => f.write_str("the companion crashes and starts again"),
            Self::Tick => f.write_str("time passes"),
        }
    }
}
