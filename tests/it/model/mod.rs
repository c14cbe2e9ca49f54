//! The protocol under a model checker: the real functions of `protocol`, in a small world, over all interleavings.

mod act;
mod check;
mod companion;
mod config;
mod controller;
mod echo;
mod live;
mod memo;
mod needed;
mod object;
mod safety;
mod steps;
mod trace;
mod world;
mod worlds;
mod write;
