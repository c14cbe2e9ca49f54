//! The webhook behind a real API server.

mod cel;
mod hook;
mod serve;
mod writes;
