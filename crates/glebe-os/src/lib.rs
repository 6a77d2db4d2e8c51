//! Shared parts of the glebe crates. Programs use [`units`], [`extent`], [`error`], [`stats`] and
//! [`probe`]; `internal` is for the other crates only.
#![deny(unsafe_code)]
// Under `--cfg loom`, some code and imports are unused.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

pub mod error;
pub mod extent;
#[doc(hidden)]
pub mod internal;
pub mod units;

/// Statistics of every part of glebe.
#[cfg(not(loom))]
pub mod stats {
    pub use crate::internal::stats::{Latency, Line};
}

#[cfg(not(loom))]
#[doc(inline)]
pub use internal::sys::{page_size, probe};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
