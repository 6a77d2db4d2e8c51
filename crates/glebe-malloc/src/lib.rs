//! An allocator that marks freed memory volatile: a page layer under mimalloc.
//!
//! Freed memory stays mapped and ready for use, while the kernel may take it. mimalloc manages
//! objects ([`engine`]); this crate manages mimalloc's free memory. mimalloc calls a hook in
//! [`heap`], [`pages`] knows each slice's state, and a thread marks free slices and gives memory
//! back. A [`gate`] shows each allocating call whether work is due.
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
/// Items for the crate `glebe-preload` only.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod internal {
    pub use crate::keeper::Own;
}
