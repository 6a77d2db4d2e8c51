//! A region in a process that clone(2) made without the C library: its locks may be held by
//! threads that did not come along, and its userfaultfd is the parent's.
//!
//! No lock is taken and no descriptor used: the bits of the marked pages are enough to call all of
//! them lost. Other calls that need more are refused. What an unmark of another thread had just
//! found lost, and not returned, is told to nobody: its bits are clear, and the log has a lock.
//!
//! # Safety
//! Only pages inside the region are dropped, which are marked.
#![allow(unsafe_code)]

use super::{Error, Purged, Region, Stats};
use crate::extent::Extent;
use crate::sys::madvise::{advise, Advice};
use crate::units::Pages;

impl Region {
    /// What of `pages` is marked, lost as a whole.
    pub(super) fn unmark_cloned(&self, pages: Extent) -> Result<Purged, Error> {
        let lost = self.marked.runs_in(pages);
        for run in &lost {
            let (at, len) = run.place(self.addr(), self.page);
            // SAFETY: marked pages of the region; a copy of the parent's since the clone.
            unsafe { advise(at, len, Advice::DontNeed)? };
            self.marked.clear(*run);
        }
        Ok(Purged::from_runs(lost))
    }

    /// The counters as they were, and what is marked now.
    pub(super) fn stats_cloned(&self) -> Stats {
        let total = self.len().pages_down(self.page);
        let all = Extent::new(0, total.get()).map_or(Vec::new(), |all| self.marked.runs_in(all));
        let marked = Pages::new(all.iter().map(|run| run.len()).sum());
        Stats { engine: self.engine, total, marked, resident: marked, ..self.counts.sum() }
    }
}
