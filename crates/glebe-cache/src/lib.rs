//! A cache that all processes of a user share by its name.
//!
//! [`SharedCache`] stores values by key in the idle memory of the daemon that `glebe serve
//! --leases` runs, or in a volatile file where no daemon runs. The memory is divided into *places*,
//! which may vanish one by one. The hash of a key chooses its place. Each place is a table of its
//! own (`table`).
//!
//! The crate has no unsafe code. Source: FIFO queues of log-structured caches (memcached's
//! external storage, CacheLib's BigHash); seqlocks in Boehm, "Can seqlocks get along with
//! programming language memory models?" (2012).

mod cache;
mod error;
mod file;
mod long;
mod options;
mod stats;
mod store;
mod table;

pub use cache::{Found, SharedCache};
pub use error::CacheError;
pub use options::SharedCacheOptions;
pub use stats::Stats;

#[doc(no_inline)]
pub use glebe_os::{error::OsError, units};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
