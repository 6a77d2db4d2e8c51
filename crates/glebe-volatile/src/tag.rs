//! [`Tag`] detects a lost page by its first word and needs no userfaultfd.
//!
//! A mark saves each page's first word and stores the page's *tag* there, a number that only this
//! region knows. A lost page reads as zeros. An unmark exchanges the tag for the saved word. The
//! kernel unmaps a page before it looks at the dirty bit. So the exchange sets the bit in time and
//! keeps the page, or finds zeros. Long runs may have no tags (`untagged`).
//!
//! ```text
//! marked page   word 0 = tag        lost page   word 0 = 0        else: written while marked
//! ```
//!
//! Lock: the region's. Cost: a store and an exchange per page, a system call per marked and per
//! lost run. Sources: Kevin Easton (linux-mm, April 2014); Chromium's
//! `MadvFreeDiscardableMemoryPosix`.
//!
//! # Safety
//! The words are in the region's mapping, at page boundaries, and only atomics and racing copies
//! access them while marked.
#![allow(unsafe_code)]

mod untagged;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ptr;

use super::huge::rejoin;
use super::marks::Bitmap;
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::extents::push;
use glebe_os::internal::mapping::racy;
use glebe_os::internal::sync::{fence, prefetch, MappedWord, Ordering};
use glebe_os::internal::sys::memory::madvise::Advice;
use glebe_os::internal::sys::memory::pagemap::{Pagemap, Reading, Residence};
use glebe_os::units::{Bytes, PageSize, Pages};

/// Longest run that always gets tags, in pages. Tags save system calls, but touch each page, which
/// is slow in a virtual machine.
const FEW_PAGES: u64 = 8;
const AHEAD: u64 = 8;
const WORD: usize = size_of::<u64>();

#[derive(Debug, Default)]
pub(super) struct LostPages {
    pub(super) lost: Vec<Extent>,
    pub(super) overwritten: Vec<Extent>,
}

#[derive(Debug)]
pub(super) struct Tag {
    base: usize,
    page: PageSize,
    huge: Option<PageSize>,
    secret: u64,
    saved: Box<[MappedWord]>,
    tagged: Bitmap,
    /// A marked page outside `tagged` and `untagged` had no memory.
    untagged: Bitmap,
    is_own: bool,
    spares_tags: bool,
    pagemap: Option<(Pagemap, Reading)>,
}

impl Tag {
    pub(super) fn new(
        base: usize,
        pages: u64,
        page: PageSize,
        huge: Option<PageSize>,
        is_own: bool,
        without_scan: bool,
    ) -> Self {
        let pagemap = open_pagemap(without_scan);
        Self {
            base,
            page,
            huge,
            secret: RandomState::new().build_hasher().finish(),
            saved: (0..pages).map(|_| MappedWord::new(0)).collect(),
            tagged: Bitmap::new(pages),
            untagged: Bitmap::new(pages),
            is_own,
            spares_tags: is_own && untagged::is_possible(pagemap.as_ref()),
            pagemap,
        }
    }

    /// The inherited descriptor reads the parent's pagemap.
    pub(super) fn follow_fork(&mut self) {
        let without_scan = matches!(self.pagemap, Some((_, Reading::Entries)));
        self.pagemap = open_pagemap(without_scan);
    }

    #[inline]
    pub(super) fn mark(&self, pages: Extent, swap: bool) -> Result<(), OsError> {
        if let (Some(huge), Some((pagemap, reading))) = (self.huge, &self.pagemap) {
            let (addr, len) = pages.place(self.base, self.page);
            rejoin(pagemap, *reading, addr, len, huge);
        }
        // A page with a nonzero word is present, so the mark needs no look at the page tables.
        if pages.len() <= FEW_PAGES && self.all_written(pages) {
            return self.offer(pages);
        }
        let held = self.holding(pages).unwrap_or_else(|_| vec![pages]);
        let offered = held.into_iter().map(|run| {
            if self.spares_tags && run.len() > FEW_PAGES {
                self.offer_untagged(run, swap)
            } else {
                self.offer(run)
            }
        });
        // Offers all runs, also after an error: `drop_pages` drops only runs that an offer noted in
        // the bitmaps.
        offered.fold(Ok(()), Result::and)
    }

    #[inline]
    fn all_written(&self, pages: Extent) -> bool {
        (pages.start()..pages.end()).all(|page| self.word(page).load(Ordering::Relaxed) != 0)
    }

    #[inline]
    fn offer(&self, pages: Extent) -> Result<(), OsError> {
        for page in pages.start()..pages.end() {
            self.put_tag(page);
        }
        self.tagged.set(pages);
        self.advise(pages, Advice::Free)
    }

    /// The processor does not overlap the cache misses of exchanges.
    #[inline]
    fn fetch_ahead(&self, page: u64, run: Extent) {
        if page + AHEAD < run.end() {
            prefetch(self.word(page + AHEAD));
        }
    }

    #[inline]
    fn put_tag(&self, page: u64) {
        let word = self.word(page);
        self.saved[page as usize].store(word.load(Ordering::Acquire), Ordering::Release);
        word.store(self.tag(page), Ordering::Release);
    }

    #[inline]
    pub(super) fn unmark(&self, parts: &[Extent]) -> LostPages {
        let (mut found, mut gone) = (LostPages::default(), Vec::new());
        for run in parts.iter().flat_map(|part| self.tagged.runs(*part)) {
            self.unmark_tagged(run, &mut found, &mut gone);
            self.tagged.clear(run);
        }
        gone.append(&mut self.unmark_untagged(parts));
        if !gone.is_empty() || !found.overwritten.is_empty() {
            self.tell_processors(&gone, &found.overwritten);
            found.lost.append(&mut gone);
        }
        found
    }

    #[inline]
    fn unmark_tagged(&self, run: Extent, found: &mut LostPages, gone: &mut Vec<Extent>) {
        for page in run.start()..run.end() {
            self.fetch_ahead(page, run);
            let Err(word) = self.take_back(page) else { continue };
            let Some(page) = Extent::new(page, 1) else { continue };
            if word == 0 {
                push(gone, page);
            } else {
                found.overwritten.push(page);
                push(&mut found.lost, page);
            }
        }
    }

    /// Flushes TLB entries of unmapped pages, so that all processors find zeros. `Cold` drops no
    /// bytes of overwritten pages or of memory that the program mapped anew.
    #[cold]
    fn tell_processors(&self, gone: &[Extent], overwritten: &[Extent]) {
        let advice = if self.is_own { Advice::DontNeed } else { Advice::Cold };
        let gone = gone.iter().map(|run| (run, advice));
        for (run, advice) in gone.chain(overwritten.iter().map(|run| (run, Advice::Cold))) {
            // The kernel refuses advice on locked memory. Other processors may then find old bytes.
            let _ = self.advise(*run, advice);
        }
    }

    #[inline]
    fn take_back(&self, page: u64) -> Result<(), u64> {
        let (word, tag) = (self.word(page), self.tag(page));
        // An exchange would allocate memory for a lost page.
        match word.load(Ordering::Acquire) {
            seen if seen == tag => {
                let saved = self.saved[page as usize].load(Ordering::Acquire);
                word.compare_exchange(tag, saved, Ordering::AcqRel, Ordering::Acquire).map(drop)
            }
            seen => Err(seen),
        }
    }

    pub(super) fn drop_pages(&self, pages: Extent) -> Result<(), OsError> {
        let runs = [&self.tagged, &self.untagged].map(|bits| bits.runs_in(pages));
        runs.iter().flatten().try_for_each(|run| self.advise(*run, Advice::DontNeed))
    }

    pub(super) fn try_read(&self, offset: Bytes, buf: &mut [u8]) -> Result<Option<u64>, OsError> {
        let at = self.base + offset.as_usize();
        // SAFETY: `Region::try_read` has checked that the range is in the mapping.
        unsafe {
            racy::copy(buf.as_mut_ptr(), ptr::with_exposed_provenance(at), buf.len());
        }
        // A page that still has its tag was present during the copy: the lock excludes marks, which
        // write tags.
        fence(Ordering::Acquire);
        let end = Bytes::new(offset.get() + buf.len() as u64);
        let (first, last) = (offset.pages_down(self.page), end.pages_up(self.page));
        for page in (first.get()..last.get()).filter(|page| self.tagged.get(*page)) {
            if self.word(page).load(Ordering::Acquire) != self.tag(page) {
                return Ok(Some(page));
            }
            let saved = self.saved[page as usize].load(Ordering::Acquire).to_ne_bytes();
            let start = Pages::new(page).bytes(self.page).get();
            for (i, byte) in saved.into_iter().enumerate() {
                let place = (start + i as u64).checked_sub(offset.get());
                let place = place.and_then(|place| usize::try_from(place).ok());
                if let Some(to) = place.and_then(|place| buf.get_mut(place)) {
                    *to = byte;
                }
            }
        }
        let read = Extent::new(first.get(), last.get() - first.get());
        read.map_or(Ok(None), |read| self.lost_untagged(read))
    }

    pub(super) fn resident(&self, pages: Extent) -> Result<Pages, OsError> {
        Ok(Pages::new(self.holding(pages)?.iter().map(|run| run.len()).sum()))
    }

    fn holding(&self, pages: Extent) -> Result<Vec<Extent>, OsError> {
        let Some((pagemap, reading)) = &self.pagemap else { return Ok(vec![pages]) };
        let (addr, len) = pages.place(self.base, self.page);
        let held = pagemap.runs(addr, len, *reading)?.into_iter();
        let held = held.filter(|run| run.residence == Residence::Page);
        Ok(held.filter_map(|run| self.pages_of(run.start, run.end)).collect())
    }

    fn pages_of(&self, start: usize, end: usize) -> Option<Extent> {
        let pages = |bytes: usize| Bytes::new(bytes as u64).pages_down(self.page).get();
        Extent::new(pages(start - self.base), pages(end - start))
    }

    #[inline]
    fn tag(&self, page: u64) -> u64 {
        // Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
        let mut mixed = self.secret.wrapping_add(page.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)).max(1)
    }

    #[inline]
    fn word(&self, page: u64) -> &MappedWord {
        let at = self.base + Pages::new(page).bytes(self.page).as_usize();
        debug_assert!((page as usize) < self.saved.len() && at % WORD == 0);
        // SAFETY: `page` is below `saved.len()`, so the word is in the mapping, which outlives the
        // engine; a page boundary aligns it.
        unsafe { &*ptr::with_exposed_provenance(at) }
    }
}

fn open_pagemap(without_scan: bool) -> Option<(Pagemap, Reading)> {
    let pagemap = Pagemap::open().ok()?;
    let reading = if without_scan { Reading::Entries } else { pagemap.reading() };
    Some((pagemap, reading))
}
