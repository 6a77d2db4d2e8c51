//! [`Space`] reserves addresses for a pool's pages and tables.
//!
//! Addresses are no memory, but a process may have a limit on them: `RLIMIT_AS`, or
//! `RLIMIT_MEMLOCK` if it locks its memory. A pool without a limit takes at most half of the
//! addresses that the process may have. Unit: bytes held, or pages.

use crate::entry::handle::INDEX_BITS;
use crate::entry::table::Tables;
use crate::entry::word::ZSPAGE_BITS;
use crate::memory::frames::Frames;
use crate::memory::words::Words;
use crate::memory::zspages::Zspages;
use glebe_os::error::OsError;
use glebe_os::units::{Bytes, PageSize, Pages};

/// Pages of addresses per page of the limit: runs need adjacent pages, and free ones may be
/// scattered.
const PER_LIMIT: u64 = 2;
/// Fallback for a process that may have fewer addresses.
const PER_LIMIT_MIN: u64 = 1;
const LIMIT_MIN: Bytes = Bytes::mib(1);
const ENTRIES_MAX: u64 = 1 << INDEX_BITS;
/// Each page may be a zspage.
const PAGES_MAX: u64 = 1 << ZSPAGE_BITS;

#[derive(Debug)]
pub(super) struct Space {
    pub(super) frames: Frames,
    pub(super) entries: Tables,
    pub(super) zspages: Words,
    pub(super) pages: u32,
}

impl Space {
    /// Reserves space for a pool that may hold `limit` in objects of at least `smallest` bytes.
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

    /// Reserves space for a pool that may hold `all`, or less if the process may not have the
    /// addresses.
    ///
    /// # Errors
    /// See [`Space::for_limit`]. Not even a small pool fits then.
    pub(super) fn for_all(all: Bytes, smallest: Bytes, page: PageSize) -> Result<Self, OsError> {
        let (mut limit, mut is_cut) = (all.max(LIMIT_MIN), false);
        loop {
            let made = Self::reserve(limit, PER_LIMIT, smallest, page);
            let is_least = limit == LIMIT_MIN;
            match made {
                Ok(space) if !is_cut || is_least => return Ok(space),
                // Halves once more: the process keeps the other half.
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
