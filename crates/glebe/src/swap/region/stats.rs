//! Fills [`Stats`] for a region. Numbers that only a `Store` has are 0.

use super::inner::RegionCore;
use crate::swap::file::SpillFile;
use crate::swap::stats::Stats;
use crate::swap::word::{look, WordState};
use glebe_os::internal::sync::Ordering;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

impl RegionCore {
    pub(super) fn stats(&self) -> Stats {
        if self.alive().is_err() {
            return Stats::default();
        }
        let file = self.copies.file.as_ref().map_or(Bytes::ZERO, SpillFile::held);
        let (charged, budget) = (self.charged(), self.budget());
        let mut stats = Stats {
            charged: Pages::new(charged),
            budget: Pages::new(budget),
            over: Pages::new(charged.saturating_sub(budget)),
            window: Pages::new(self.window.load(Ordering::Relaxed)),
            pool: self.copies.pool.held().pages_up(page_size()),
            file: file.pages_up(page_size()),
            load: self.loads.snapshot(),
            ..self.counts.sum()
        };
        for page in 0..self.pages() {
            let word = look(self.slot_of(page).word());
            let is = |yes: bool| Pages::new(u64::from(yes));
            let is_there = matches!(
                word.state(),
                WordState::Resident | WordState::Window | WordState::Leaving
            );
            stats.resident = stats.resident + is(is_there);
            stats.pinned = stats.pinned + is(is_there && word.guards() > 0);
            stats.kept = stats.kept + is(is_there && word.has_copy());
            stats.stored = stats.stored + is(!is_there && word.state() != WordState::Hole);
        }
        stats
    }
}
