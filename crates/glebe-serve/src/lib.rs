//! Runs the servers of `glebe serve` in memory that first class does not use.
//!
//! Module [`protocol`] parses requests, [`store`] keeps items, [`server`] connects both to sockets.
//! Each uses only those before it. No unsafe code.

pub mod protocol;
pub mod server;
pub mod store;
