//! Touches of memory that is gone: settled by a callback, or passed on.
//!
//! The handler is one a process and stays, so a test that needs another one before it, or is to die,
//! has a process of its own.
#![allow(unsafe_code)]

mod armed;
mod chain;
mod watch;
