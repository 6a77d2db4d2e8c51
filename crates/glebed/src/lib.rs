//! `glebed` lends pages of a [`Reserve`](glebe::reserve::Reserve) to other processes.
//!
//! The reserve must be built of bricks: each hugetlb page has a file of its own. A lease is a block
//! of whole bricks that the reserve has unmapped, and belongs to a connection. When the connection
//! ends, the daemon cuts the bricks, so that no holder can reach them, and fills new ones.
//!
//! Three threads: the *server* answers requests; the *keeper* takes bricks back and keeps some
//! zeroed ahead (the *stock*); the *grower* replaces pages that left the reserve. A request that
//! the stock cannot serve waits at most while the keeper zeroes one page, besides its own pages.
//!
//! The crate has no unsafe code. Source: the kernel's memfd seals; udmabuf; vhost-user.

mod conn;
mod daemon;
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

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
