//! This module is for the other crates of glebe only, and changes without notice.
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::new_without_default
)]

pub mod extents;
pub mod hash;
#[cfg(not(loom))]
pub mod mapping;
#[cfg(not(loom))]
pub mod registers;
#[cfg(not(loom))]
pub mod size;
#[cfg(not(loom))]
pub mod stats;
pub mod sync;
#[cfg(not(loom))]
pub mod sys;
#[cfg(not(loom))]
pub mod words;
