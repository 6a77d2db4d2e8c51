//! [`Tag`] marks long runs without tags, so it touches none of their pages.
//!
//! `MADV_FREE` clears the accessed and dirty bits. In a virtual machine, setting the bits at the
//! next touch takes longer than the rest of an unmark. So an unmark looks for losses in the page
//! tables: holes and shared pages of zeros. `MADV_POPULATE_WRITE` keeps the other pages by making
//! them dirty. The thread's count of page faults shows whether the call filled a page freed since
//! the look.
//!
//! If the count changed or a call is refused, the unmark keeps each page by exchanging a nonzero
//! word for itself. A page of zeros counts as lost.
//!
//! A write to a lost page goes unseen, so only a region's own memory is marked without tags. The
//! kernel must have `PAGEMAP_SCAN`, which alone identifies the page of zeros.
//!
//! # Safety
//! The pages are the region's, and marked or about to be marked.
#![allow(unsafe_code)]

use std::ptr;

use super::{Tag, WORD};
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::extents::push;
use glebe_os::internal::mapping::{Mapping, Visibility};
use glebe_os::internal::sync::{First, MappedWord, Ordering};
use glebe_os::internal::sys::memory::madvise::{advise, Advice};
use glebe_os::internal::sys::memory::page_faults;
use glebe_os::internal::sys::memory::pagemap::{Pagemap, Reading, Residence};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

const WINDOW: Bytes = Bytes::mib(32);
/// Bytes per populate call. If the call fails or meets a missing page, the unmark reads the whole
/// chunk.
const CHUNK: Bytes = Bytes::mib(4);

impl Tag {
    pub(super) fn offer_untagged(&self, pages: Extent, swap: bool) -> Result<(), OsError> {
        self.untagged.set(pages);
        if swap {
            self.advise(pages, Advice::PopulateRead)?;
        }
        self.advise(pages, Advice::Free)
    }

    #[inline]
    pub(super) fn unmark_untagged(&self, parts: &[Extent]) -> Vec<Extent> {
        let mut lost = Vec::new();
        for run in parts.iter().flat_map(|part| self.untagged.runs_in(*part)) {
            self.each_of(run, WINDOW, |window| self.settle(window, &mut lost));
            self.untagged.clear(run);
        }
        lost
    }

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

    fn keep_present(&self, pages: Extent, lost: &mut Vec<Extent>) {
        let populate = || self.advise(pages, Advice::PopulateWrite);
        if faults_of(populate).ok() != Some(0) {
            self.keep_all(pages, lost);
        }
    }

    #[cold]
    fn keep_all(&self, pages: Extent, lost: &mut Vec<Extent>) {
        let gone = (pages.start()..pages.end()).filter(|page| !self.keep(*page));
        gone.filter_map(|page| Extent::new(page, 1)).for_each(|page| push(lost, page));
    }

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

    /// Returns a page without a tag that is or may be lost. `None`: bytes read before this call are
    /// right.
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

    fn residences(&self, pages: Extent) -> Result<Option<Vec<(Extent, Residence)>>, OsError> {
        let Some((pagemap, _)) = &self.pagemap else { return Ok(None) };
        let (addr, len) = pages.place(self.base, self.page);
        let runs = pagemap.runs(addr, len, Reading::Scan)?.into_iter();
        let in_pages = runs
            .filter_map(|run| Some((self.pages_of(run.start, run.end)?, run.residence)))
            .collect();
        Ok(Some(in_pages))
    }

    fn each_of(&self, pages: Extent, step: Bytes, mut each: impl FnMut(Extent)) {
        let step = step.pages_down(self.page).get().max(1);
        let mut at = pages.start();
        while let Some(part) = Extent::new(at, step.min(pages.end() - at)) {
            each(part);
            at = part.end();
        }
    }

    #[inline]
    pub(super) fn advise(&self, pages: Extent, advice: Advice) -> Result<(), OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: in the region's mapping; its owner accepts the loss of marked contents.
        unsafe { advise(addr, len, advice) }
    }
}

pub(super) fn is_possible(pagemap: Option<&(Pagemap, Reading)>) -> bool {
    matches!(pagemap, Some((_, Reading::Scan))) && are_counted()
}

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

#[inline]
fn faults_of(call: impl FnOnce() -> Result<(), OsError>) -> Result<u64, OsError> {
    let before = page_faults::of_thread()?;
    call()?;
    Ok(page_faults::of_thread()? - before)
}

#[cfg(test)]
mod tests {
    use super::*;

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
