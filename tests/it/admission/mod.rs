//! The webhook behind a real API server.

mod cel;
mod certificates;
pub(crate) mod hook;
pub(crate) mod serve;
mod writes;
