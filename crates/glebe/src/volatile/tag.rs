//! The *tag* engine: a page that is lost is known by its first word, with no userfaultfd.
//!
//! To mark, the first word of each page is exchanged for the page's *tag*, a number that only
//! this region knows, and saved out of line; then the kernel gets the right to the page. A lost
//! page reads as zeros. To unmark, the word is compared and exchanged back, which is a store and
//! so cancels the kernel's right, with no system call. The kernel takes the page out of the page
//! table before it looks whether the page is dirty, so the exchange either comes first and keeps
//! the page, or finds zeros. A run that is lost costs a call, after which every processor finds
//! zeros. Long runs have no tags (`untagged`). The idea is Kevin Easton's (linux-mm, April 2014),
//! and found in Chromium's `MadvFreeDiscardableMemoryPosix` and in skeeto's `purgeable`.
//!
//! ```text
//! marked page   word 0 = tag        lost page   word 0 = 0        else: written while marked
//! ```
//!
//! Pages that hold no memory are left as they are: they are zeros, and cannot be lost. Changes
//! are made under the region's lock held alone, and nobody writes what is about to be marked, so
//! a store sets a tag. Cost: a store and an exchange a page. A touch of a lost page is no SIGBUS:
//! it finds zeros.
//!
//! # Safety
//! The words are inside the region's mapping, at multiples of a page, and are only touched as
//! atomics here while the page is marked.
#![allow(unsafe_code)]

mod untagged;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ptr;

use super::huge::rejoin;
use super::marks::Bitmap;
use crate::error::OsError;
use crate::extent::{push, Extent};
use crate::mapping::racy;
use crate::sync::{fence, prefetch, MappedWord, Ordering};
use crate::sys::madvise::Advice;
use crate::sys::pagemap::{Pagemap, Reading, Residence};
use crate::units::{Bytes, PageSize, Pages};

/// Up to so many pages are looked at one by one, so that no system call is made where all were
/// written, and have tags, so that none is made to unmark them. Where processors are virtual, the
/// calls that longer runs take instead are the cheaper ones, and at half the length about as dear.
const FEW_PAGES: u64 = 8;
/// How many pages ahead of the one at hand a word is fetched.
const AHEAD: u64 = 8;
/// Bytes of a tag.
const WORD: usize = size_of::<u64>();

/// What an unmark found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// What is lost, in no order.
    pub(super) lost: Vec<Extent>,
    /// What of that was written while it was marked, so that it holds something.
    pub(super) overwritten: Vec<Extent>,
}

/// The engine of one region.
#[derive(Debug)]
pub(super) struct Tag {
    base: usize,
    page: PageSize,
    huge: Option<PageSize>,
    secret: u64,
    /// First words of tagged pages.
    saved: Box<[MappedWord]>,
    /// Which pages have a tag.
    tagged: Bitmap,
    /// Which are marked without one. What is marked and neither held no memory.
    untagged: Bitmap,
    /// Whether the memory is the region's own: nobody maps anything else there.
    is_own: bool,
    /// Whether long runs need no tags.
    spares_tags: bool,
    pagemap: Option<(Pagemap, Reading)>,
}

impl Tag {
    /// The engine of a region of `pages` at `base`, which are its own or somebody's who may map
    /// something else there; `huge` and `without_scan` as for the other engine.
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

    /// In a child the parent's map would be read.
    pub(super) fn follow_fork(&mut self) {
        let without_scan = matches!(self.pagemap, Some((_, Reading::Entries)));
        self.pagemap = open_pagemap(without_scan);
    }

    /// Gives the kernel the right to what of `pages` holds memory.
    #[inline]
    pub(super) fn mark(&self, pages: Extent, swap: bool) -> Result<(), OsError> {
        if let (Some(huge), Some((pagemap, reading))) = (self.huge, &self.pagemap) {
            let (addr, len) = pages.place(self.base, self.page);
            rejoin(pagemap, *reading, addr, len, huge);
        }
        // Of a few pages one look at each tells: what is not zero is there.
        if pages.len() <= FEW_PAGES && self.all_written(pages) {
            return self.offer(pages);
        }
        // Where the kernel does not tell, each of them may hold memory.
        let held = self.holding(pages).unwrap_or_else(|_| vec![pages]);
        let offered = held.into_iter().map(|run| {
            if self.spares_tags && run.len() > FEW_PAGES {
                self.offer_untagged(run, swap)
            } else {
                self.offer(run)
            }
        });
        // All of them, also after one that is refused: what counts as marked can be dropped.
        offered.fold(Ok(()), Result::and)
    }

    /// Whether every page's first word is not zero.
    #[inline]
    fn all_written(&self, pages: Extent) -> bool {
        (pages.start()..pages.end()).all(|page| self.word(page).load(Ordering::Relaxed) != 0)
    }

    /// Tags pages that hold memory and gives the kernel the right to them.
    #[inline]
    fn offer(&self, pages: Extent) -> Result<(), OsError> {
        for page in pages.start()..pages.end() {
            self.put_tag(page);
        }
        self.tagged.set(pages);
        self.advise(pages, Advice::Free)
    }

    /// Starts to fetch the word of a page that comes after `page` in `run`: each page is a miss of
    /// its own, and an exchange waits for all that is under way.
    #[inline]
    fn fetch_ahead(&self, page: u64, run: Extent) {
        if page + AHEAD < run.end() {
            prefetch(self.word(page + AHEAD));
        }
    }

    /// Saves a page's first word and puts the tag there.
    #[inline]
    fn put_tag(&self, page: u64) {
        let word = self.word(page);
        self.saved[page as usize].store(word.load(Ordering::Acquire), Ordering::Release);
        word.store(self.tag(page), Ordering::Release);
    }

    /// Takes the right to `parts` back.
    #[inline]
    pub(super) fn unmark(&self, parts: &[Extent]) -> Found {
        let (mut found, mut gone) = (Found::default(), Vec::new());
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

    /// As [`Tag::unmark`], of tagged pages; what is lost and was not overwritten is `gone`.
    #[inline]
    fn unmark_tagged(&self, run: Extent, found: &mut Found, gone: &mut Vec<Extent>) {
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

    /// Makes lost pages zeros for every processor. The reclaimer takes pages out of the page table
    /// before it tells the processors: until then reads may find what was there, and this call has
    /// them told. What was overwritten keeps its contents, and so does the caller's memory, which
    /// may be another mapping by now.
    #[cold]
    fn tell_processors(&self, gone: &[Extent], overwritten: &[Extent]) {
        let advice = if self.is_own { Advice::DontNeed } else { Advice::Cold };
        let gone = gone.iter().map(|run| (run, advice));
        for (run, advice) in gone.chain(overwritten.iter().map(|run| (run, Advice::Cold))) {
            // Where it is refused, as in locked memory, they are zeros for this processor at least.
            let _ = self.advise(*run, advice);
        }
    }

    /// Puts the saved word back where the tag is, else returns the word that is there.
    #[inline]
    fn take_back(&self, page: u64) -> Result<(), u64> {
        let (word, tag) = (self.word(page), self.tag(page));
        // Looked at first: an exchange would allocate a page for what is lost.
        match word.load(Ordering::Acquire) {
            seen if seen == tag => {
                let saved = self.saved[page as usize].load(Ordering::Acquire);
                word.compare_exchange(tag, saved, Ordering::AcqRel, Ordering::Acquire).map(drop)
            }
            seen => Err(seen),
        }
    }

    /// Drops the contents of marked pages.
    pub(super) fn drop_pages(&self, pages: Extent) -> Result<(), OsError> {
        let runs = [&self.tagged, &self.untagged].map(|bits| bits.runs_in(pages));
        runs.iter().flatten().try_for_each(|run| self.advise(*run, Advice::DontNeed))
    }

    /// Copies bytes out of pages that may be marked; a page that is lost where one is.
    pub(super) fn try_read(&self, offset: Bytes, buf: &mut [u8]) -> Result<Option<u64>, OsError> {
        let at = self.base + offset.as_usize();
        // SAFETY: the caller has checked the range against the mapping.
        unsafe {
            racy::copy(buf.as_mut_ptr(), ptr::with_exposed_provenance(at), buf.len());
        }
        // A page whose tag is there now was there during the copy: a lost one never gets it back
        // while the region's lock is held.
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

    /// How many of `pages` are in memory.
    pub(super) fn resident(&self, pages: Extent) -> Result<Pages, OsError> {
        Ok(Pages::new(self.holding(pages)?.iter().map(|run| run.len()).sum()))
    }

    /// Which of `pages` hold memory, or may.
    fn holding(&self, pages: Extent) -> Result<Vec<Extent>, OsError> {
        let Some((pagemap, reading)) = &self.pagemap else { return Ok(vec![pages]) };
        let (addr, len) = pages.place(self.base, self.page);
        let held = pagemap.runs(addr, len, *reading)?.into_iter();
        let held = held.filter(|run| run.residence == Residence::Page);
        Ok(held.filter_map(|run| self.pages_of(run.start, run.end)).collect())
    }

    /// The pages of a run of addresses.
    fn pages_of(&self, start: usize, end: usize) -> Option<Extent> {
        let pages = |bytes: usize| Bytes::new(bytes as u64).pages_down(self.page).get();
        Extent::new(pages(start - self.base), pages(end - start))
    }

    /// The tag of a page: not zero, and not the same for two pages.
    #[inline]
    fn tag(&self, page: u64) -> u64 {
        // Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
        let mut mixed = self.secret.wrapping_add(page.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)).max(1)
    }

    /// The first word of a page.
    #[inline]
    fn word(&self, page: u64) -> &MappedWord {
        let at = self.base + Pages::new(page).bytes(self.page).as_usize();
        debug_assert!((page as usize) < self.saved.len() && at % WORD == 0);
        // SAFETY: pages are below `saved.len()`, so the word is in the mapping, which outlives
        // the engine; a page boundary aligns it; it is only touched as an atomic.
        unsafe { &*ptr::with_exposed_provenance(at) }
    }
}

fn open_pagemap(without_scan: bool) -> Option<(Pagemap, Reading)> {
    let pagemap = Pagemap::open().ok()?;
    let reading = if without_scan { Reading::Entries } else { pagemap.reading() };
    Some((pagemap, reading))
}
