//! What the demo says, and whether what it claims has held.

use std::io::Write as _;

/// How wide a line of text gets.
const WIDTH: usize = 100;

/// Writes the narration to stdout and keeps count of the claims.
#[derive(Debug, Default)]
pub(super) struct Narration {
    held: usize,
    failed: usize,
}

impl Narration {
    /// A new part of the story.
    pub(super) fn heading(&self, text: &str) {
        self.line(&format!("\n== {text}"));
    }

    /// Plain text, wrapped.
    pub(super) fn say(&self, text: &str) {
        self.wrapped("", text);
    }

    /// An empty line.
    pub(super) fn pause(&self) {
        self.line("");
    }

    /// A command that is run.
    pub(super) fn command(&self, args: &[&str]) {
        let args: Vec<String> = args.iter().map(|arg| quoted(arg)).collect();
        self.line(&format!("  $ kubectl {}", args.join(" ")));
    }

    /// Something that was read.
    pub(super) fn show(&self, text: &str) {
        for line in text.lines() {
            self.line(&format!("      {line}"));
        }
    }

    /// A longer text that was read.
    pub(super) fn quote(&self, text: &str) {
        self.wrapped("      ", text);
    }

    /// A result, and whether it is so.
    pub(super) fn claim(&mut self, holds: bool, text: &str) {
        let verdict = if holds {
            self.held += 1;
            "ok    "
        } else {
            self.failed += 1;
            "FAILED"
        };
        self.line(&format!("  {verdict}  {text}"));
    }

    /// How many claims have held.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// How many claims have not held.
    pub(super) fn failed(&self) -> usize {
        self.failed
    }

    fn wrapped(&self, indent: &str, text: &str) {
        let mut line = indent.to_owned();
        for word in text.split_whitespace() {
            if line.len() > indent.len() {
                if line.chars().count() + 1 + word.chars().count() > WIDTH {
                    self.line(&line);
                    indent.clone_into(&mut line);
                } else {
                    line.push(' ');
                }
            }
            line.push_str(word);
        }
        self.line(&line);
    }

    #[allow(clippy::unused_self, reason = "all output goes through here")]
    fn line(&self, text: &str) {
        let mut stdout = std::io::stdout().lock();
        // A reader that has gone does not stop the demo: its exit code still counts.
        drop(writeln!(stdout, "{text}"));
    }
}

/// An argument as one types it in a shell.
fn quoted(arg: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !arg.is_empty() && arg.chars().all(plain) {
        arg.to_owned()
    } else {
        format!("'{arg}'")
    }
}
