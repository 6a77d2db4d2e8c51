//! [`Region`] serves a process made by clone(2) without the C library. The calls use neither the
//! region's locks, which the parent's threads may have held, nor the parent's userfaultfd.
//!
//! An unmark reports all marked pages lost. The child does not report a loss whose mark an
//! unfinished unmark of the parent had already cleared.
//!
//! # Safety
//! Only marked pages inside the region are dropped.
#![allow(unsafe_code)]

use super::{Error, Purged, Region, Stats};
use glebe_os::extent::Extent;
use glebe_os::internal::sys::memory::madvise::{advise, Advice};
use glebe_os::units::Pages;

impl Region {
    pub(super) fn unmark_cloned(&self, pages: Extent) -> Result<Purged, Error> {
        let lost = self.marked.runs_in(pages);
        for run in &lost {
            let (at, len) = run.place(self.addr(), self.page);
            // SAFETY: marked pages of the region; the call drops only this process's copies.
            unsafe { advise(at, len, Advice::DontNeed)? };
        }
        // Clears the marks last: after a failed call, the next unmark reports every loss.
        lost.iter().for_each(|run| self.marked.clear(*run));
        Ok(Purged::from_runs(lost))
    }

    pub(super) fn stats_cloned(&self) -> Stats {
        let total = self.len().pages_down(self.page);
        let all = Extent::new(0, total.get()).map_or(Vec::new(), |all| self.marked.runs_in(all));
        let marked = Pages::new(all.iter().map(|run| run.len()).sum());
        Stats { engine: self.engine, total, marked, resident: marked, ..self.counts.sum() }
    }
}
