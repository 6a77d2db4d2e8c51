//! [`Space`] reserves addresses for a pool's pages and tables.
//!
//! A process may have a limit on addresses: `RLIMIT_AS`, or `RLIMIT_MEMLOCK` if it locks its
//! memory.

use crate::entry::handle::INDEX_BITS;
use crate::entry::table::Tables;
use crate::entry::word::ZSPAGE_BITS;
use crate::memory::frames::Frames;
use crate::memory::words::Words;
use crate::memory::zspages::Zspages;
use glebe_os::error::OsError;
use glebe_os::units::{Bytes, PageSize, Pages};

/// Reserved pages per page of the pool's limit. The spare half helps zspages find adjacent pages.
const PER_LIMIT: u64 = 2;
const PER_LIMIT_MIN: u64 = 1;
const LIMIT_MIN: Bytes = Bytes::mib(1);
const ENTRIES_MAX: u64 = 1 << INDEX_BITS;
const PAGES_MAX: u64 = 1 << ZSPAGE_BITS;

#[derive(Debug)]
pub(super) struct Space {
    pub(super) frames: Frames,
    pub(super) entries: Tables,
    pub(super) zspages: Words,
    pub(super) pages: u32,
}

impl Space {
    pub(super) fn for_limit(
        limit: Bytes,
        smallest: Bytes,
        page: PageSize,
    ) -> Result<Self, OsError> {
        let made = Self::reserve(limit, PER_LIMIT, smallest, page);
        made.or_else(|_| Self::reserve(limit, PER_LIMIT_MIN, smallest, page))
    }

    pub(super) fn for_all(all: Bytes, smallest: Bytes, page: PageSize) -> Result<Self, OsError> {
        let (mut limit, mut is_cut) = (all.max(LIMIT_MIN), false);
        loop {
            let made = Self::reserve(limit, PER_LIMIT, smallest, page);
            let is_least = limit == LIMIT_MIN;
            match made {
                Ok(space) if !is_cut || is_least => return Ok(space),
                // After a refusal, reserves half of what fits. The process keeps the rest.
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
