//! [`Memory`]: the bytes of items in what a reserve's first class does not use. The only file that
//! calls the library for items.
//!
//! A *small* item is an object of a pool on lent pages. A *large* one is an object of the page
//! cache: its pages are stored under a number that is never used again, in order, and each once;
//! but for the first, which holds what changes of an item while its value stays. So the pages that
//! are found under a number are those of one item, or a page is missing, and then the item is.
//! Calls take no lock of ours.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use glebe::reserve::{self, LentObjectPool, Namespace, Put, Reserve};
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::zpool::{Budget, Codec, Handle};

/// Of so many bytes of a reserve one is kept beyond what items may use, so that the reserve's
/// own choice, which knows pages and not items, seldom decides what goes.
const SPARE: u64 = 32;
/// A reserve is at least this long.
const LEN_MIN: u64 = 4 << 20;

/// An item that found no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// What the memory is used for now, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    /// By items, their pages' unused parts, and the tables that find them.
    pub(super) items: u64,
    /// What items could use at most, beside first class.
    pub(super) room: u64,
    /// Of the pages of small items, what no item uses.
    pub(super) wasted: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Memory {
    reserve: Reserve,
    small: LentObjectPool,
    large: Namespace,
    page: usize,
    next: AtomicU64,
}

impl Memory {
    /// A reserve for items of `bytes`, and what is needed beside them.
    pub(super) fn new(bytes: u64) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let len = Bytes::new(bytes.saturating_add(bytes / SPARE).max(LEN_MIN));
        let reserve = Reserve::new(len)?;
        let small = reserve.object_pool().codec(Codec::None).build()?;
        let large = reserve.page_cache().namespace("items")?.without_eviction();
        let page = page_size().bytes().as_usize();
        Ok(Self { reserve, small, large, page, next: AtomicU64::new(1) })
    }

    pub(super) fn page(&self) -> usize {
        self.page
    }

    pub(super) fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    #[inline]
    pub(super) fn insert(&self, bytes: &[u8]) -> Result<u64, Full> {
        self.small.insert(bytes).map(Handle::to_raw).map_err(|_| Full)
    }

    /// Stores other bytes in place of an object's; nothing is there after an error.
    pub(super) fn replace(&self, small: u64, bytes: &[u8]) -> Result<(), Full> {
        let handle = Handle::from_raw(small).ok_or(Full)?;
        self.small.replace(handle, bytes).map_err(|_| {
            self.remove(small);
            Full
        })
    }

    /// Copies an object to the start of `buf`; its length, if it is there.
    #[inline]
    pub(super) fn read(&self, small: u64, buf: &mut [u8]) -> Option<usize> {
        self.small.read(Handle::from_raw(small)?, buf).ok().flatten()
    }

    #[inline]
    pub(super) fn len_of(&self, small: u64) -> Option<usize> {
        self.small.len_of(Handle::from_raw(small)?).ok().flatten()
    }

    pub(super) fn remove(&self, small: u64) {
        if let Some(handle) = Handle::from_raw(small) {
            // It may have been lost.
            let _ = self.small.remove(handle);
        }
    }

    /// A number for the pages of one large item.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Stores bytes as the pages of a number from `first` on: all of them, or nothing is there.
    #[inline]
    pub(super) fn put(&self, number: u64, first: u64, bytes: &[u8]) -> Result<(), Full> {
        match self.large.put_run(number, first, bytes) {
            Ok(Put::Stored) => Ok(()),
            Ok(Put::Rejected(_)) | Err(_) => Err(Full),
        }
    }

    /// Fills `buf` from the pages of a number from `first` on, if they are all there.
    #[inline]
    pub(super) fn get(&self, number: u64, first: u64, buf: &mut [u8]) -> bool {
        self.large.get_run(number, first, buf).unwrap_or(false)
    }

    /// Drops the first `pages` pages of a number.
    pub(super) fn drop_pages(&self, number: u64, pages: u64) {
        for index in 0..pages {
            let _ = self.large.invalidate_page(number, index);
        }
    }

    /// What is used now. O(pages / 512).
    pub(super) fn used(&self) -> Used {
        let (reserve, small) = (self.reserve.stats(), self.small.stats());
        let page = self.page as u64;
        let staged = small.staged.get() * page;
        let tables = small.places_bytes + small.objects.metadata_bytes;
        let total = reserve.total.get().saturating_sub(reserve.held.get()) * page;
        Used {
            items: reserve.live.get() * page + staged + tables,
            room: total.saturating_sub(total / SPARE) + small.staging.get() * page + tables,
            wasted: (small.lent.get() * page + staged).saturating_sub(small.objects.slot_bytes),
        }
    }

    /// Bytes of small items, as they were given.
    pub(super) fn object_bytes(&self) -> u64 {
        self.small.stats().objects.stored_bytes
    }

    /// Brings objects in sparse pages together, for about so long.
    pub(super) fn compact(&self, time: Duration) {
        let _ = self.small.compact(Budget::Time(time));
    }

    /// Takes `bytes` for first class, for as long as what is returned is kept.
    pub(super) fn recall(&self, bytes: u64) -> Result<Vec<reserve::Block>, reserve::Error> {
        let mut left = bytes.div_ceil(self.page as u64);
        let mut blocks = Vec::new();
        while left > 0 {
            let longest = self.reserve.largest_run()?.get().min(left);
            if longest == 0 {
                break;
            }
            blocks.push(self.reserve.alloc(Pages::new(longest))?);
            left -= longest;
        }
        Ok(blocks)
    }
}
