//! [`Memory`]: the bytes of items in what a reserve's first class does not use. The only file that
//! calls the library for items.
//!
//! All of it is the page cache's. The pages of a number are stored once, in one run, and never
//! change; but for the first of a large item, which holds what changes while its value stays. So
//! the pages that are found under a number are those that were stored, or a page is missing, and
//! what lay there is lost. Calls take no lock.

use std::sync::atomic::{AtomicU64, Ordering};

use glebe::reserve::{self, Namespace, Put, Reserve};
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};

/// Of so many bytes of a reserve one is kept beyond what items may use, so that the reserve's
/// own choice, which knows pages and not items, seldom decides what goes.
const SPARE: u64 = 32;
/// A reserve is at least this long, and a multiple of the other.
const LEN_MIN: u64 = 4 << 20;
const UNIT: u64 = 2 << 20;

/// An item that found no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// What the memory is used for now, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    /// By items, and their pages' unused parts.
    pub(super) items: u64,
    /// What items could use at most, beside first class.
    pub(super) room: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Memory {
    reserve: Reserve,
    items: Namespace,
    page: usize,
    next: AtomicU64,
}

impl Memory {
    /// A reserve of at most `bytes`, unless it would be too short.
    pub(super) fn new(bytes: u64) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let len = Bytes::new((bytes - bytes % UNIT).max(LEN_MIN));
        let reserve = Reserve::new(len)?;
        let items = reserve.page_cache().namespace("items")?.without_eviction();
        let page = page_size().bytes().as_usize();
        Ok(Self { reserve, items, page, next: AtomicU64::new(1) })
    }

    pub(super) fn page(&self) -> usize {
        self.page
    }

    pub(super) fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    /// A number for the pages of one large item.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Stores bytes as the pages of a number from `first` on: all of them, or nothing is there.
    #[inline]
    pub(super) fn put(&self, number: u64, first: u64, bytes: &[u8]) -> Result<(), Full> {
        match self.items.put_run(number, first, bytes) {
            Ok(Put::Stored) => Ok(()),
            Ok(Put::Rejected(_)) | Err(_) => Err(Full),
        }
    }

    /// Fills `buf` from the pages of a number from `first` on, if they are all there.
    #[inline]
    pub(super) fn get_run(&self, number: u64, first: u64, buf: &mut [u8]) -> bool {
        self.items.get_run(number, first, buf).unwrap_or(false)
    }

    /// Fills `buf` from the bytes of a number from `offset` on, if they are all there.
    #[inline]
    pub(super) fn get_part(&self, number: u64, offset: usize, buf: &mut [u8]) -> bool {
        self.items.get_part(number, offset as u64, buf).unwrap_or(false)
    }

    /// Drops the first `pages` pages of a number; how many of them were there.
    pub(super) fn drop_pages(&self, number: u64, pages: u64) -> u64 {
        let drop = |index: &u64| self.items.invalidate_page(number, *index).unwrap_or(false);
        (0..pages).filter(drop).count() as u64
    }

    /// What is used now.
    pub(super) fn used(&self) -> Used {
        let reserve = self.reserve.stats();
        let page = self.page as u64;
        let total = reserve.total.get().saturating_sub(reserve.held.get()) * page;
        Used { items: reserve.live.get() * page, room: total.saturating_sub(total / SPARE) }
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
