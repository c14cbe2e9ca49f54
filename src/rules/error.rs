//! What is wrong with a rules file: every mistake with its line, its column, and what to do.

use std::fmt;

use serde_saphyr::{Error as YamlError, Location};

use crate::protocol::object::truncate;

/// How many bytes are shown of a line, and of what is wrong with it: a file may hold anything.
const SHOWN: usize = 400;
/// How many mistakes are shown of a file.
const LISTED: usize = 50;

/// A rules file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// The file cannot be read.
    #[error("cannot read the rules file {origin}")]
    Read {
        /// Its path.
        origin: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is not YAML, or not of the shape of a rules file.
    #[error("{0}")]
    Shape(Mistakes),
    /// It is of the right shape and contradicts itself.
    #[error("{0}")]
    Meaning(Mistakes),
}

impl RulesError {
    /// The mistakes; none where the file could not be read.
    #[must_use]
    pub fn mistakes(&self) -> &[Mistake] {
        match self {
            Self::Read { .. } => &[],
            Self::Shape(mistakes) | Self::Meaning(mistakes) => &mistakes.mistakes,
        }
    }
}

/// The mistakes in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistakes {
    /// The name of the file.
    pub origin: String,
    /// The mistakes, in the order of the file.
    pub mistakes: Vec<Mistake>,
}

/// A mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Line, from 1; 0 where it is unknown.
    pub line: u64,
    /// Column, from 1.
    pub column: u64,
    /// The text of that line.
    pub text: String,
    /// What is wrong.
    pub message: String,
    /// What to do; may be empty.
    pub help: String,
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, mistake) in self.mistakes.iter().take(LISTED).enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            mistake.write(&self.origin, f)?;
        }
        let more = self.mistakes.len().saturating_sub(LISTED);
        if more > 0 {
            write!(f, "\n{}: and {more} more", self.origin)?;
        }
        Ok(())
    }
}

impl Mistake {
    /// A mistake at a place in a text.
    pub(super) fn at(source: &str, location: Location, message: impl Into<String>, help: impl Into<String>) -> Self {
        let line = location.line();
        let text = usize::try_from(line)
            .ok()
            .and_then(|line| source.lines().nth(line.checked_sub(1)?))
            .unwrap_or_default();
        Self {
            line,
            column: location.column(),
            text: cut(text.to_owned()),
            message: cut(message.into()),
            help: help.into(),
        }
    }

    /// What the YAML parser or serde found, in our words.
    pub(super) fn of_yaml(source: &str, error: &YamlError) -> Self {
        let location = error.location().unwrap_or(Location::UNKNOWN);
        let known = |names: &[&str]| format!("known here: {}", names.join(", "));
        let (message, help) = match innermost(error) {
            YamlError::SerdeUnknownField { field, expected, .. } => {
                (format!("unknown field `{field}`"), known(expected))
            }
            YamlError::SerdeUnknownVariant { variant, expected, .. } => {
                (format!("unknown value `{variant}`"), known(expected))
            }
            YamlError::SerdeMissingField { field, .. } => (
                format!("the field `{field}` is missing"),
                "add it to the object that this line is in".to_owned(),
            ),
            YamlError::SerdeInvalidType {
                unexpected, expected, ..
            }
            | YamlError::SerdeInvalidValue {
                unexpected, expected, ..
            } => (format!("{unexpected} does not fit here"), format!("write {expected}")),
            YamlError::DuplicateMappingKey { key, .. } => (
                match key {
                    Some(key) => format!("the key `{key}` is there twice"),
                    None => "a key is there twice".to_owned(),
                },
                "remove one of the two".to_owned(),
            ),
            YamlError::MultipleDocuments { .. } => (
                "the file has more than one document".to_owned(),
                "keep one: a rules file is a single document".to_owned(),
            ),
            YamlError::NullIntoString { .. } => (
                "a text is missing here".to_owned(),
                "write a value, in quotes if it reads like null".to_owned(),
            ),
            YamlError::Unexpected { expected, .. } => {
                ("this does not fit here".to_owned(), format!("write {expected}"))
            }
            YamlError::Message { msg, .. } => (msg.clone(), String::new()),
            YamlError::ExternalMessage { msg, .. } => (format!("this is not YAML: {msg}"), String::new()),
            YamlError::Eof { .. } => (
                "the file is empty or ends too early".to_owned(),
                "`pausegen rules print` shows what one looks like".to_owned(),
            ),
            other => (without_position(&other.to_string()), String::new()),
        };
        Self::at(source, location, message, help)
    }

    fn write(&self, origin: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(f, "{origin}: {}", self.message)?;
        } else {
            let number = self.line.to_string();
            let gap = " ".repeat(number.len());
            let before: String = self
                .text
                .chars()
                .take(usize::try_from(self.column.saturating_sub(1)).unwrap_or(0))
                .map(|c| if c == '\t' { '\t' } else { ' ' })
                .collect();
            writeln!(f, "{origin}:{number}:{}: {}", self.column, self.message)?;
            write!(f, "  {number} | {}", self.text)?;
            if before.len() <= SHOWN {
                write!(f, "\n  {gap} | {before}^")?;
            }
        }
        if !self.help.is_empty() {
            write!(f, "\n  help: {}", self.help)?;
        }
        Ok(())
    }
}

fn cut(mut text: String) -> String {
    if text.len() > SHOWN {
        truncate(&mut text, SHOWN);
        text.push_str("...");
    }
    text
}

fn innermost(error: &YamlError) -> &YamlError {
    match error.without_snippet() {
        YamlError::AliasError { error, .. } => innermost(error),
        other => other,
    }
}

/// The parser's texts end with a position of their own.
fn without_position(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    first
        .rfind(" at line ")
        .and_then(|at| first.get(..at))
        .unwrap_or(first)
        .to_owned()
}
