//! [`Touched`] is memory that contestants touch.
//!
//! Each page is a copy of a corpus page, with a *stamp* as its first word: page number and version.
//! Touches access only the stamp. Unit: pages.
//!
//! # Safety
//! A `Touched` owns its memory and gives out no pointer to it; [`Touched::at`] checks page numbers.
//! Touches use atomic words; whole pages are accessed through `&mut` only.
#![allow(unsafe_code)]

use std::fs::File;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use glebe::internal::sys::memory::madvise::{advise, Advice};
use glebe::page_size;
use glebe::swap::{Region, Store};
use glebe::units::{Bytes, Pages};
use memmap2::{Mmap, MmapOptions, MmapRaw};
use serde::{Deserialize, Serialize};

use crate::Outcome;

const WORD: usize = size_of::<u64>();

/// Pages that compress like a program's.
pub(super) struct Corpus<'a>(pub(super) &'a [u8]);

impl Corpus<'_> {
    pub(super) fn page(&self, nth: u64) -> &[u8] {
        let page = page_bytes();
        let at = nth as usize % (self.0.len() / page);
        &self.0[at * page..][..page]
    }
}

/// Maps the parent's corpus, with all pages present.
pub(super) fn map(path: &Path) -> Outcome<Mmap> {
    // SAFETY: the parent wrote the file before this child started, and does not change it.
    Ok(unsafe { MmapOptions::new().populate().map(&File::open(path)?)? })
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Wrong {
    pub(super) bytes: u64,
    /// Number of stamps with an older version, or of missing pages.
    pub(super) lost_writes: u64,
}

impl Wrong {
    pub(super) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.lost_writes += other.lost_writes;
    }

    #[inline]
    pub(super) fn look(&mut self, found: u64, wanted: u64) {
        if found != wanted {
            let is_older = found >> 32 == wanted >> 32 && found < wanted;
            self.lost_writes += u64::from(is_older);
            self.bytes += if is_older { 0 } else { WORD as u64 };
        }
    }

    pub(super) fn look_at_page(&mut self, page: &[u8], of: &[u8], stamp: u64) {
        self.look(u64::from_ne_bytes(page[..WORD].try_into().unwrap_or_default()), stamp);
        let rest = page[WORD..].iter().zip(&of[WORD..]);
        self.bytes += rest.filter(|(is, was)| is != was).count() as u64;
    }
}

#[inline]
pub(super) fn stamp(page: u64, version: u32) -> u64 {
    page << 32 | u64::from(version)
}

pub(super) fn stamped(corpus: &Corpus<'_>, nth: u64, version: u32) -> Vec<u8> {
    let mut page = corpus.page(nth).to_vec();
    page[..WORD].copy_from_slice(&stamp(nth, version).to_ne_bytes());
    page
}

pub(super) fn page_bytes() -> usize {
    page_size().bytes().as_usize()
}

enum Owner {
    Region(Region),
    Map(#[allow(dead_code)] MmapRaw),
}

pub(super) struct Touched {
    base: usize,
    pages: u64,
    owner: Owner,
}

impl Touched {
    pub(super) fn region(pages: u64, budget: Bytes) -> Outcome<Self> {
        let len = Pages::new(pages).bytes(page_size());
        let region = Store::options().pool_limit(pool_limit(len)).build_region(len, budget)?;
        region.arm_thread()?;
        let base = region.as_ptr().expose_provenance();
        Ok(Self { base, pages, owner: Owner::Region(region) })
    }

    /// Maps base pages, which the kernel may swap.
    pub(super) fn plain(pages: u64) -> Outcome<Self> {
        let len = Pages::new(pages).bytes(page_size());
        let map = MmapRaw::from(MmapOptions::new().len(len.as_usize()).map_anon()?);
        let base = map.as_mut_ptr().expose_provenance();
        // SAFETY: mapped just now.
        unsafe { advise(base, len, Advice::NoHugePage)? };
        Ok(Self { base, pages, owner: Owner::Map(map) })
    }

    pub(super) fn file(pages: u64, file: &File) -> Outcome<Self> {
        let len = Pages::new(pages).bytes(page_size());
        let map = MmapOptions::new().len(len.as_usize()).map_raw(file)?;
        // Turns read-ahead off, which does not help random touches.
        map.advise(memmap2::Advice::Random)?;
        Ok(Self { base: map.as_mut_ptr().expose_provenance(), pages, owner: Owner::Map(map) })
    }

    pub(super) fn as_region(&self) -> Option<&Region> {
        match &self.owner {
            Owner::Region(region) => Some(region),
            Owner::Map(_) => None,
        }
    }

    /// Makes pages leave memory: all but four of a region, or those that the kernel agrees to swap.
    pub(super) fn chill(&self) -> Outcome {
        match &self.owner {
            Owner::Region(region) => {
                let budget = region.budget();
                region.set_budget(Pages::new(4).bytes(page_size()))?;
                region.set_budget(budget)?;
            }
            Owner::Map(_) => {
                let len = Pages::new(self.pages).bytes(page_size());
                // SAFETY: this memory's own range; the call keeps contents.
                unsafe { advise(self.base, len, Advice::PageOut)? };
            }
        }
        Ok(())
    }

    #[inline]
    fn at(&self, page: u64) -> *mut u8 {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        ptr::with_exposed_provenance_mut(self.base + page as usize * page_bytes())
    }

    #[inline]
    fn word(&self, page: u64) -> &AtomicU64 {
        // SAFETY: the first word of a page of this memory, aligned, mapped while borrowed.
        unsafe { AtomicU64::from_ptr(self.at(page).cast()) }
    }

    #[inline]
    pub(super) fn stamp(&self, page: u64) -> u64 {
        self.word(page).load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_stamp(&self, page: u64, stamp: u64) {
        self.word(page).store(stamp, Ordering::Relaxed);
    }

    pub(super) fn fill(&mut self, corpus: &Corpus<'_>) {
        for page in 0..self.pages {
            // SAFETY: a page of this memory, exclusive by `&mut`; the corpus is other memory.
            unsafe {
                ptr::copy_nonoverlapping(corpus.page(page).as_ptr(), self.at(page), page_bytes())
            };
            self.set_stamp(page, stamp(page, 0));
        }
    }

    pub(super) fn judge(&mut self, corpus: &Corpus<'_>, version: impl Fn(u64) -> u32) -> Wrong {
        let (mut wrong, mut bytes) = (Wrong::default(), vec![0; page_bytes()]);
        for page in 0..self.pages {
            // SAFETY: as in `fill`.
            unsafe { ptr::copy_nonoverlapping(self.at(page), bytes.as_mut_ptr(), page_bytes()) };
            wrong.look_at_page(&bytes, corpus.page(page), stamp(page, version(page)));
        }
        wrong
    }
}

/// Returns a pool limit with room for all of `len` compressed.
pub(super) fn pool_limit(len: Bytes) -> Bytes {
    len + Bytes::mib(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_wrong_or_anothers_is_told() {
        let bytes: Vec<u8> = (0..3 * page_bytes()).map(|at| (at / 7) as u8).collect();
        let corpus = Corpus(&bytes);
        let mut memory = Touched::plain(5).unwrap();
        memory.fill(&corpus);
        memory.chill().unwrap();
        memory.set_stamp(3, stamp(3, 1));
        let told = |memory: &mut Touched, version: u32| {
            let wrong = memory.judge(&corpus, |page| if page == 3 { version } else { 0 });
            (wrong.bytes, wrong.lost_writes)
        };
        assert_eq!((told(&mut memory, 1), told(&mut memory, 2)), ((0, 0), (0, 1)));
        memory.set_stamp(3, stamp(4, 1));
        assert_eq!(told(&mut memory, 1), (WORD as u64, 0));
        let mut page = stamped(&corpus, 4, 9);
        page[WORD] ^= 1;
        let mut wrong = Wrong::default();
        wrong.look_at_page(&page, corpus.page(4), stamp(4, 9));
        assert_eq!((wrong.bytes, wrong.lost_writes), (1, 0));
    }
}
