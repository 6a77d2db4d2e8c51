//! Volatile memory: the kernel may free *marked* pages, and an *unmark* reports which were lost.
//!
//! A [`Region`] owns a mapping. While pages are marked, the kernel frees them when memory is short,
//! instead of swapping or failing. Lost pages then read as zeros; all others are unchanged. An
//! [`Engine`] detects the losses. A [`Cache`] holds values by key. [`Shared`] is a file of several
//! processes, which glebe itself purges.
//!
//! Any thread may mark and unmark any range of whole granules; ranges may overlap. A second mark
//! changes nothing, not even the age, unless the callback refilled pages ([`Options::on_lost`]). A
//! program must not write to marked memory. The write may silently keep the page; on a lost page it
//! raises SIGBUS (*scan*), or the page counts as lost (*tag*; in long runs perhaps as kept). A new
//! mapping over a marked part is not volatile; *tag* cannot see it ([`Options::build_over`]).
//!
//! Units: bytes from the region's start; base pages in runs of lost pages. Locks: one per region,
//! exclusive for mark, unmark and drop, shared for copies; one for the log of unmarks. Source:
//! "Volatile Ranges v10" (Minchan Kim and John Stultz, linux-mm, January 2014); madvise(2).

mod access;
mod adopted;
mod cache;
mod caps;
mod cloned;
mod engine;
mod error;
mod fork;
mod huge;
mod marks;
mod options;
mod priority;
mod refills;
mod region;
mod scan;
mod self_test;
pub(crate) mod shared;
mod state;
mod stats;
mod tag;
#[cfg(test)]
mod tests;
mod touches;
mod unmarks;

pub use crate::sys::vma::Refusal;
pub use cache::{BuildError, Cache, CacheOptions, CacheStats, Entry};
pub use engine::Engine;
pub use error::Error;
pub use fork::follow_forks;
pub use options::Options;
pub use priority::Priority;
pub use refills::Refills;
pub use region::Region;
pub use shared::{Holder, Look, Next, Order, Pin, Purger, Shared, SharedOptions, SharedStats};
pub use shared::{SharedBuildError, SharedCache, SharedCacheOptions, SharedCacheStats};
pub use stats::Stats;
pub use touches::Refill;
pub use unmarks::Purged;
