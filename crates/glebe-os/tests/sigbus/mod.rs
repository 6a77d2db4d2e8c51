//! Tests accesses to lost pages. A callback refills the page, or passes the signal on.
//!
//! A process never removes its handler. So tests that install another handler first, or die of a
//! signal, run in their own process.
#![allow(unsafe_code)]

mod armed;
mod chain;
mod watch;
