//! Huge pages of the *tag* engine: one tag, in the first page, for all of a huge page.
//!
//! A huge page is marked *whole* if the kernel maps it as one when its tag is there. The region
//! refuses huge pages (`MADV_NOHUGEPAGE`), so no fault and no collapse maps a huge page where none
//! was: one that is mapped as such at the unmark has been all the time, and none of it was lost.
//! The exchange that takes the tag back comes before that look, and a store to any byte of a huge
//! page makes all of it dirty, also where it is split later. So an exchange and a part of a system
//! call make a huge page safe.
//!
//! One that is mapped otherwise was lost, or split by memory that is short or by a write after a
//! fork. Its pages are told apart by two things. Holes, and pages of zeros that are shared, are
//! lost, since a lost page gets only these for as long as nobody writes. A word that is not zero
//! is of a page that is there, and exchanging it for itself keeps the page. A page that is there
//! and holds only zeros is zeros, whatever becomes of it.
//!
//! What is not seen: a write to a lost page, which breaks the region's rule, elsewhere than in the
//! first word of a huge page. Lost or kept by the same rules: a page of zeros that the kernel
//! shared while it split a huge page that is little used counts as lost.
//!
//! Positions are base pages, but huge pages have numbers of their own. Under the region's lock, as
//! all of the engine. Cost of an untouched huge page: an exchange each way, and of a range of them
//! two system calls to mark, beside that which marks, and one to unmark. Source: the kernel's
//! mm/huge_memory.c and mm/khugepaged.c; PAGEMAP_SCAN(2const).
//!
//! # Safety
//! As in the engine's file.
#![allow(unsafe_code)]

use std::ptr;

use super::{Found, Tag, WORD};
use crate::error::OsError;
use crate::extent::Extent;
use crate::sync::{MappedWord, Ordering};
use crate::sys::madvise::{advise, Advice};
use crate::sys::pagemap::{Pagemap, Reading, Residence};
use crate::units::{PageSize, Pages};

/// What became of a page.
enum Fate {
    Kept,
    Lost,
    Overwritten,
    /// It holds zeros, which tell nothing.
    Zeros,
}

impl Tag {
    /// Marks what of `pages`, whole huge pages, the kernel maps as huge ones; returns the rest.
    pub(super) fn mark_whole(
        &self,
        pages: Extent,
        huge: PageSize,
        pagemap: &Pagemap,
    ) -> Result<Vec<Extent>, OsError> {
        let before = self.mapped_huge(pages, pagemap)?;
        for first in before.iter().flat_map(|run| self.firsts(*run, huge)) {
            self.put_tag(first);
            one(first).for_each(|first| self.tagged.set(first));
        }
        // The stores may have split some, which were shared with a child.
        let after = self.mapped_huge(pages, pagemap)?;
        let mut rest = Vec::new();
        for first in self.firsts(pages, huge) {
            let Some(all) = Extent::new(first, self.pages_each(huge)) else { continue };
            if !is_within(all, &before) {
                rest.push(all);
            } else if is_within(all, &after) {
                one(first / all.len()).for_each(|number| self.whole.set(number));
            } else {
                self.word(first)
                    .store(self.saved[first as usize].load(Ordering::Acquire), Ordering::Release);
                one(first).for_each(|first| self.tagged.clear(first));
                rest.push(all);
            }
        }
        self.whole_in(pages).into_iter().try_for_each(|run| self.free(run))?;
        Ok(rest)
    }

    /// Takes the right to the whole huge pages of `parts` back; what is found lost has no order.
    pub(super) fn unmark_whole(&self, parts: &[Extent]) -> Result<Found, OsError> {
        let mut found = Found::default();
        let Some(huge) = self.huge else { return Ok(found) };
        let runs: Vec<_> = parts.iter().flat_map(|part| self.whole_in(*part)).collect();
        let firsts = || runs.iter().flat_map(|run| self.firsts(*run, huge));
        match &self.pagemap {
            Some((pagemap, _)) => {
                let mut gone = Vec::new();
                for first in firsts() {
                    let Err(word) = self.take_back(first) else { continue };
                    found.lost.extend(one(first));
                    if word != 0 {
                        found.overwritten.extend(one(first));
                    }
                    gone.push(first);
                }
                let settled = runs
                    .iter()
                    .try_for_each(|run| self.settle(*run, &gone, huge, pagemap, &mut found));
                if let Err(error) = settled {
                    let kept = firsts().filter(|first| gone.binary_search(first).is_err());
                    kept.for_each(|first| {
                        self.word(first).store(self.tag(first), Ordering::Release)
                    });
                    return Err(error);
                }
            }
            // In a child that cannot look.
            None => {
                runs.iter().try_for_each(|run| self.drop_run(*run))?;
                found.lost.clone_from(&runs);
            }
        }
        for first in firsts() {
            one(first).for_each(|first| self.tagged.clear(first));
            one(first / self.pages_each(huge)).for_each(|number| self.whole.clear(number));
        }
        Ok(found)
    }

    /// After the tags of whole huge pages were taken back, but for those of `gone`: finds what of
    /// their other pages is lost and keeps the rest.
    fn settle(
        &self,
        run: Extent,
        gone: &[u64],
        huge: PageSize,
        pagemap: &Pagemap,
        found: &mut Found,
    ) -> Result<(), OsError> {
        let mapped = self.mapped_huge(run, pagemap)?;
        for first in self.firsts(run, huge) {
            let len = self.pages_each(huge);
            let is_huge = Extent::new(first, len).is_some_and(|all| is_within(all, &mapped));
            if is_huge && gone.binary_search(&first).is_err() {
                continue;
            }
            if let Some(others) = Extent::new(first + 1, len - 1) {
                self.settle_split(others, pagemap, found)?;
            }
        }
        Ok(())
    }

    /// Finds what of pages without a tag is lost and keeps the rest.
    fn settle_split(
        &self,
        pages: Extent,
        pagemap: &Pagemap,
        found: &mut Found,
    ) -> Result<(), OsError> {
        let mut zeros = Vec::new();
        for (run, residence) in self.residences(pages, pagemap)? {
            if residence != Residence::Page {
                found.lost.push(run);
                continue;
            }
            for page in run.start()..run.end() {
                match self.keep(page) {
                    Fate::Kept => {}
                    Fate::Zeros => zeros.push(page),
                    Fate::Lost => found.lost.extend(one(page)),
                    Fate::Overwritten => {
                        found.overwritten.extend(one(page));
                        found.lost.extend(one(page));
                    }
                }
            }
        }
        if zeros.is_empty() {
            return Ok(());
        }
        // Read as zeros since it went, or always.
        for (run, residence) in self.residences(pages, pagemap)? {
            let of_run = zeros.iter().filter(|page| run.start() <= **page && **page < run.end());
            if residence != Residence::Page {
                found.lost.extend(of_run.flat_map(|page| one(*page)));
            }
        }
        Ok(())
    }

    /// Makes a page dirty if something is in it.
    fn keep(&self, page: u64) -> Fate {
        for nth in 0..self.page.bytes().as_usize() / WORD {
            let at = self.base + Pages::new(page).bytes(self.page).as_usize() + nth * WORD;
            // SAFETY: as in `Tag::word`, further into the same page.
            let word: &MappedWord = unsafe { &*ptr::with_exposed_provenance(at) };
            let seen = word.load(Ordering::Relaxed);
            if seen != 0 {
                let stored = word.compare_exchange(seen, seen, Ordering::AcqRel, Ordering::Acquire);
                return match stored {
                    Ok(_) => Fate::Kept,
                    Err(0) => Fate::Lost,
                    Err(_) => Fate::Overwritten,
                };
            }
        }
        Fate::Zeros
    }

    /// A lost page among those of `pages` that are in whole huge pages; after they were read.
    pub(super) fn lost_of_whole(&self, pages: Extent) -> Result<Option<u64>, OsError> {
        for run in self.whole_in(pages) {
            let Some((pagemap, _)) = &self.pagemap else { return Ok(Some(run.start())) };
            let runs = self.residences(run, pagemap)?;
            let lost = runs.iter().find(|(_, residence)| *residence != Residence::Page);
            if let Some((run, _)) = lost {
                return Ok(Some(run.start()));
            }
        }
        Ok(None)
    }

    /// Drops the contents of pages.
    pub(super) fn drop_run(&self, pages: Extent) -> Result<(), OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: as in `Tag::free`.
        unsafe { advise(addr, len, Advice::DontNeed) }
    }

    /// What of `pages` is in whole huge pages.
    pub(super) fn whole_in(&self, pages: Extent) -> Vec<Extent> {
        let Some(huge) = self.huge else { return Vec::new() };
        let each = self.pages_each(huge);
        let first = pages.start() / each;
        let numbers = Extent::new(first, pages.end().div_ceil(each) - first);
        let runs = numbers.map_or(Vec::new(), |numbers| self.whole.runs_in(numbers));
        let in_pages = |run: Extent| Extent::new(run.start() * each, run.len() * each);
        runs.into_iter().filter_map(|run| in_pages(run)?.intersection(pages)).collect()
    }

    /// What of `pages` the kernel maps as huge pages.
    fn mapped_huge(&self, pages: Extent, pagemap: &Pagemap) -> Result<Vec<Extent>, OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        let runs = pagemap.huge_runs(addr, len)?;
        Ok(runs.into_iter().filter_map(|run| self.pages_of(run.start, run.end)).collect())
    }

    fn residences(
        &self,
        pages: Extent,
        pagemap: &Pagemap,
    ) -> Result<Vec<(Extent, Residence)>, OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        let runs = pagemap.runs(addr, len, Reading::Scan)?.into_iter();
        Ok(runs
            .filter_map(|run| Some((self.pages_of(run.start, run.end)?, run.residence)))
            .collect())
    }

    /// The first pages of the huge pages of `pages`.
    fn firsts(&self, pages: Extent, huge: PageSize) -> impl Iterator<Item = u64> {
        (pages.start()..pages.end()).step_by(self.pages_each(huge) as usize)
    }

    /// Base pages of a huge page.
    fn pages_each(&self, huge: PageSize) -> u64 {
        huge.bytes().pages_down(self.page).get()
    }
}

/// An extent of one position, which is not the last that there is.
fn one(at: u64) -> impl Iterator<Item = Extent> {
    Extent::new(at, 1).into_iter()
}

/// Whether one of `runs`, which ascend, holds all of `extent`.
fn is_within(extent: Extent, runs: &[Extent]) -> bool {
    let next = runs.partition_point(|run| run.end() <= extent.start());
    runs.get(next).is_some_and(|run| run.contains(extent))
}
