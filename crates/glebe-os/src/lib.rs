//! What the crates of glebe share. Programs use [`units`], [`extent`], [`error`], [`stats`] and
//! [`probe`]; the rest is in `internal`, and for the other crates alone.
#![deny(unsafe_code)]
// Under `--cfg loom` only what models run is there.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

pub mod error;
pub mod extent;
#[doc(hidden)]
pub mod internal;
pub mod units;

/// Statistics as every part of glebe gives them.
#[cfg(not(loom))]
pub mod stats {
    pub use crate::internal::stats::{Latency, Line};
}

#[cfg(not(loom))]
#[doc(inline)]
pub use internal::sys::{page_size, probe};

// Its examples are tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
