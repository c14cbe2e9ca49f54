//! The steps of the world, and how they read in a trace.

use std::fmt;

use super::{
    controller::{Deed, Reconcile},
    object::Way,
};

/// What people (and controllers that copy annotations) do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Person {
    Flip {
        slot: usize,
        field: bool,
        annotation: bool,
    },
    Edit {
        slot: usize,
    },
    /// What makes somebody answer for an object comes, or goes.
    Way {
        slot: usize,
        way: Way,
        there: bool,
    },
    Delete {
        slot: usize,
    },
    Create {
        slot: usize,
        restore: bool,
        paused: bool,
    },
    Forge {
        slot: usize,
    },
    Touch {
        slot: usize,
    },
    Copy {
        from: usize,
        to: usize,
    },
    Hook {
        flip: bool,
        keys: bool,
    },
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    Person(Person),
    /// The API server's own view of the webhook configuration catches up.
    Enforce,
    Reconcile(Reconcile),
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

pub(crate) const NAMES: [&str; 3] = ["the Cluster", "child 1", "child 2"];

impl fmt::Display for Person {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = |slot: &usize| NAMES[*slot];
        match self {
            Self::Flip {
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
            Self::Edit { slot } => write!(f, "a person edits the spec of {}", n(slot)),
            Self::Way {
                slot,
                way: Way::Here,
                there,
            } => write!(
                f,
                "{} is {} as managed elsewhere",
                n(slot),
                if *there { "no longer marked" } else { "marked" }
            ),
            Self::Way { slot, way, there } => write!(
                f,
                "{} {} {}",
                n(slot),
                if *there { "gets" } else { "loses" },
                match way {
                    Way::Owner => "its owner",
                    Way::Attestor => "the label by which its controller answers for it",
                    Way::Label | Way::Here => "the Cluster's label",
                }
            ),
            Self::Delete { slot } => write!(f, "{} is deleted", n(slot)),
            Self::Create {
                slot, restore: true, ..
            } => write!(f, "{} is restored with its annotations", n(slot)),
            Self::Create { slot, paused: true, .. } => write!(f, "{} is created paused", n(slot)),
            Self::Create { slot, .. } => write!(f, "{} is created", n(slot)),
            Self::Forge { slot } => write!(f, "a person writes `acknowledged` on {}", n(slot)),
            Self::Touch { slot } => write!(f, "a person asks for a new stamp of {}", n(slot)),
            Self::Copy { from, to } => write!(f, "the annotations of {} are copied onto {}", n(from), n(to)),
            Self::Hook { flip: true, keys: true } => f.write_str("the webhook configuration is there again"),
            Self::Hook { flip: true, .. } => f.write_str("the keys webhook is away"),
            Self::Hook { .. } => f.write_str("the webhook configuration is taken away"),
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = |slot: &usize| NAMES[*slot];
        match self {
            Self::Person(person) => person.fmt(f),
            Self::Enforce => f.write_str("the API server sees the webhook configuration as it stands"),
            Self::Reconcile(Reconcile { who, deed, .. }) => match deed {
                Deed::Write(paused) => write!(
                    f,
                    "the controller of {} answers `{}`",
                    n(who),
                    match (paused.field, paused.annotation) {
                        (false, false) => "not paused",
                        (true, false) => "paused by the field",
                        (false, true) => "paused by the annotation",
                        (true, true) => "paused by field and annotation",
                    }
                ),
                Deed::Create => write!(f, "the controller of {} creates child 2", n(who)),
            },
            Self::Restart(who) => write!(f, "the controller of {} restarts, and reads what is older", n(who)),
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
