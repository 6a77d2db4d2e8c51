//! Helpers for the tests of several crates.
//!
//! - [`time`]: limits on waits, and lengths of storms.
//! - [`Scratch`]: a folder that is removed when the test ends.
//! - [`memory`]: uses up memory at a limited speed.
//! - [`tools`]: commands that tests run.
//! - [`child`]: a forked child that answers a question.
//! - [`real_time`]: a real-time thread that waits for an ordinary one.
//! - [`process`]: a child that runs a test; [`alone!`] gives a test its own process.
//!
//! A test that cannot run on this machine prints `skipped: ` and why, and returns.

pub mod child;
pub mod memory;
#[cfg(loom)]
pub mod model;
pub mod process;
pub mod real_time;
mod scratch;
pub mod time;
pub mod tools;

pub use scratch::Scratch;
