//! Helpers for the tests of several crates.
//!
//! A test that cannot run on this machine prints `skipped: ` with the reason, and returns.

// A helper panics where the test should fail, and the names of fields and errors say enough.
#![allow(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

#[cfg(not(loom))]
pub mod cgroup;
pub mod child;
#[cfg(not(loom))]
pub mod inside;
pub mod memory;
#[cfg(loom)]
pub mod model;
pub mod openmetrics;
pub mod process;
pub mod real_time;
mod scratch;
pub mod steered;
#[cfg(not(loom))]
pub mod stressed;
pub mod time;
pub mod tools;
pub mod turn;
mod two_nodes;

pub use scratch::Scratch;
pub use two_nodes::two_nodes;
