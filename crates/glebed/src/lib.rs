//! `glebed` lends pages of a [`Reserve`](glebe::reserve::Reserve) to other processes.
//!
//! The reserve must be built of bricks: files of one or more hugetlb pages. A lease is a block of
//! whole bricks that the reserve has unmapped, and belongs to a connection. When the connection
//! ends, the daemon cuts the bricks, so that no holder can reach them, and fills new ones.
//!
//! Three threads: the *server* answers requests, and cuts revoked bricks at once. The *keeper*
//! fills new bricks, and keeps some zeroed ahead (the *stock*). The *grower* replaces pages that
//! left the reserve, adds memory when leases need more, and gives it back. A further thread zeroes
//! a long lease that the stock cannot serve. So a request waits at most while a few pages, or a
//! brick, are zeroed, besides its own.
//!
//! Memory that leases leave idle serves named caches of users, until a lease needs it.
//!
//! The crate has no unsafe code. Source: the kernel's memfd seals; udmabuf; vhost-user.

mod caches;
mod conn;
mod daemon;
mod growth;
mod keeper;
mod leases;
mod listening;
mod quota;
mod server;
mod settings;
mod stats;
mod stock;
mod store;

pub use daemon::Daemon;
pub use settings::{Quota, Settings};
pub use stats::Stats;

/// An error for a person to read.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

type Result<T> = std::result::Result<T, Failure>;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
