//! The webhook behind a real API server.

mod cel;
pub(crate) mod hook;
pub(crate) mod serve;
mod writes;
