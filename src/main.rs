//! The `pausegen` command: parses its arguments and hands over.

fn main() {}
