//! First class's half: take a run of pages from the tenants, and give it back.
//!
//! The caller owns the positions of its run: no two calls work on the same page at once. A run is
//! its whole granules, taken by a new epoch each, and at most two *edges*, parts of granules that
//! others use too, taken page by page; in an edge no stored page outside the run is touched.

use std::ops::Range;

use super::Lent;
use crate::error::OsError;
use crate::reserve::words::{GranuleWord, PageWord, State};
use crate::sync::{fence, prefetch, Backoff, Ordering};

/// What a recall did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recalled {
    /// Pages that tenants had stored, or were storing.
    pub(crate) pages: u64,
    /// Whether tenants were interrupted by a barrier.
    pub(crate) barrier: bool,
    /// Whether the call waited until counted writers had finished.
    pub(crate) waited: bool,
}

/// Why a run was not taken; tenants have all of it again.
#[derive(Debug)]
pub(crate) enum NotTaken {
    /// A tenant is copying into the run, writers are counted, and the caller would not wait.
    Busy,
    /// The kernel refused the barrier. So many stored pages had been dropped by then.
    NoBarrier { why: OsError, pages: u64 },
}

/// The part of a run that lies in one granule.
struct Part {
    granule: usize,
    pages: Range<usize>,
}

impl Lent {
    /// The parts of a run, granule by granule.
    fn parts(&self, run: &Range<usize>) -> impl Iterator<Item = Part> + use<> {
        let (run, shift) = (run.clone(), self.shift);
        let granules = (run.start >> shift)..((run.end - 1) >> shift) + 1;
        granules.map(move |granule| {
            let pages = granule << shift..(granule + 1) << shift;
            Part { granule, pages: pages.start.max(run.start)..pages.end.min(run.end) }
        })
    }

    fn is_whole(&self, part: &Part) -> bool {
        part.pages.len() == self.granule_pages()
    }

    /// Takes `run` from the tenants: when this returns none of its pages is or will be written by
    /// one until [`Lent::give_back`]. With `zeroed`, every page of it then holds zeros.
    ///
    /// # Errors
    /// [`NotTaken::Busy`] only where writers are counted and `wait` is false,
    /// [`NotTaken::NoBarrier`] only where they are not.
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
        fence(Ordering::SeqCst); // page words and epochs before what the owner writes
        Ok(Recalled { pages, barrier: !self.critical.counts_writers(), waited })
    }

    /// Starts to fetch what [`Lent::recall_page`] will touch.
    #[inline]
    pub(crate) fn prefetch_to_recall(&self, page: usize) {
        prefetch(&self.words[page]);
        prefetch(self.granules.word(self.granule_of(page)));
    }

    /// Takes one page by an exchange; whether a tenant had stored something there. `None`, and
    /// nothing taken, if a tenant is copying into it.
    #[inline]
    pub(crate) fn recall_page(&self, page: usize) -> Option<bool> {
        let granule = self.granule_of(page);
        let state = self.take_page(page, self.granule(granule).epoch())?;
        let live = u64::from(state == State::Valid);
        self.granules.change(granule, |now| now.with_held_added(1).with_live_removed(live));
        fence(Ordering::SeqCst); // the page word before what the owner writes
        Some(live > 0)
    }

    /// Takes a small run by one exchange a page. An error, nothing taken, and how many stored pages
    /// were dropped, if a tenant is copying into one of them.
    fn recall_by_page(&self, run: &Range<usize>, zeroed: bool) -> Result<Recalled, u64> {
        let writing = |page| {
            let epoch = self.granule(self.granule_of(page)).epoch();
            self.word(page).state(epoch) == State::Writing
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
                live += u64::from(state == State::Valid);
                if zeroed && state != State::Zero {
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

    /// Gives back what was taken of an edge so far.
    fn free_taken(&self, part: &Part) {
        let epoch = self.granule(part.granule).epoch();
        let mut freed = 0;
        for page in part.pages.clone() {
            let word = self.word(page);
            if word.state(epoch) == State::First {
                self.words[page].store(word.next(State::Free, epoch).0, Ordering::Release);
                freed += 1;
            }
        }
        self.granules.change(part.granule, |now| now.with_held_removed(freed));
    }

    /// Takes one page that no tenant is writing, by an exchange; its state before.
    #[inline]
    fn take_page(&self, page: usize, epoch: u64) -> Option<State> {
        let mut old = self.word(page);
        loop {
            let state = old.state(epoch);
            if state == State::Writing {
                return None;
            }
            let new = old.next(State::First, epoch);
            let word = &self.words[page];
            match word.compare_exchange_weak(old.0, new.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(state),
                Err(other) => old = PageWord(other),
            }
        }
    }

    fn zero_taken(&self, page: usize, count: usize) {
        fence(Ordering::SeqCst); // readers see the page taken before they can see zeros
        self.frames.zero(page, count);
    }

    /// Keeps tenants out of every granule of the run. Whether it had to wait for one.
    fn close(&self, run: &Range<usize>, wait: bool) -> Result<bool, NotTaken> {
        let counted = self.critical.counts_writers();
        let mut waited = false;
        for part in self.parts(run) {
            let mut backoff = Backoff::default();
            // Full only if as many first-class calls as the field counts are in this granule now.
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

    /// Takes a whole closed granule, which stays closed; how many pages were live in it.
    fn take_whole(&self, part: &Part, zeroed: bool) -> u64 {
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

    /// The epochs of this granule have come round: no page word may keep an old one, which would
    /// one day be current again.
    #[cold]
    fn forget_epochs(&self, pages: &Range<usize>) {
        for page in pages.clone() {
            let fresh = self.word(page).next(State::Free, 0);
            self.words[page].store(fresh.0, Ordering::Relaxed);
        }
    }

    /// Takes the pages of an edge, whose granule is closed, and reopens it; how many were live.
    fn take_edge(&self, part: &Part, zeroed: bool) -> u64 {
        let epoch = self.granule(part.granule).epoch();
        let (mut held, mut recalled, mut revoked) = (0, 0, 0);
        let first = part.granule << self.shift;
        for page in first..first + self.granule_pages() {
            let old = self.word(page);
            let state = old.state(epoch);
            if !part.pages.contains(&page) {
                revoked += u64::from(state == State::Writing && self.revoke(page, old, epoch));
                continue;
            }
            held += 1;
            recalled += u64::from(self.take_closed(page, old, epoch));
            if zeroed && state != State::Zero {
                self.zero_taken(page, 1);
            }
        }
        let live = recalled + revoked;
        let taken = |now: GranuleWord| now.with_held_added(held).with_live_removed(live);
        self.granules.change(part.granule, |now| taken(now).reopened());
        live
    }

    /// Takes one page of a closed granule; whether it was live. Only a page that a tenant was
    /// writing can be changed by another recall, which revokes it: hence the swap.
    fn take_closed(&self, page: usize, old: PageWord, epoch: u64) -> bool {
        let new = old.next(State::First, epoch);
        match old.state(epoch) {
            State::Writing => {
                let before = PageWord(self.words[page].swap(new.0, Ordering::AcqRel));
                // Revoked by a neighbour, it carries the generation that `new` has.
                if before != old {
                    let newer = before.next(State::First, epoch);
                    self.words[page].store(newer.0, Ordering::Release);
                }
                before.state(epoch) == State::Writing
            }
            state => {
                self.words[page].store(new.0, Ordering::Release);
                state == State::Valid
            }
        }
    }

    /// Ends the claim of a tenant that was interrupted in a page outside the run.
    fn revoke(&self, page: usize, old: PageWord, epoch: u64) -> bool {
        let free = old.next(State::Free, epoch);
        let word = &self.words[page];
        word.compare_exchange(old.0, free.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Gives one recalled page back to the tenants.
    #[inline]
    pub(crate) fn give_back_page(&self, page: usize) {
        let granule = self.granule_of(page);
        let free = self.word(page).next(State::Free, self.granule(granule).epoch());
        self.words[page].store(free.0, Ordering::Release);
        self.granules.change(granule, |now| now.with_held_removed(1));
    }

    /// Gives a recalled run back to the tenants.
    pub(crate) fn give_back(&self, run: &Range<usize>) {
        for part in self.parts(run) {
            let pages = part.pages.len() as u64;
            if self.is_whole(&part) {
                self.granules.change(part.granule, |now| now.with_held_removed(pages).reopened());
                continue;
            }
            let epoch = self.granule(part.granule).epoch();
            for page in part.pages {
                let free = self.word(page).next(State::Free, epoch);
                self.words[page].store(free.0, Ordering::Release);
            }
            self.granules.change(part.granule, |now| now.with_held_removed(pages));
        }
    }

    /// Says that the memory of whole granules, which the caller has recalled, is gone. Nobody
    /// begins anything there; who claimed or read a page before is told apart by the epoch. A
    /// reader may still be copying: something must be there to read from then on.
    pub(crate) fn depart(&self, granules: Range<usize>) {
        let pages = self.granule_pages() as u64;
        for granule in granules {
            self.granules.change(granule, |now| now.departed(pages));
        }
    }

    /// Says that absent granules have memory, all zeros. The tenants have it from now on.
    pub(crate) fn arrive(&self, granules: Range<usize>) {
        for granule in granules {
            self.granules.change(granule, GranuleWord::arrived);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::contig::{Contig, Source};
    use crate::reserve::words::GranuleWord;
    use crate::reserve::{Reserve, Writers};
    use crate::sys::real_time;
    use crate::units::Bytes;

    #[test]
    fn a_real_time_thread_waits_for_a_writer() {
        let contig = Contig::options().source(Source::Plain).build(Bytes::mib(2)).unwrap();
        let reserve = Reserve::options().writers(Writers::Counted).build_on(contig).unwrap();
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
