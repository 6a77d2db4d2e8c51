//! Helpers for the tests of several crates.
//!
//! - [`time`]: limits on waits, and lengths of storms.
//! - [`Scratch`]: a folder that is removed when the test ends.
//! - [`memory`]: uses up memory at a limited speed.
//! - [`tools`]: commands that tests run.
//! - [`process`]: a child that runs a test; [`alone!`] gives a test its own process.
//!
//! A test that cannot run on this machine prints `skipped: ` and why, and returns.

pub mod memory;
pub mod process;
mod scratch;
pub mod time;
pub mod tools;

pub use scratch::Scratch;
