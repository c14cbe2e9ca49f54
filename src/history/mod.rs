//! The history: each flip and each acknowledgement as one line of JSON, chained to the line before by SHA-256.
//!
//! - [`entry`]: what a line says, and its chain.
//! - [`mod@write`]: the file that `serve --history` writes: whole lines, repaired after a crash, rotated without a break.
//! - [`past`]: its flips, for a report.
//! - [`verify`]: finds any edit, loss, reorder or cut-off end.
//! - [`audit_log`]: the same history from the API server's own audit log.

pub mod audit_log;
pub mod entry;
pub mod past;
pub mod verify;
pub mod write;

#[cfg(test)]
mod tests;
