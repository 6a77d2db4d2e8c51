//! An allocator whose `free` marks memory volatile: a page layer of its own under mimalloc.
//!
//! Freed memory stays mapped and can be used again at once, while the kernel may take it as soon as
//! anyone needs it. Small objects are mimalloc's ([`engine`]); which of its memory is free, and
//! what of that goes back to the system, is decided here.
#![deny(unsafe_code)]

pub mod engine;
