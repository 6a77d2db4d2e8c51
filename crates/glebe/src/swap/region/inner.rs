//! [`RegionCore`] has the parts of a region, at a constant address for the signal handler.
//!
//! A page's [word](crate::swap::word) says where its bytes are: at `home`, in the *window* (at the
//! same offset of `shadow`), in a copy, or nowhere yet. Pages at `home` and in the window are
//! *charged* to the budget. Unit: pages. Only changes of the budget take the lock `changes`.
//!
//! # Safety
//! Only the thread that owns a page ([`crate::swap::word`]) uses the page's shadow address.
#![allow(unsafe_code)]

use super::cold::Cold;
use crate::swap::copies::Copies;
use crate::swap::error::SwapError;
use crate::swap::key::Key;
use crate::swap::options::SwapOptions;
use crate::swap::shelf::{Hands, Shelf};
use crate::swap::slots::{Slots, SwapSlot};
use crate::swap::stats::Counts;
use crate::swap::store::next_number;
use glebe_os::error::OsError;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::stats::{Histogram, LANES};
use glebe_os::internal::sync::{MappedWord, Mutex, Ordering};
use glebe_os::internal::sys::memory::uffd::Pager;
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::internal::sys::processes::sigbus::Stacks;
use glebe_os::units::{Bytes, Pages};

const WINDOW_SHARE: u64 = 8;
const UNPINNED_SHARE: u64 = 8;
/// Pages that one instruction may need together: it copies from two pages to two others.
const LEAST: u64 = 4;
const MOVABLE_SHARE: u64 = 4;

/// `home` and `shadow` are dropped before `pager`, because absent pages read as zeros without a
/// pager.
#[derive(Debug)]
pub(super) struct RegionCore {
    pub(super) home: Mapping,
    pub(super) shadow: Mapping,
    pub(super) pager: Pager,
    pub(super) slots: Slots,
    pub(super) copies: Copies,
    pub(super) stacks: Stacks,
    pub(super) counts: Counts,
    pub(super) loads: Histogram,
    hands: Hands,
    number: u32,
    pub(super) keeps_copies: bool,
    charged: MappedWord,
    budget: MappedWord,
    pub(super) changes: Mutex<()>,
    pub(super) window: MappedWord,
    pinned: MappedWord,
    /// Pages passed; the position is this number modulo the region's pages.
    pub(super) hand: MappedWord,
    pub(super) tail: MappedWord,
    pub(super) cold: Cold,
    unmovable: MappedWord,
    pub(super) protected: MappedWord,
    pub(super) next: [MappedWord; LANES],
    guard: ForkGuard,
}

fn pages_of(budget: Bytes) -> Result<u64, SwapError> {
    match budget.pages_down(page_size()).get() {
        0..LEAST => {
            let least = Pages::new(LEAST).bytes(page_size());
            Err(SwapError::NoBudget { given: budget, least })
        }
        pages => Ok(pages),
    }
}

impl RegionCore {
    pub(super) fn new(options: &SwapOptions, len: Bytes, budget: Bytes) -> Result<Self, SwapError> {
        let budget_pages = pages_of(budget)?;
        let pages = options.checked_pages(len)?;
        let file = options.new_file(pages.get())?;
        let len = pages.bytes(page_size());
        let inner = Self {
            home: Mapping::unreserved(len)?,
            shadow: Mapping::unreserved(len)?,
            pager: Pager::open(options.moves)?,
            slots: Slots::new(pages.get() as u32)?,
            copies: Copies::new(&options.codec, options.pool_limit_for(budget), file)?,
            stacks: Stacks::new()?,
            counts: Counts::new(),
            loads: Histogram::new(),
            hands: Hands::new(),
            number: next_number(),
            keeps_copies: options.keeps_copies,
            charged: MappedWord::new(0),
            budget: MappedWord::new(budget_pages),
            changes: Mutex::new(()),
            window: MappedWord::new(0),
            pinned: MappedWord::new(0),
            hand: MappedWord::new(0),
            tail: MappedWord::new(0),
            cold: Cold::new(),
            unmovable: MappedWord::new(0),
            protected: MappedWord::new(0),
            next: [const { MappedWord::new(0) }; LANES],
            guard: ForkGuard::new(),
        };
        // A touch must never lack memory for a slot.
        inner.slots.come_as_written()?;
        inner.arm()?;
        Ok(inner)
    }

    fn arm(&self) -> Result<(), OsError> {
        // SAFETY: `new` mapped the memory. The SIGBUS handler watches it before any code uses it.
        unsafe {
            self.pager.arm(self.home.addr(), self.home.len())?;
            if self.pager.moves() {
                self.pager.arm(self.shadow.addr(), self.shadow.len())?;
            }
        }
        Ok(())
    }

    #[inline]
    pub(super) fn alive(&self) -> Result<(), SwapError> {
        if self.guard.is_child() {
            return Err(SwapError::Forked);
        }
        Ok(())
    }

    #[inline]
    pub(super) fn pages(&self) -> u64 {
        u64::from(self.slots.len())
    }

    #[inline]
    pub(super) fn page(&self) -> usize {
        page_size().bytes().as_usize()
    }

    #[inline]
    pub(super) fn slot_of(&self, page: u64) -> SwapSlot<'_> {
        self.slots.get(page as u32).expect("a page of the region")
    }

    pub(super) fn key_of(&self, page: u64) -> Key {
        Key { store: self.number, index: page as u32, generation: 0 }
    }

    pub(super) fn offset_of(&self, page: u64) -> Bytes {
        Pages::new(page).bytes(page_size())
    }

    pub(super) fn at_home(&self, page: u64) -> usize {
        self.home.addr() + self.offset_of(page).as_usize()
    }

    pub(super) fn at_shadow(&self, page: u64) -> usize {
        self.shadow.addr() + self.offset_of(page).as_usize()
    }

    /// # Safety
    /// The page is present, the caller owns it, and nobody writes it meanwhile.
    pub(super) unsafe fn bytes(&self, of: &Mapping, page: u64) -> &[u8] {
        let at = of.as_ptr().wrapping_add(self.offset_of(page).as_usize());
        // SAFETY: the page is inside the mapping; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(at, self.page()) }
    }

    pub(super) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    pub(super) fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    pub(super) fn swap_budget(&self, budget: Bytes) -> Result<u64, SwapError> {
        Ok(self.budget.swap(pages_of(budget)?, Ordering::Relaxed))
    }

    pub(super) fn restore_budget(&self, pages: u64) {
        self.budget.store(pages, Ordering::Relaxed);
    }

    pub(super) fn window_target(&self) -> u64 {
        (self.budget() / WINDOW_SHARE).max(1)
    }

    pub(super) fn charge(&self, pages: u64) -> bool {
        let (budget, unmovable) = (self.budget(), self.unmovable.load(Ordering::Relaxed));
        let limit = match unmovable {
            0 => budget,
            _ => {
                let movable = (budget / MOVABLE_SHARE).max(LEAST);
                budget.max(unmovable + movable).max(unmovable + self.pinned() + LEAST)
            }
        };
        let add = |charged: u64| Some(charged + pages).filter(|sum| *sum <= limit);
        self.charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    pub(super) fn remember(&self, page: u64, is_unmovable: bool) -> bool {
        let slot = self.slot_of(page);
        let before = slot.is_unmovable();
        if before != is_unmovable {
            slot.set_unmovable(is_unmovable);
            let more = i64::from(is_unmovable) - i64::from(before);
            self.unmovable.fetch_add(more as u64, Ordering::Relaxed);
        }
        before
    }

    pub(super) fn charge_over(&self, pages: u64) {
        self.charged.fetch_add(pages, Ordering::Relaxed);
    }

    pub(super) fn release(&self, pages: u64) {
        self.charged.fetch_sub(pages, Ordering::Relaxed);
    }

    pub(super) fn pinned(&self) -> u64 {
        self.pinned.load(Ordering::Relaxed)
    }

    /// Returns the most pages that guards may pin.
    pub(super) fn pinned_max(&self) -> u64 {
        // Reads the budget once, because another call may change it.
        let budget = self.budget();
        budget - (budget / UNPINNED_SHARE).max(LEAST)
    }

    pub(super) fn count_pins(&self, pages: u64) -> bool {
        let most = self.pinned_max();
        let add = |pinned: u64| Some(pinned + pages).filter(|sum| *sum <= most);
        self.pinned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    pub(super) fn uncount_pins(&self, pages: u64) {
        self.pinned.fetch_sub(pages, Ordering::Relaxed);
    }
}

impl Shelf for RegionCore {
    fn copies(&self) -> &Copies {
        &self.copies
    }

    fn counts(&self) -> &Counts {
        &self.counts
    }

    fn hands(&self) -> &Hands {
        &self.hands
    }

    fn used(&self) -> u32 {
        self.slots.len()
    }

    fn slot(&self, index: u32) -> Option<SwapSlot<'_>> {
        self.slots.get(index)
    }

    /// Does nothing: pages are never dead.
    fn settle(&self, _: SwapSlot<'_>) {}
}
