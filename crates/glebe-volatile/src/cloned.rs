//! Regions work in part in a process that clone(2) made without the C library: missing threads may
//! hold their locks, and the userfaultfd is the parent's.
//!
//! These calls take no lock and use no descriptor. An unmark reports all marked pages lost, by
//! their bits. Other calls return an error if they need more. Losses that another thread's unmark
//! had found but not returned are never reported: their bits are clear, and the log needs a lock.
//!
//! # Safety
//! Only marked pages inside the region are dropped.
#![allow(unsafe_code)]

use super::{Error, Purged, Region, Stats};
use glebe_os::extent::Extent;
use glebe_os::internal::sys::memory::madvise::{advise, Advice};
use glebe_os::units::Pages;

impl Region {
    /// Drops the marked pages and reports them lost.
    pub(super) fn unmark_cloned(&self, pages: Extent) -> Result<Purged, Error> {
        let lost = self.marked.runs_in(pages);
        for run in &lost {
            let (at, len) = run.place(self.addr(), self.page);
            // SAFETY: marked pages of the region; since the clone, copies of the parent's.
            unsafe { advise(at, len, Advice::DontNeed)? };
            self.marked.clear(*run);
        }
        Ok(Purged::from_runs(lost))
    }

    /// Returns the counters and the marked pages, which all count as resident.
    pub(super) fn stats_cloned(&self) -> Stats {
        let total = self.len().pages_down(self.page);
        let all = Extent::new(0, total.get()).map_or(Vec::new(), |all| self.marked.runs_in(all));
        let marked = Pages::new(all.iter().map(|run| run.len()).sum());
        Stats { engine: self.engine, total, marked, resident: marked, ..self.counts.sum() }
    }
}
