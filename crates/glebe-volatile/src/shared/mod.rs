//! Volatile memory of a file that several processes map: [`Shared`].
//!
//! The file, a memfd or a file on tmpfs, holds the state for all processes that map it: the marked
//! *granules*, the lost ones, and the *pins* of each process on each granule. Only purges free this
//! memory, never the kernel. Any process that uses the file may purge, and so may a [`Purger`]. A
//! purge takes marked granules without pins: lowest priority first, then by [`Order`].
//!
//! A pin of present granules makes no system call. It counts in a table of its process, together
//! with a lock that the kernel releases exactly when the process's memory ends. So the pins of a
//! killed process end with it, and a forked child inherits none. If a purger is killed halfway, the
//! next process that meets one of its granules finishes the purge.
//!
//! Volatility lasts while some process uses the file. Without one nothing is purged. The next user
//! finds nothing marked, but its unmarks still return earlier losses.
//!
//! A process that may write the file can spoil its contents, not crash the processes that map it:
//! see `layout`, `word`, `guard`. Locks: bytes of the file, join before purge.

mod cache;
mod guard;
mod holder;
mod layout;
pub(crate) mod ledger;
mod options;
mod order;
mod pin;
pub(crate) mod protocol;
mod purge;
mod purger;
mod region;
mod shed;
mod stats;
mod store;
#[cfg(test)]
mod tests;
mod wait;
pub(crate) mod word;

pub use cache::{SharedBuildError, SharedCache, SharedCacheOptions, SharedCacheStats};
pub use options::SharedOptions;
pub use order::Order;
pub use pin::Pin;
pub use purger::{Holder, Look, Purger};
pub use region::Shared;
pub use shed::Next;
pub use stats::Stats as SharedStats;
