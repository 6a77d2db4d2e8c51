//! [`Space`]: the addresses that a pool reserves, for its pages and for its tables.
//!
//! Addresses are no memory, but a process may have a limit on them (`RLIMIT_AS`, or
//! `RLIMIT_MEMLOCK` where it locks its memory). A pool with a limit of its own then takes what that
//! limit needs, or is refused. A pool without one takes at most half of what can be had, and the
//! process keeps the rest. Unit: bytes of objects and of all that belongs to them, and pages.

use crate::error::OsError;
use crate::units::{Bytes, PageSize, Pages};
use crate::zpool::entry::handle::INDEX_BITS;
use crate::zpool::entry::table::Tables;
use crate::zpool::entry::word::ZSPAGE_BITS;
use crate::zpool::memory::frames::Frames;
use crate::zpool::memory::words::Words;
use crate::zpool::memory::zspages::Zspages;

/// Addresses for each page of the limit: runs of pages are taken where they fit, so that what is
/// free may lie in pieces.
const PER_LIMIT: u64 = 2;
/// Where there are no more addresses.
const PER_LIMIT_MIN: u64 = 1;
/// The least limit that addresses are reserved for.
const LIMIT_MIN: Bytes = Bytes::mib(1);
/// Entries that are numbered at most.
const ENTRIES_MAX: u64 = 1 << INDEX_BITS;
/// Pages that are numbered at most: each may be a zspage.
const PAGES_MAX: u64 = 1 << ZSPAGE_BITS;

/// See the module.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) frames: Frames,
    pub(super) entries: Tables,
    pub(super) zspages: Words,
    /// Pages of the frames.
    pub(super) pages: u32,
}

impl Space {
    /// Space for a pool that may hold `limit`, whose objects take `smallest` each at least.
    ///
    /// # Errors
    /// What mmap(2) refuses: a limit of the process.
    pub(super) fn for_limit(
        limit: Bytes,
        smallest: Bytes,
        page: PageSize,
    ) -> Result<Self, OsError> {
        let made = Self::reserve(limit, PER_LIMIT, smallest, page);
        made.or_else(|_| Self::reserve(limit, PER_LIMIT_MIN, smallest, page))
    }

    /// Space for a pool that may hold all memory that is available, or as much as the process may
    /// have addresses for.
    ///
    /// # Errors
    /// As [`Space::for_limit`], where not even a small pool fits.
    pub(super) fn for_all(all: Bytes, smallest: Bytes, page: PageSize) -> Result<Self, OsError> {
        let (mut limit, mut is_cut) = (all.max(LIMIT_MIN), false);
        loop {
            let made = Self::reserve(limit, PER_LIMIT, smallest, page);
            let is_least = limit == LIMIT_MIN;
            match made {
                Ok(space) if !is_cut || is_least => return Ok(space),
                // The rest of the process keeps as much.
                Ok(_) => is_cut = false,
                Err(error) if is_least => return Err(error),
                Err(_) => is_cut = true,
            }
            limit = Bytes::new(limit.get() / 2).max(LIMIT_MIN);
        }
    }

    fn reserve(
        limit: Bytes,
        per_limit: u64,
        smallest: Bytes,
        page: PageSize,
    ) -> Result<Self, OsError> {
        let held = limit.max(LIMIT_MIN);
        let pages = held.pages_up(page).get().saturating_mul(per_limit).min(PAGES_MAX);
        let entries = (held.get() / smallest.get().max(1)).clamp(1, ENTRIES_MAX);
        Ok(Self {
            frames: Frames::new(Pages::new(pages), page)?,
            entries: Tables::new(entries as usize, page, Words::new)?,
            zspages: Words::new(Zspages::table_len(pages as usize))?,
            pages: pages as u32,
        })
    }
}
