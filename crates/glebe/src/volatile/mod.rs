//! Volatile memory: its contents may vanish while it is *marked*, and an *unmark* tells exactly
//! which pages did.
//!
//! A [`Region`] is a mapping. [`Region::mark`] gives the kernel the right to take pages when it
//! needs memory; it frees them then instead of swapping or failing. [`Region::unmark`] takes the
//! right back and returns the pages that were lost, which are zeros now; the others have every
//! byte. Two engines do that ([`Engine`]). A [`Cache`] does it for values by key; [`Shared`], whose
//! rules are its own, for a file of several processes, of which glebe itself purges.
//!
//! Offsets and lengths are bytes from the region's start; runs of lost pages are in base pages.
//! Any range of whole granules may be marked and unmarked any number of times, overlapping or
//! not, by any thread. Marking what is marked changes nothing of it, its age included, but for what
//! a callback refilled ([`Options::on_lost`]). While memory is marked it must not be written: a
//! write may cancel the kernel's right to the page without a word or, where the page is gone, raise
//! SIGBUS (*scan*) or be reported as lost (*tag*; with huge pages it may be taken for what was
//! there). What is mapped anew over a marked part is not volatile, but for *tag*, which cannot see
//! it ([`Options::build_over`]).
//!
//! One lock a region: whoever marks, unmarks or drops holds it alone, whoever reads or writes
//! by the calls here shares it. Beside it, held for a few instructions, the log of unmarks under
//! way. The one callback is [`Options::on_lost`]. Source: "Volatile Ranges v10" (Minchan Kim and
//! John Stultz, linux-mm, January 2014); madvise(2).

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
