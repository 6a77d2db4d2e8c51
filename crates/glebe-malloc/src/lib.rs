//! An allocator whose `free` marks memory volatile: a page layer of its own under mimalloc.
//!
//! Freed memory stays mapped and can be used again at once, while the kernel may take it the moment
//! anyone needs it. Small objects are mimalloc's ([`engine`]); which of its memory is free, and
//! what of that goes back to the system, is decided here: [`heap`] has mimalloc's hook, [`pages`]
//! knows what each slice is, a thread marks and gives back, and every call reads a [`gate`].
#![deny(unsafe_code)]

pub(crate) mod sync;

pub mod pages;

#[cfg_attr(loom, allow(dead_code))] // The models use a part.
pub(crate) mod bell;

#[cfg(not(loom))]
pub mod engine;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
pub mod gate;
#[cfg(not(loom))]
mod global;
#[cfg(not(loom))]
pub mod heap;
#[cfg(not(loom))]
mod keeper;
#[cfg(not(loom))]
pub mod options;
#[cfg(not(loom))]
pub mod stats;
#[cfg(not(loom))]
pub mod text;

#[cfg(not(loom))]
pub use global::Glebe;
#[cfg(not(loom))]
#[doc(hidden)]
pub use keeper::Own;
