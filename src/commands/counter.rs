//! How far a command is, on a terminal: one line on stderr that is written again and again.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// How often the line is written at most.
const EVERY: Duration = Duration::from_millis(100);

/// A line that counts. Without a terminal it writes nothing.
#[derive(Debug)]
pub(super) struct Counter {
    shown: Option<Instant>,
    is_terminal: bool,
}

impl Counter {
    pub(super) fn new() -> Self {
        Self {
            shown: None,
            is_terminal: io::stderr().is_terminal(),
        }
    }

    /// Shows how far it is.
    pub(super) fn show(&mut self, text: &str) {
        if self.is_terminal && self.shown.is_none_or(|shown| shown.elapsed() >= EVERY) {
            self.shown = Some(Instant::now());
            write(&format!("\r\x1b[K{text}"));
        }
    }

    /// Makes room for other output.
    pub(super) fn clear(&mut self) {
        if self.shown.take().is_some() {
            write("\r\x1b[K");
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.clear();
    }
}

fn write(text: &str) {
    let mut stderr = io::stderr().lock();
    // Nobody reads it: not a reason to stop.
    drop(stderr.write_all(text.as_bytes()));
    drop(stderr.flush());
}
