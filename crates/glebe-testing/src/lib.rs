//! What the tests of several crates share.
//!
//! - [`time`]: how long a test waits for something, and how long a storm lasts.
//! - [`Scratch`]: a folder that goes when the test ends.
//! - [`process`]: a test that runs as a process of its own.

pub mod process;
mod scratch;
pub mod time;

pub use scratch::Scratch;
