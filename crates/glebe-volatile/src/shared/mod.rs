//! [`Shared`]: volatile memory of a file that several processes map.
//!
//! The file is a memfd or lies on tmpfs. It records marked and lost *granules*, and each process's
//! *pins*. The kernel never frees this memory: any process that maps the file may purge marked
//! granules without pins, lowest priority first, then by [`Order`].
//!
//! Pins count while their process holds a lock, so the pins of a killed process end. The next
//! process that meets a killed purger's granule finishes the purge. Marks end when no process uses
//! the file; losses stay recorded.
//!
//! A hostile process can spoil the contents, but not crash other processes: see `layout`, `word`,
//! `guard`. Locks are bytes of the file; the join lock precedes the purge lock.

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
pub use pin::{part_of, Pin};
pub use purger::{Holder, Look, Purger};
pub use region::{has_contents, is_marked, mark_present, Shared};
pub use shed::Next;
pub use stats::Stats as SharedStats;
