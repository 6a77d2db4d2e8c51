//! Long runs of the *tag* engine: marked without tags, so that no word of them is touched.
//!
//! Where the kernel gets the right to a page it clears the page's accessed and dirty bits, and
//! the first touch after that has the processor set them again, which in a virtual machine takes
//! longer than all the rest of an unmark. So the page tables tell what is lost, as they tell the
//! *scan* engine: whoever unmarks looks at residence. Holes, and pages of zeros that are shared,
//! are lost, since a lost page gets only these for as long as nobody writes. The others are made
//! dirty by `MADV_POPULATE_WRITE`, which cancels the kernel's right. It would fill a page that went
//! since the look, but not unseen: the kernel counts the page faults of each thread, those of its
//! system calls among them (`are_counted`). If the count stands still, nothing went.
//!
//! If it moved, pages went, or were copied after a fork, or brought in from swap. Then, and where a
//! call is refused, each page of that chunk is read. A word that is not zero is of a page that is
//! there, and exchanging it for itself keeps the page. One that holds only zeros is told lost:
//! zeros are what it holds, either way.
//!
//! What is not seen: a write to a lost page, which breaks the region's rule. So only a region's own
//! memory is marked so, and with kernels that have `PAGEMAP_SCAN`, which knows the page of zeros.
//! Under the region's lock, as all of the engine. Cost of an unmark without page faults: a look,
//! three system calls a chunk, and one a run that is lost.
//!
//! # Safety
//! As in the engine's file.
#![allow(unsafe_code)]

use std::ptr;

use super::{Tag, WORD};
use crate::error::OsError;
use crate::extent::{push, Extent};
use crate::mapping::{Mapping, Visibility};
use crate::sync::{First, MappedWord, Ordering};
use crate::sys::madvise::{advise, Advice};
use crate::sys::pagemap::{Pagemap, Reading, Residence};
use crate::sys::{page_faults, page_size};
use crate::units::{Bytes, Pages};

/// Looked at in one go: what is seen is acted on before much of it can change.
const WINDOW: Bytes = Bytes::mib(32);
/// Populated in one go: what is read if something in it went. After a fork each page is copied, so
/// it is also what may be charged before an error is seen.
const CHUNK: Bytes = Bytes::mib(4);

impl Tag {
    /// Gives the kernel the right to pages that hold memory. What is in swap is brought in before:
    /// the kernel would drop it at once.
    pub(super) fn offer_untagged(&self, pages: Extent, swap: bool) -> Result<(), OsError> {
        self.untagged.set(pages);
        if swap {
            self.advise(pages, Advice::PopulateRead)?;
        }
        self.advise(pages, Advice::Free)
    }

    /// Takes the right to what of `parts` has no tag back; what of it is lost.
    #[inline]
    pub(super) fn unmark_untagged(&self, parts: &[Extent]) -> Vec<Extent> {
        let mut lost = Vec::new();
        for run in parts.iter().flat_map(|part| self.untagged.runs_in(*part)) {
            self.each_of(run, WINDOW, |window| self.settle(window, &mut lost));
            self.untagged.clear(run);
        }
        lost
    }

    /// Makes every page of the window safe or finds it lost.
    fn settle(&self, window: Extent, lost: &mut Vec<Extent>) {
        let Ok(Some(seen)) = self.residences(window) else { return self.keep_all(window, lost) };
        for (run, residence) in seen {
            if residence != Residence::Page {
                push(lost, run);
                continue;
            }
            self.each_of(run, CHUNK, |chunk| self.keep_present(chunk, lost));
        }
    }

    /// Makes pages safe that were there at a look, or finds them lost.
    fn keep_present(&self, pages: Extent, lost: &mut Vec<Extent>) {
        let populate = || self.advise(pages, Advice::PopulateWrite);
        if faults_of(populate).ok() != Some(0) {
            self.keep_all(pages, lost);
        }
    }

    /// Keeps the pages that hold something; the others are lost.
    #[cold]
    fn keep_all(&self, pages: Extent, lost: &mut Vec<Extent>) {
        let gone = (pages.start()..pages.end()).filter(|page| !self.keep(*page));
        gone.filter_map(|page| Extent::new(page, 1)).for_each(|page| push(lost, page));
    }

    /// Makes a page dirty if something is in it; whether there is.
    fn keep(&self, page: u64) -> bool {
        (0..self.page.bytes().as_usize() / WORD).any(|nth| {
            let at = self.base + Pages::new(page).bytes(self.page).as_usize() + nth * WORD;
            // SAFETY: as in `Tag::word`, further into the same page.
            let word: &MappedWord = unsafe { &*ptr::with_exposed_provenance(at) };
            let seen = word.load(Ordering::Relaxed);
            let (ok, failed) = (Ordering::AcqRel, Ordering::Acquire);
            seen != 0 && word.compare_exchange(seen, seen, ok, failed) != Err(0)
        })
    }

    /// A lost page among those of `pages` that have no tag; after they were read.
    pub(super) fn lost_untagged(&self, pages: Extent) -> Result<Option<u64>, OsError> {
        for run in self.untagged.runs_in(pages) {
            let Some(runs) = self.residences(run)? else { return Ok(Some(run.start())) };
            let lost = runs.iter().find(|(_, residence)| *residence != Residence::Page);
            if let Some((run, _)) = lost {
                return Ok(Some(run.start()));
            }
        }
        Ok(None)
    }

    /// What is behind `pages`; none in a child that cannot look.
    fn residences(&self, pages: Extent) -> Result<Option<Vec<(Extent, Residence)>>, OsError> {
        let Some((pagemap, _)) = &self.pagemap else { return Ok(None) };
        let (addr, len) = pages.place(self.base, self.page);
        let runs = pagemap.runs(addr, len, Reading::Scan)?.into_iter();
        let in_pages = runs
            .filter_map(|run| Some((self.pages_of(run.start, run.end)?, run.residence)))
            .collect();
        Ok(Some(in_pages))
    }

    /// Passes parts of `pages` of at most `step` bytes.
    fn each_of(&self, pages: Extent, step: Bytes, mut each: impl FnMut(Extent)) {
        let step = step.pages_down(self.page).get().max(1);
        let mut at = pages.start();
        while let Some(part) = Extent::new(at, step.min(pages.end() - at)) {
            each(part);
            at = part.end();
        }
    }

    /// Gives advice on marked pages, or pages that are about to be.
    #[inline]
    pub(super) fn advise(&self, pages: Extent, advice: Advice) -> Result<(), OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: inside the region's mapping; its owner has agreed to lose the contents.
        unsafe { advise(addr, len, advice) }
    }
}

/// Whether long runs need no tags, by what the kernel can tell of memory that is the region's own.
pub(super) fn is_possible(pagemap: Option<&(Pagemap, Reading)>) -> bool {
    matches!(pagemap, Some((_, Reading::Scan))) && are_counted()
}

/// Whether a page that `MADV_POPULATE_WRITE` fills counts as a page fault of the thread. Asked once
/// a process.
fn are_counted() -> bool {
    static COUNTED: First<bool> = First::new();
    *COUNTED.get_or_compute(|| {
        let page = page_size();
        let Ok(mapping) = Mapping::aligned(page.bytes(), page, Visibility::ORDINARY) else {
            return false;
        };
        let mut is_hole = [true, false].into_iter();
        is_hole.all(|is_hole| {
            let populate = || mapping.populate(Bytes::ZERO, page.bytes());
            faults_of(populate).is_ok_and(|faults| (faults > 0) == is_hole)
        })
    })
}

/// Page faults of the thread while it makes a call.
#[inline]
fn faults_of(call: impl FnOnce() -> Result<(), OsError>) -> Result<u64, OsError> {
    let before = page_faults::of_thread()?;
    call()?;
    Ok(page_faults::of_thread()? - before)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine of such pages, each with something in its last word, all marked without tags.
    fn marked(pages: u64) -> Option<(Mapping, Tag)> {
        let page = page_size();
        let len = Pages::new(pages).bytes(page);
        let mapping = Mapping::aligned(len, page, Visibility::ORDINARY).unwrap();
        let _ = mapping.refuse_huge_pages();
        let tag = Tag::new(mapping.addr(), pages, page, None, true, false);
        if !tag.spares_tags {
            println!("skipped: the kernel cannot tell, or does not count");
            return None;
        }
        (0..pages).for_each(|page| write(&mapping, page, 7));
        tag.mark(all(pages), false).unwrap();
        assert_eq!(tag.untagged.runs_in(all(pages)), [all(pages)]);
        Some((mapping, tag))
    }

    fn write(mapping: &Mapping, page: u64, byte: u8) {
        let end = Pages::new(page + 1).bytes(page_size());
        mapping.write(Bytes::new(end.get() - 1), &[byte]);
    }

    fn all(pages: u64) -> Extent {
        Extent::new(0, pages).unwrap()
    }

    fn one(page: u64) -> Extent {
        Extent::new(page, 1).unwrap()
    }

    #[test]
    fn what_goes_between_the_look_and_the_populate_is_lost() {
        for losses in [&[][..], &[0], &[3, 63]] {
            let Some((_mapping, tag)) = marked(64) else { return };
            for page in losses {
                tag.advise(one(*page), Advice::DontNeed).unwrap();
            }
            // As if the look had seen all of them.
            let mut lost = Vec::new();
            tag.keep_present(all(64), &mut lost);
            assert_eq!(lost, losses.iter().map(|page| one(*page)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_lost_page_that_was_read_is_not_filled() {
        let Some((mapping, tag)) = marked(64) else { return };
        let gone = Extent::new(9, 2).unwrap();
        tag.advise(gone, Advice::DontNeed).unwrap();
        mapping.read(Pages::new(9).bytes(page_size()), &mut [0]);
        assert_eq!(tag.unmark(&[all(64)]).lost, [gone]);
        assert!(tag.holding(gone).unwrap().is_empty());
    }

    #[test]
    fn where_nothing_can_be_looked_at_contents_tell() {
        let Some((mapping, mut tag)) = marked(64) else { return };
        tag.advise(one(5), Advice::DontNeed).unwrap();
        tag.pagemap = None;
        assert_eq!(tag.lost_untagged(all(64)).unwrap(), Some(0));
        assert_eq!(tag.unmark(&[all(64)]).lost, [one(5)]);
        // None of the others can go any more.
        let _ = tag.advise(all(64), Advice::PageOut);
        let mut byte = [0];
        let kept = (0..64).filter(|page| {
            let end = Pages::new(page + 1).bytes(page_size());
            mapping.read(Bytes::new(end.get() - 1), &mut byte);
            byte == [7]
        });
        assert_eq!(kept.count(), 63);
    }
}
