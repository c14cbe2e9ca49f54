//! What people and machines read: the audit, its renderings, and the history.
//!
//! - [`model`]: the answer of an audit, a row for each object. This is also what `-o json` writes.
//! - [`audit`]: objects and rules in, rows out. Pure, and it asks the protocol's own functions, so that it never says
//!   other than the companion does.
//! - [`survey`]: who has answered, by the very look that the companion takes.
//! - [`select`]: which objects get a row.
//! - [`describe`]: one object at length.
//! - [`files`]: objects from files instead of a cluster.
//! - [`text`]: what makes foreign text safe to print.
//! - [`render`]: one file for each output format.

pub mod audit;
pub mod describe;
pub mod files;
pub mod flip;
pub mod model;
pub mod render;
pub mod select;
pub mod survey;
pub mod text;
pub mod waiting;

#[cfg(test)]
mod tests;
