//! Volatile memory: the kernel may free *marked* pages, and an *unmark* reports which were lost.
//!
//! A [`Region`] owns a mapping. The kernel frees marked pages when memory is short; after the
//! unmark, lost pages read as zeros. An [`Engine`], *scan* or *tag*, detects the losses. A
//! [`Cache`] holds values by key. [`Shared`] is a file that several processes map.
//!
//! Any thread may mark and unmark any range of whole granules; ranges may overlap. A second mark of
//! a page changes nothing unless the callback refilled it ([`Options::on_lost`]). Do not write to
//! marked memory: the write may keep the page, raise SIGBUS (*scan*), or make the unmark report
//! the page as lost (*tag*). The kernel never frees what the program maps over a marked part
//! ([`Options::build_over`]).
//!
//! Units: bytes from the region's start; base pages in runs of lost pages. Lock: one per region.
//! Source: "Volatile Ranges v10" (Minchan Kim and John Stultz, linux-mm, January 2014); madvise(2).
#![deny(unsafe_code)]
// With `--cfg loom`, only the models and the checked code remain.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

#[cfg(not(loom))]
mod access;
#[cfg(not(loom))]
mod adopted;
#[cfg(not(loom))]
mod cache;
#[cfg(not(loom))]
mod caps;
#[cfg(not(loom))]
mod cloned;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod huge;
#[cfg(not(loom))]
mod marks;
#[cfg(loom)]
mod models;
#[cfg(not(loom))]
mod options;
mod priority;
#[cfg(not(loom))]
mod refills;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod scan;
#[cfg(not(loom))]
mod self_test;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod shed;
#[cfg(loom)]
mod shared {
    mod order;
    pub(crate) mod protocol;
    pub(crate) mod word;

    pub(crate) use crate::models::ledger;
    pub(crate) use order::Order;
}
#[cfg(not(loom))]
mod state;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
mod tag;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(not(loom))]
mod touches;
#[cfg(not(loom))]
mod unmarks;

pub use priority::Priority;

#[cfg(not(loom))]
pub use {
    cache::{BuildError, Cache, CacheOptions, CacheStats, Entry},
    engine::Engine,
    error::Error,
    fork::follow_forks,
    glebe_os::internal::sys::memory::vma::Refusal,
    options::Options,
    refills::Refills,
    region::Region,
    shared::{Holder, Look, Next, Order, Pin, Purger, Shared, SharedOptions, SharedStats},
    shared::{SharedBuildError, SharedCache, SharedCacheOptions, SharedCacheStats},
    stats::Stats,
    touches::Refill,
    unmarks::Purged,
};

#[cfg(not(loom))]
#[doc(no_inline)]
pub use glebe_os::{error::OsError, extent, page_size, units};

/// Items for `glebe` and tests only.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod internal {
    pub use crate::cache::region_of;
    pub use crate::caps::limit_marked;
    pub use crate::options::without_pagemap_scan;
    pub use crate::shared::{has_contents, is_marked, mark_present, part_of};
    pub use crate::shed::Shed;
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
