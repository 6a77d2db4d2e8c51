//! Tests accesses to lost pages, which a callback refills or passes on.
//!
//! A process never removes its handler. So tests that install another handler first, or die of a
//! signal, run in their own process.
#![allow(unsafe_code)]

mod armed;
mod chain;
mod watch;
