//! The stamp, against a model of what the API server does with an answer.

mod cases;
mod properties;
mod tampering;
mod world;
