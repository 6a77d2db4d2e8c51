//! [`Refilled`]: marked pages that the signal handler has filled again.
//!
//! Such a page is dirty, so the kernel has no right to it, and it may have counted as dropped. The
//! handler can do no more than note it, since it has no lock: an unmark under way might have made
//! the page safe just before. The region's next mark or drop, which holds the lock alone, gives the
//! kernel the right again and counts the page as marked just then.
//!
//! A bit a page, and a word that says whether any bit is set. The handler sets the bit and then the
//! word; the others clear the word and then read the bits, so that no bit stays unseen for good.
//! Cost of a look where nothing was refilled: one load.

use super::marks::Bitmap;
use super::{Backend, Error, Region, State};
use crate::extent::Extent;
use crate::sync::{MappedWord, Ordering};

/// See the module.
#[derive(Debug)]
pub(super) struct Refilled {
    bits: Bitmap,
    pages: u64,
    any: MappedWord,
}

impl Refilled {
    /// None yet, of a region of `pages`; of no pages where there is no callback.
    pub(super) fn new(pages: u64) -> Self {
        Self { bits: Bitmap::new(pages), pages, any: MappedWord::new(0) }
    }

    /// Notes a page, in the signal handler.
    pub(super) fn note(&self, page: u64) {
        self.bits.set_shared(page);
        self.any.store(1, Ordering::Release);
    }

    /// Forgets pages, which are not marked any more.
    #[inline]
    pub(super) fn forget(&self, pages: Extent) {
        if self.any.load(Ordering::Relaxed) != 0 {
            self.bits.clear_shared(pages);
        }
    }

    /// Returns what was noted, and forgets it.
    #[inline]
    fn take(&self) -> Vec<Extent> {
        if self.any.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        self.any.swap(0, Ordering::AcqRel);
        let all = Extent::new(0, self.pages);
        let runs = all.map_or(Vec::new(), |all| self.bits.runs_in(all));
        runs.iter().for_each(|run| self.bits.clear_shared(*run));
        runs
    }

    /// Notes runs that were taken.
    fn put_back(&self, runs: &[Extent]) {
        runs.iter().flat_map(|run| run.start()..run.end()).for_each(|page| self.note(page));
    }
}

impl Region {
    /// Gives the kernel the right again to marked pages that were refilled; whether there were any.
    /// On an error they stay noted.
    #[inline]
    pub(super) fn settle_refilled(&self, state: &mut State) -> Result<bool, Error> {
        let runs = state.refilled.take();
        if runs.is_empty() {
            return Ok(false);
        }
        let settled = runs.iter().try_for_each(|run| self.settle_run(state, *run));
        settled.inspect_err(|_| state.refilled.put_back(&runs))?;
        Ok(true)
    }

    #[cold]
    fn settle_run(&self, state: &mut State, run: Extent) -> Result<(), Error> {
        for part in state.marks.within(run).iter() {
            for part in state.droppable(*part)? {
                state.marks.renew(part, self.now());
                state.look_for_swap(part.len());
                let Backend::Scan(scan) = &state.backend else { continue };
                let marked = scan.mark_again(part, state.swap);
                marked.map_err(|error| self.refused(part, error, state))?;
            }
        }
        Ok(())
    }
}
