//! Criterion benchmarks of the admission handler.

fn main() {}
