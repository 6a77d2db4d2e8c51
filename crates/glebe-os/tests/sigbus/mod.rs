//! Tests touches of lost memory, which a callback settles or passes on.
//!
//! A process has one handler, which stays. Tests that install another one first, or die of a
//! signal, therefore run in their own process.
#![allow(unsafe_code)]

mod armed;
mod chain;
mod watch;
