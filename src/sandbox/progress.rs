//! Tells a person how far long work is: a line that counts the seconds on a terminal, two lines otherwise.

use std::io::{IsTerminal as _, Write as _};
use std::time::Instant;

/// One piece of work.
#[derive(Debug)]
pub(super) struct Progress {
    what: String,
    start: Instant,
    /// The seconds that the terminal shows, if it is one.
    shown: Option<u64>,
    done: bool,
}

impl Progress {
    pub(super) fn start(what: impl Into<String>) -> Self {
        let shown = std::io::stderr().is_terminal().then_some(0);
        let this = Self {
            what: what.into(),
            start: Instant::now(),
            shown,
            done: false,
        };
        this.write("", if shown.is_some() { "..." } else { " ...\n" });
        this
    }

    /// Shows the time, where somebody sees it.
    pub(super) fn tick(&mut self) {
        let seconds = self.start.elapsed().as_secs();
        if self.shown.is_some_and(|shown| shown < seconds) {
            self.shown = Some(seconds);
            self.write("\r", &format!("... {seconds} s"));
        }
    }

    pub(super) fn done(mut self) {
        self.done = true;
        let start = if self.shown.is_some() { "\r" } else { "" };
        self.write(start, &format!(": done in {} s\n", self.start.elapsed().as_secs()));
    }

    fn write(&self, before: &str, after: &str) {
        let mut stderr = std::io::stderr().lock();
        // Nobody reads it: not a reason to stop.
        drop(write!(stderr, "{before}{}{after}", self.what));
        drop(stderr.flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if !self.done && self.shown.is_some() {
            // The error that follows starts on a line of its own.
            self.write("\r", ": failed\n");
        }
    }
}

/// Shows how long something takes.
///
/// # Errors
///
/// Its own.
pub async fn during<T, E>(what: &str, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let mut progress = Progress::start(what);
    tokio::pin!(work);
    loop {
        tokio::select! {
            result = &mut work => {
                let result = result?;
                progress.done();
                return Ok(result);
            }
            () = tokio::time::sleep(std::time::Duration::from_millis(250)) => progress.tick(),
        }
    }
}
