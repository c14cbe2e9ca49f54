//! The main job on a real API server with the real managers and a Cluster of 21 machines.
//!
//! Each file has one test with a sandbox of its own, since a sandbox with its managers takes a minute to start; its
//! scenes follow each other on the same Cluster. Each scene begins where everything runs and is acknowledged, and says
//! when it begins, so that a failure has a place.

mod audit;
mod calm;
mod copies;
mod demo;
mod frozen;
mod killed;
mod managers;
mod moved;
mod named;
mod rig;
mod unruled;

use std::time::Instant;

/// Says when a scene begins; the test harness shows it when the test fails.
struct Scenes(Instant);

impl Scenes {
    fn begin() -> Self {
        Self(Instant::now())
    }

    fn scene(&self, what: &str) {
        println!("{:>4} s: {what}", self.0.elapsed().as_secs());
    }
}
