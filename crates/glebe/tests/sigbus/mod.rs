//! Touches of memory that is gone: settled by a callback, or passed on.
//!
//! A process has one handler, which stays. So a test has a process of its own if it installs
//! another handler first, or if a signal kills it.
#![allow(unsafe_code)]

mod armed;
mod chain;
mod watch;
