//! Touches of memory that is gone: settled by a callback, or passed on.
//!
//! The handler is one a process and stays, so whatever needs another one before it, or is to die,
//! runs as a process of its own.
#![allow(unsafe_code)]

mod armed;
mod chain;
mod child;
mod watch;
