//! Volatile memory of a file that several processes map: [`Shared`].
//!
//! The state belongs to the file, a memfd or a file on tmpfs, and every process that maps it sees
//! it: which *granules* are marked, which were lost, and how often each process has each *pinned*.
//! The kernel takes nothing of such memory by itself. A purge does: by any process that uses the
//! file, or by one that only looks after its memory ([`Purger`]). It takes marked granules that
//! nobody has pinned, those of the lowest priority first, and of equal priority in the order that
//! their marks say.
//!
//! A pin takes no system call. It is counted in a table of its process, which has a lock that the
//! kernel drops exactly when the process's memory goes: so the pins of a killed process are gone,
//! and its children, who have their own, keep none of them. A purger that was killed leaves some
//! granules half purged; whoever meets one goes on where it stopped.
//!
//! Volatility lasts while a process uses the file. When none does nothing is purged, and the next
//! one finds nothing marked; what was lost before it is still told by its unmarks.
//!
//! Whoever may write the file may break what it holds, but not the processes that map it: see
//! `layout`, `word`, `guard`. Locks: of bytes of the file, join before purge; none else.

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
