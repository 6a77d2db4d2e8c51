//! Helpers for the tests of several crates.
//!
//! - [`time`]: limits on waits, and lengths of storms.
//! - [`Scratch`]: a folder that is removed when the test ends.
//! - [`memory`]: uses up memory at a limited speed.
//! - [`tools`] runs commands.
//! - [`cgroup`]: a memory cgroup with a limit; [`inside`] runs a test's body in one.
//! - [`child`]: a forked child that answers a question; [`steered`]: one that its parent directs
//!   through pipes.
//! - [`openmetrics`]: a strict parser of statistics.
//! - [`stressed`]: random numbers, contents that identify their owner, signals.
//! - [`turn`]: a lock between test processes.
//! - [`real_time`]: a real-time thread that waits for an ordinary one.
//! - [`process`]: a child that runs a test; [`alone!`] gives a test its own process.
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

pub use scratch::Scratch;
