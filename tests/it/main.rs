//! The integration tests, in one binary.

// clippy.toml allows these in test functions; helpers of tests are none.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod admission;
mod chart;
mod cli;
mod cluster_api;
mod companion;
mod deployed;
mod hostile;
mod model;
mod protocol;
mod rules;
mod sandbox;
mod support;
