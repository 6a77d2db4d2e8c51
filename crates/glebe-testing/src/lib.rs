//! What the tests of several crates share.
//!
//! - [`time`]: how long a test waits for something, and how long a storm lasts.
//! - [`Scratch`]: a folder that goes when the test ends.
//! - [`memory`]: uses up memory at a limited speed.
//! - [`tools`]: commands that tests run.
//! - [`process`]: a child that runs a test, and [`alone!`], which gives a test its own process.
//!
//! A test that cannot run on this machine prints `skipped: ` and why, and returns.

pub mod memory;
pub mod process;
mod scratch;
pub mod time;
pub mod tools;

pub use scratch::Scratch;
