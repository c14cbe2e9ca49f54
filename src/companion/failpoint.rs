//! Named points at which a test kills this process, to see what the next one makes of what is left.
//!
//! `PAUSEGEN_FAILPOINT=name` kills it at the first time that the point is reached, `name:3` at the third; `stop:name` stops
//! it there (SIGSTOP) until somebody lets it go on. Builds without debug assertions have none of this.

/// All of them, in the order in which one flip can reach them.
pub const ALL: [&str; 16] = [
    "companion.before-look",
    "companion.after-look",
    "companion.before-unknown",
    "companion.after-unknown",
    "companion.before-waiting-event",
    "companion.after-waiting-event",
    "companion.before-echo",
    "companion.after-echo",
    "companion.before-condition",
    "companion.after-condition",
    "companion.before-echoed-event",
    "companion.after-echoed-event",
    "companion.before-pending",
    "companion.after-pending",
    "companion.before-touch",
    "companion.after-touch",
];

/// A point is reached.
#[cfg(not(debug_assertions))]
pub(super) const fn reach(_: &str) {}

/// A point is reached.
#[cfg(debug_assertions)]
pub(super) fn reach(name: &str) {
    use std::sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    };

    use rustix::process::Signal;
    struct Wanted {
        name: String,
        left: AtomicU64,
        signal: Signal,
    }
    static WANTED: LazyLock<Option<Wanted>> = LazyLock::new(|| {
        let wanted = std::env::var("PAUSEGEN_FAILPOINT").ok()?;
        let (signal, wanted) = match wanted.strip_prefix("stop:") {
            Some(rest) => (Signal::STOP, rest),
            None => (Signal::KILL, wanted.as_str()),
        };
        let (name, times) = match wanted.split_once(':') {
            Some((name, times)) => (name, times.parse().ok()?),
            None => (wanted, 1),
        };
        Some(Wanted {
            name: name.to_owned(),
            left: AtomicU64::new(times),
            signal,
        })
    });
    debug_assert!(ALL.contains(&name), "{name} is not in the list of failpoints");
    if let Some(wanted) = &*WANTED
        && wanted.name == name
        && wanted.left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        tracing::error!(failpoint = name, signal = ?wanted.signal, "signalling this process, as PAUSEGEN_FAILPOINT asks for");
        // Nothing gets a chance to tidy up.
        rustix::process::kill_process(rustix::process::getpid(), wanted.signal).ok();
        if wanted.signal == Signal::KILL {
            std::process::abort();
        }
        // Another thread may be the one that takes the signal; this one must not go on until it has.
        std::thread::sleep(std::time::Duration::from_secs(2));
    }
}
