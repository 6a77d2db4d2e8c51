//! User-space memory system for Linux: see the README.
//!
//! The modules form an ordered list; each uses only those above it in this list.
#![deny(unsafe_code)]

// L0: vocabulary, no I/O.
pub mod error;
pub mod extent;
pub mod stats;
pub mod sync;
pub mod units;

// L1: the only files that call the kernel.
pub mod sys;

#[doc(inline)]
pub use sys::probe;

// L2: pure arithmetic.
pub mod free_tree;

// L3: mapped bytes.
pub mod mapping;

// L4: parts usable alone.
pub mod contig;
pub mod vmap;
pub mod volatile;
pub mod zpool;

// L5
pub mod reserve;

/// The README's example, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
