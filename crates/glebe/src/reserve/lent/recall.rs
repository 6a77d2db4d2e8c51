//! First class's half of [`Lent`] takes runs of pages from tenants and returns the pages later.
//!
//! The caller owns the positions of its run, so no two calls take one page. A call takes whole
//! granules by incrementing their epochs, and *edges*, the parts of granules at the ends, page by
//! page.

use std::ops::Range;

use super::Lent;
use crate::reserve::words::{GranuleWord, PageState, PageWord, ZeroState};
use glebe_os::error::OsError;
use glebe_os::internal::sync::{fence, prefetch, Backoff, Ordering};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recalled {
    pub(crate) pages: u64,
    pub(crate) barrier: bool,
    pub(crate) waited: bool,
}

#[derive(Debug)]
pub(crate) enum NotTaken {
    Busy,
    /// `pages` tenants' pages were dropped before the refusal.
    NoBarrier {
        why: OsError,
        pages: u64,
    },
}

struct GranulePart {
    granule: usize,
    pages: Range<usize>,
}

impl Lent {
    fn parts(&self, run: &Range<usize>) -> impl Iterator<Item = GranulePart> + use<> {
        let (run, shift) = (run.clone(), self.shift);
        let granules = (run.start >> shift)..((run.end - 1) >> shift) + 1;
        granules.map(move |granule| {
            let pages = granule << shift..(granule + 1) << shift;
            GranulePart { granule, pages: pages.start.max(run.start)..pages.end.min(run.end) }
        })
    }

    fn is_whole(&self, part: &GranulePart) -> bool {
        part.pages.len() == self.granule_pages()
    }

    /// Takes `run`: no tenant writes there until [`Lent::give_back`].
    pub(crate) fn recall(
        &self,
        run: &Range<usize>,
        zeroed: bool,
        wait: bool,
    ) -> Result<Recalled, NotTaken> {
        let whole = self.parts(run).any(|part| self.is_whole(&part));
        let mut pages = 0;
        if !whole && !self.critical.counts_writers() {
            match self.recall_by_page(run, zeroed) {
                Ok(recalled) => return Ok(recalled),
                Err(dropped) => pages = dropped,
            }
        }
        let waited = self.close(run, wait)?;
        if let Err(why) = self.critical.barrier() {
            self.parts(run).for_each(|part| self.reopen(part.granule));
            return Err(NotTaken::NoBarrier { why, pages });
        }
        for part in self.parts(run) {
            pages += if self.is_whole(&part) {
                self.take_whole(&part, zeroed)
            } else {
                self.take_edge(&part, zeroed)
            };
        }
        fence(Ordering::SeqCst); // orders page words and epochs before the owner's writes
        Ok(Recalled { pages, barrier: !self.critical.counts_writers(), waited })
    }

    #[inline]
    pub(crate) fn prefetch_to_recall(&self, page: usize) {
        prefetch(&self.words[page]);
        prefetch(self.granules.word(self.granule_of(page)));
    }

    /// Takes a page. Returns true if it held a tenant's bytes; `None` if a tenant is writing.
    #[inline]
    pub(crate) fn recall_page(&self, page: usize) -> Option<bool> {
        let granule = self.granule_of(page);
        let state = self.take_page(page, self.granule(granule).epoch())?;
        let live = u64::from(state == PageState::Valid);
        self.granules.change(granule, |now| now.with_held_added(1).with_live_removed(live));
        fence(Ordering::SeqCst); // orders the page word before the owner's writes
        Some(live > 0)
    }

    /// Takes `run`. If a tenant is writing, frees the taken pages and fails with the number of
    /// tenants' pages dropped.
    fn recall_by_page(&self, run: &Range<usize>, zeroed: bool) -> Result<Recalled, u64> {
        let writing = |page| {
            let epoch = self.granule(self.granule_of(page)).epoch();
            self.word(page).state(epoch) == PageState::Writing
        };
        if run.clone().any(writing) {
            return Err(0);
        }
        let mut recalled = Recalled::default();
        for part in self.parts(run) {
            let epoch = self.granule(part.granule).epoch();
            let (mut held, mut live) = (0, 0);
            for page in part.pages.clone() {
                let Some(state) = self.take_page(page, epoch) else { break };
                held += 1;
                live += u64::from(state == PageState::Valid);
                if zeroed && state != PageState::Zero {
                    self.zero_taken(page, 1);
                }
            }
            let taken = |now: GranuleWord| now.with_held_added(held).with_live_removed(live);
            self.granules.change(part.granule, taken);
            recalled.pages += live;
            if held < part.pages.len() as u64 {
                self.parts(run).for_each(|part| self.free_taken(&part));
                return Err(recalled.pages);
            }
        }
        fence(Ordering::SeqCst);
        Ok(recalled)
    }

    fn free_taken(&self, part: &GranulePart) {
        let epoch = self.granule(part.granule).epoch();
        let mut freed = 0;
        for page in part.pages.clone() {
            let word = self.word(page);
            if word.state(epoch) == PageState::First {
                self.words[page].store(word.next(PageState::Free, epoch).0, Ordering::Release);
                freed += 1;
            }
        }
        self.granules.change(part.granule, |now| now.with_held_removed(freed));
    }

    #[inline]
    fn take_page(&self, page: usize, epoch: u64) -> Option<PageState> {
        let mut old = self.word(page);
        loop {
            let state = old.state(epoch);
            if state == PageState::Writing {
                return None;
            }
            let new = old.next(PageState::First, epoch);
            let word = &self.words[page];
            match word.compare_exchange_weak(old.0, new.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(state),
                Err(other) => old = PageWord(other),
            }
        }
    }

    fn zero_taken(&self, page: usize, count: usize) {
        fence(Ordering::SeqCst); // orders the taken page word before the zeros
        self.frames.zero(page, count);
    }

    fn close(&self, run: &Range<usize>, wait: bool) -> Result<bool, NotTaken> {
        let counted = self.critical.counts_writers();
        let mut waited = false;
        for part in self.parts(run) {
            let mut backoff = Backoff::default();
            // Waits while the count of closers is full.
            while self.granules.update(part.granule, GranuleWord::closed).is_err() {
                backoff.wait();
            }
            while counted && self.granule(part.granule).writers() > 0 {
                if !wait {
                    let closed = run.start..part.pages.end;
                    self.parts(&closed).for_each(|part| self.reopen(part.granule));
                    return Err(NotTaken::Busy);
                }
                waited = true;
                backoff.wait();
            }
        }
        Ok(waited)
    }

    fn reopen(&self, granule: usize) {
        self.granules.change(granule, GranuleWord::reopened);
    }

    /// Takes a granule, which stays closed.
    fn take_whole(&self, part: &GranulePart, zeroed: bool) -> u64 {
        let pages = part.pages.len();
        let before = self.granules.change(part.granule, |now| now.taken_whole(pages as u64));
        if before.taken_whole(pages as u64).epoch() == 0 {
            self.forget_epochs(&part.pages);
        }
        if zeroed && !before.is_zero() {
            self.zero_taken(part.pages.start, pages);
        }
        before.live()
    }

    /// Resets all page words, because words of the earlier epoch 0 would match the wrapped epoch.
    #[cold]
    fn forget_epochs(&self, pages: &Range<usize>) {
        for page in pages.clone() {
            let fresh = self.word(page).next(PageState::Free, 0);
            self.words[page].store(fresh.0, Ordering::Relaxed);
        }
    }

    fn take_edge(&self, part: &GranulePart, zeroed: bool) -> u64 {
        let epoch = self.granule(part.granule).epoch();
        let (mut held, mut recalled, mut revoked) = (0, 0, 0);
        let first = part.granule << self.shift;
        for page in first..first + self.granule_pages() {
            let old = self.word(page);
            let state = old.state(epoch);
            if !part.pages.contains(&page) {
                revoked += u64::from(state == PageState::Writing && self.revoke(page, old, epoch));
                continue;
            }
            held += 1;
            recalled += u64::from(self.take_closed(page, old, epoch));
            if zeroed && state != PageState::Zero {
                self.zero_taken(page, 1);
            }
        }
        let live = recalled + revoked;
        let taken = |now: GranuleWord| now.with_held_added(held).with_live_removed(live);
        self.granules.change(part.granule, |now| taken(now).reopened());
        live
    }

    /// Returns true if a tenant had the page. Only `Writing` needs a swap, because another recall
    /// may revoke such a page at the same time.
    fn take_closed(&self, page: usize, old: PageWord, epoch: u64) -> bool {
        let new = old.next(PageState::First, epoch);
        match old.state(epoch) {
            PageState::Writing => {
                let before = PageWord(self.words[page].swap(new.0, Ordering::AcqRel));
                // If another recall revoked the page, its word has the generation of `new`.
                if before != old {
                    let newer = before.next(PageState::First, epoch);
                    self.words[page].store(newer.0, Ordering::Release);
                }
                before.state(epoch) == PageState::Writing
            }
            state => {
                self.words[page].store(new.0, Ordering::Release);
                state == PageState::Valid
            }
        }
    }

    fn revoke(&self, page: usize, old: PageWord, epoch: u64) -> bool {
        let free = old.next(PageState::Free, epoch);
        let word = &self.words[page];
        word.compare_exchange(old.0, free.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    #[inline]
    pub(crate) fn give_back_page(&self, page: usize) {
        let granule = self.granule_of(page);
        let free = self.word(page).next(PageState::Free, self.granule(granule).epoch());
        self.words[page].store(free.0, Ordering::Release);
        self.granules.change(granule, |now| now.with_held_removed(1));
    }

    pub(crate) fn give_back(&self, run: &Range<usize>) {
        for part in self.parts(run) {
            let pages = part.pages.len() as u64;
            if self.is_whole(&part) {
                self.granules.change(part.granule, |now| now.with_held_removed(pages).reopened());
                continue;
            }
            let epoch = self.granule(part.granule).epoch();
            for page in part.pages {
                let free = self.word(page).next(PageState::Free, epoch);
                self.words[page].store(free.0, Ordering::Release);
            }
            self.granules.change(part.granule, |now| now.with_held_removed(pages));
        }
    }

    /// Gives whole granules back that the kernel has zeroed.
    pub(crate) fn give_back_zeroed(&self, run: &Range<usize>) {
        for part in self.parts(run) {
            let pages = part.pages.len() as u64;
            let zero = |now: GranuleWord| now.with_held_removed(pages).with_zero(ZeroState::Zero);
            self.granules.change(part.granule, |now| zero(now).reopened());
        }
    }

    /// Marks granules as without memory. Their addresses must stay readable, because a tenant may
    /// still read there.
    pub(crate) fn depart(&self, granules: Range<usize>) {
        let pages = self.granule_pages() as u64;
        for granule in granules {
            self.granules.change(granule, |now| now.departed(pages));
        }
    }

    pub(crate) fn arrive(&self, granules: Range<usize>) {
        for granule in granules {
            self.granules.change(granule, GranuleWord::arrived);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::contig::{Contig, Source};
    use crate::reserve::options::with_writers;
    use crate::reserve::words::GranuleWord;
    use crate::reserve::{Reserve, Writers};
    use glebe_os::units::Bytes;
    use glebe_testing::real_time;

    #[test]
    fn a_real_time_thread_waits_for_a_writer() {
        let contig = Contig::options().source(Source::Plain).build(Bytes::mib(2)).unwrap();
        let reserve = with_writers(Reserve::options(), Writers::Counted).build_on(contig).unwrap();
        let lent = reserve.inner.get().unwrap().lent();
        let write = |inside: &dyn Fn()| {
            lent.granules.update(0, GranuleWord::pinned).unwrap();
            inside();
            lent.granules.update(0, |now| Some(now.unpinned())).unwrap();
        };
        let recall = || assert!(lent.recall(&(0..1), false, true).unwrap().waited);
        let name = "reserve::lent::recall::tests::a_real_time_thread_waits_for_a_writer";
        real_time::waits(name, write, recall);
    }
}
