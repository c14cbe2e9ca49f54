//! Finds any edit, loss, reorder or cut-off end. Streaming: the files may be larger than the memory.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use super::entry::{self, Entry, Event, Head, LineError};

/// A line of a history is not longer than this.
pub(super) const LONGEST: usize = 1 << 20;
/// How many problems are kept; the rest is counted.
const KEPT: usize = 1000;

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// The line, from 1; 0 for the file as a whole.
    pub line: u64,
    /// What is wrong.
    pub what: What,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// The content is not that of its hash.
    Edited,
    /// It is no line of a history.
    NoLine(String),
    /// The last line was not written to its end.
    Truncated {
        /// How many bytes of it are there.
        bytes: u64,
    },
    /// Lines are missing before this one.
    Missing {
        /// The first that is missing.
        from: u64,
        /// The last that is missing.
        to: u64,
        /// Whether a whole file is missing, by where it happens.
        at_start_of_file: bool,
    },
    /// The line stands after one that comes later, or twice.
    Reordered {
        /// Its number.
        seq: u64,
        /// The number that belongs here.
        expected: u64,
    },
    /// The number is right, and the line before is not the one that it was chained to.
    OtherBefore,
    /// The writer had no room, and says so.
    Lost {
        /// How many events.
        events: u64,
    },
    /// The head that was expected is not in the chain: its end is cut off, or it is another chain.
    NoHead(String),
    /// The file that is written to is not there, and rotated ones are.
    NoLast,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        match &self.what {
            What::Edited => f.write_str(": edited: the content is not that of its hash"),
            What::NoLine(why) => write!(f, ": no line of a history: {why}"),
            What::Truncated { bytes } => write!(
                f,
                ": the last line is cut off after {bytes} bytes: a crash, a full disk, or a cut. What comes before is whole"
            ),
            What::Missing {
                from,
                to,
                at_start_of_file,
            } => {
                let what = if *at_start_of_file {
                    "a file is missing before this one"
                } else {
                    "lines are missing"
                };
                write!(f, ": {what}: {from} to {to}")
            }
            What::Reordered { seq, expected } => {
                write!(
                    f,
                    ": line {seq} stands where {expected} belongs: reordered, or there twice"
                )
            }
            What::OtherBefore => {
                f.write_str(": it was chained to another line than the one before it: that one was replaced")
            }
            What::Lost { events } => write!(f, ": the writer had no room for {events} events"),
            What::NoLast => f.write_str(
                ": is not there, and files before it are: what was written last is missing, unless the writer was stopped while \
                 it began this file",
            ),
            What::NoHead(head) => write!(
                f,
                ": the head {head} is not in the chain: its end is cut off, or it is another one"
            ),
        }
    }
}

/// What a check has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Lines that are as they were written.
    pub lines: u64,
    /// When the first and the last of them were written.
    pub span: Option<(String, String)>,
    /// The hash of the last line: to be kept elsewhere, for `--expect-head`.
    pub head: Head,
    /// Torn ends that a later start has repaired, and named.
    pub recovered: u64,
    /// What is wrong; at most a thousand.
    pub problems: Vec<Problem>,
    /// How many problems there are beyond those.
    pub more: u64,
}

/// A history cannot be checked.
#[derive(Debug, thiserror::Error)]
#[error("{file} cannot be opened or read")]
pub struct VerifyError {
    file: String,
    source: io::Error,
}

/// The files of a history: those that were rotated (`NAME.000001`, ...) in their order, then the one that is written to.
///
/// # Errors
/// The folder cannot be read, or nothing of that name is there.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, VerifyError> {
    let failed = |source| VerifyError {
        file: path.display().to_string(),
        source,
    };
    let mut found: Vec<PathBuf> = rotated(path).map_err(failed)?.into_values().collect();
    if path.exists() {
        found.push(path.to_owned());
    }
    if found.is_empty() {
        let why = std::fs::metadata(path).err();
        return Err(failed(why.unwrap_or_else(|| io::ErrorKind::NotFound.into())));
    }
    Ok(found)
}

/// The rotated files, by their number.
pub(super) fn rotated(path: &Path) -> io::Result<BTreeMap<u64, PathBuf>> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Ok(BTreeMap::new());
    };
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let file = entry.file_name();
        let number = file
            .to_str()
            .and_then(|file| file.strip_prefix(name)?.strip_prefix('.'))
            .filter(|digits| digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok());
        if let Some(number) = number {
            found.insert(number, entry.path());
        }
    }
    Ok(found)
}

/// Checks a history with all that was rotated from it.
///
/// # Errors
/// As [`files`] and [`verify`].
pub fn verify_all(path: &Path, expect_head: Option<&str>) -> Result<(Vec<PathBuf>, Verified), VerifyError> {
    let found = files(path)?;
    let mut verified = verify(&found, expect_head)?;
    if found.last().is_none_or(|last| last != path) {
        verified.problems.push(Problem {
            file: path.display().to_string(),
            line: 0,
            what: What::NoLast,
        });
    }
    Ok((found, verified))
}

/// Checks files, in their order.
///
/// # Errors
/// A file cannot be read. What is wrong with one is no error but a problem.
pub fn verify(paths: &[PathBuf], expect_head: Option<&str>) -> Result<Verified, VerifyError> {
    let mut check = Check::new(expect_head);
    for path in paths {
        let name = path.display().to_string();
        let failed = |source| VerifyError {
            file: name.clone(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        check.file(&name, BufReader::new(file)).map_err(failed)?;
    }
    Ok(check.end())
}

struct Check {
    result: Verified,
    expected: Option<String>,
    has_head: bool,
    last_file: String,
    /// A line that is not whole, until it is known whether the next one names it: file, line, bytes, digest.
    torn: Option<(String, u64, u64, String)>,
}

impl Check {
    fn new(expect_head: Option<&str>) -> Self {
        Self {
            result: Verified::default(),
            expected: expect_head.map(str::to_ascii_lowercase),
            has_head: false,
            last_file: String::new(),
            torn: None,
        }
    }

    fn problem(&mut self, file: &str, line: u64, what: What) {
        if self.result.problems.len() < KEPT {
            self.result.problems.push(Problem {
                file: file.to_owned(),
                line,
                what,
            });
        } else {
            self.result.more += 1;
        }
    }

    fn file(&mut self, name: &str, mut reader: impl BufRead) -> io::Result<()> {
        self.last_file = name.to_owned();
        let mut number = 0;
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let read = reader.by_ref().take(LONGEST as u64).read_until(b'\n', &mut bytes)?;
            if read == 0 {
                break;
            }
            number += 1;
            let is_whole = bytes.last() == Some(&b'\n');
            if is_whole {
                bytes.pop();
            }
            let text = String::from_utf8_lossy(&bytes);
            match entry::read(&text) {
                Ok((entry, hash)) => self.entry(name, number, entry, hash),
                Err(LineError::Edited { entry, hash }) => {
                    self.settle_torn();
                    self.problem(name, number, What::Edited);
                    // What follows was chained to what it said before.
                    self.result.head = Head {
                        next: entry.seq.saturating_add(1),
                        hash,
                    };
                }
                Err(LineError::Shape(why)) => {
                    self.settle_torn();
                    if is_whole {
                        self.torn = Some((name.to_owned(), number, bytes.len() as u64, entry::digest(&bytes)));
                        // Kept as a problem unless the next line names it.
                        self.problem(name, number, What::NoLine(why));
                    } else {
                        self.problem(
                            name,
                            number,
                            What::Truncated {
                                bytes: bytes.len() as u64,
                            },
                        );
                    }
                }
            }
        }
        Ok(())
    }

    fn settle_torn(&mut self) {
        self.torn = None;
    }

    fn entry(&mut self, file: &str, line: u64, entry: Entry, hash: String) {
        if let Event::Recovered { bytes, sha256 } = &entry.event
            && let Some((torn_file, torn_line, torn_bytes, digest)) = self.torn.take()
            && (*bytes, sha256) == (torn_bytes, &digest)
        {
            self.result
                .problems
                .retain(|problem| problem.file != torn_file || problem.line != torn_line);
            self.result.recovered += 1;
        }
        self.settle_torn();
        let Head { next, hash: before } = self.result.head.clone();
        match entry.seq.cmp(&next) {
            std::cmp::Ordering::Greater => {
                let what = What::Missing {
                    from: next,
                    to: entry.seq - 1,
                    at_start_of_file: line == 1,
                };
                self.problem(file, line, what);
            }
            std::cmp::Ordering::Less => {
                let what = What::Reordered {
                    seq: entry.seq,
                    expected: next,
                };
                self.problem(file, line, what);
            }
            std::cmp::Ordering::Equal if entry.prev != before => self.problem(file, line, What::OtherBefore),
            std::cmp::Ordering::Equal => {}
        }
        if let Event::Lost { events } = entry.event {
            self.problem(file, line, What::Lost { events });
        }
        if self.expected.as_ref() == Some(&hash) {
            self.has_head = true;
        }
        self.result.lines += 1;
        match &mut self.result.span {
            Some((_, last)) => last.clone_from(&entry.at),
            None => self.result.span = Some((entry.at.clone(), entry.at)),
        }
        self.result.head = Head {
            next: entry.seq.saturating_add(1),
            hash,
        };
    }

    fn end(mut self) -> Verified {
        if let Some(head) = self.expected.take().filter(|_| !self.has_head) {
            let file = self.last_file.clone();
            self.problem(&file, 0, What::NoHead(head));
        }
        self.result
    }
}
