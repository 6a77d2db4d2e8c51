//! The servers that `glebe serve` runs in memory that first class does not use.
//!
//! [`protocol`] reads what memcached's clients send, [`store`] keeps items in a reserve, [`server`]
//! joins them by sockets. Each uses only those before it. No unsafe code.

pub mod protocol;
pub mod server;
pub mod store;
