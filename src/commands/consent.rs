//! Asking a person before objects are changed.

use std::io::{self, BufRead, IsTerminal as _, Write as _};

/// The flags of commands that change objects.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Consent {
    /// Show what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
}

/// Nobody can be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsentError {
    /// There is no terminal.
    #[error(
        "there is no terminal to ask on, so nothing was done: see what it would do with --dry-run, and say --yes to do it"
    )]
    NoTerminal,
    /// The terminal failed.
    #[error("the answer cannot be read")]
    Read(#[from] io::Error),
}

/// What a person wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Do it.
    Go,
    /// Change nothing.
    Leave,
}

impl Consent {
    /// Whether there is a way to get an answer at all: known before anything is read.
    ///
    /// # Errors
    /// There is none.
    pub fn check(self) -> Result<(), ConsentError> {
        let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
        if self.dry_run || self.yes || can_ask {
            Ok(())
        } else {
            Err(ConsentError::NoTerminal)
        }
    }

    /// Asks, where the flags leave it open. Blocks until there is an answer.
    ///
    /// # Errors
    /// The terminal cannot be read or written.
    pub fn ask(self, question: &str) -> Result<Decision, ConsentError> {
        let Self { dry_run, yes } = self;
        if dry_run {
            return Ok(Decision::Leave);
        }
        if yes {
            return Ok(Decision::Go);
        }
        let mut out = io::stderr().lock();
        write!(out, "{question} [y/N] ")?;
        out.flush()?;
        Ok(answer(&mut io::stdin().lock())?)
    }
}

/// Anything but a yes is a no, the end of the input too.
fn answer(input: &mut impl BufRead) -> io::Result<Decision> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    Ok(match line.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Decision::Go,
        _ => Decision::Leave,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        for (text, expected) in [
            ("y\n", Decision::Go),
            (" YES \n", Decision::Go),
            ("\n", Decision::Leave),
            ("", Decision::Leave),
            ("yess\n", Decision::Leave),
            ("n\ny\n", Decision::Leave),
        ] {
            assert_eq!(answer(&mut text.as_bytes()).unwrap(), expected, "{text:?}");
        }
    }

    #[test]
    fn the_flags_answer() {
        let consent = |dry_run, yes| Consent { dry_run, yes }.ask("?").unwrap();
        assert_eq!(consent(true, false), Decision::Leave);
        assert_eq!(consent(false, true), Decision::Go);
    }
}
