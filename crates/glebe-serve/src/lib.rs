//! Runs the servers of `glebe serve` in memory that first-class clients do not use.
//!
//! Module [`protocol`] parses requests, [`store`] keeps items, [`server`] connects both to sockets,
//! [`watch`] tells clients what happens. [`scrape`] answers Prometheus. The crate has no unsafe
//! code.

pub mod protocol;
pub mod scrape;
pub mod server;
pub mod store;
pub mod watch;
