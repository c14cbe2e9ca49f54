//! A local control plane.
pub mod exec;
