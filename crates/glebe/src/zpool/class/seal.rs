//! Sealing: a zspage whose bytes were copied elsewhere gives its own pages back and stays what it
//! is otherwise: its objects have their entries, its slots their back pointers.
//!
//! ```text
//! listed -- begin --> about to be sealed -- finish --> sealed -- last slot freed --> ended
//!    ^                        |
//!    +--------- abort --------+
//! ```
//!
//! From `begin` on it stands in no list, so no slot of it is given out: with no writer at work
//! there its bytes stay as they are. Whether one is at work the entries tell: a slot that the
//! entry of its back pointer does not name is still being written. Between `begin` and `finish`
//! the zspage is pinned, so that what is removed meanwhile goes to limbo and the zspage does not
//! end. Readers of own pages are seen by their pins after the header says *sealed*; the pages
//! wait for them. Free slots of it are no slack: compaction frees nothing by them.
//!
//! An ended zspage keeps its number until who has its bytes has let go of them.

use super::State;
use crate::sync::Ordering;
use crate::zpool::class::blocks::{NEXT, NONE};
use crate::zpool::entry::word::Entry;
use crate::zpool::shared::Memory;

/// Zspages of a list that are looked at for one without a writer.
const CANDIDATES: usize = 8;

/// How full a zspage has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fullness {
    /// No slot is free.
    Full,
    /// The fullest that there is.
    Fullest,
}

/// A zspage that is about to be sealed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) zspage: u32,
    pub(crate) page: u32,
    pub(crate) pages: u32,
    /// Bytes that slots take.
    pub(crate) len: usize,
}

impl State {
    /// Takes a zspage out of the lists and pins it, to be copied.
    pub(crate) fn begin_seal(&mut self, memory: &Memory, fullness: Fullness) -> Option<Begun> {
        let head = match fullness {
            Fullness::Full => self.groups.full(),
            Fullness::Fullest => self.groups.full().or_else(|| self.groups.fullest()),
        }?;
        let next = |at: &u32| Some(self.blocks.link(*at, NEXT)).filter(|at| *at != NONE);
        let mut few = std::iter::successors(Some(head), next).take(CANDIDATES);
        let ordinal = few.find(|at| self.is_published(memory, *at))?;
        let used = self.blocks.used(ordinal);
        self.groups.unlink(&mut self.blocks, ordinal, self.groups.of(used));
        self.blocks.set_sealed(ordinal, true);
        self.set_slack(memory, self.slack - (self.shape.objects - used));
        let (zspage, page) = (self.blocks.number(ordinal), self.blocks.page(ordinal));
        memory.pins.pin(zspage);
        let len = self.blocks.fresh(ordinal) as usize * self.shape.size as usize;
        Some(Begun { zspage, page, pages: self.shape.pages, len })
    }

    /// Whether nobody writes to a slot of it.
    fn is_published(&self, memory: &Memory, ordinal: u32) -> bool {
        let mut slots = 0..self.blocks.fresh(ordinal);
        slots.all(|slot| {
            self.blocks.back(ordinal, slot).is_none()
                || self.object(memory, ordinal, slot).is_some()
        })
    }

    /// The bytes are elsewhere now, and readers know where.
    pub(crate) fn finish_seal(&mut self, memory: &Memory, begun: Begun) {
        memory.zspages.set_sealed(begun.zspage);
        memory.pins.unpin(begun.zspage);
        self.leaving.push((begun.zspage, begun.page));
        memory.waiting.fetch_add(1, Ordering::Relaxed);
        self.settle_leaving(memory);
    }

    /// The bytes could not be copied: everything is as it was.
    pub(crate) fn abort_seal(&mut self, memory: &Memory, begun: Begun) {
        memory.pins.unpin(begun.zspage);
        let ordinal = memory.zspages.ordinal(begun.zspage);
        self.blocks.set_sealed(ordinal, false);
        let used = self.blocks.used(ordinal);
        self.groups.link(&mut self.blocks, ordinal, self.groups.of(used));
        self.set_slack(memory, self.slack + self.shape.objects - used);
    }

    /// Gives own pages of sealed zspages back that nobody reads any more; whether any went.
    pub(super) fn settle_leaving(&mut self, memory: &Memory) -> bool {
        let before = self.leaving.len();
        let pages = self.shape.pages;
        self.leaving.retain(|(zspage, page)| {
            let stays = memory.pins.is_pinned(*zspage);
            if !stays {
                memory.pages.free(*page, pages);
                memory.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            stays
        });
        self.leaving.len() < before
    }

    /// Ends a sealed zspage of which the last slot was freed just now: nobody reads there.
    pub(super) fn end_sealed(&mut self, memory: &Memory, ordinal: u32) {
        let number = self.blocks.number(ordinal);
        if let Some(at) = self.leaving.iter().position(|(zspage, _)| *zspage == number) {
            let (_, page) = self.leaving.swap_remove(at);
            memory.pages.free(page, self.shape.pages);
            memory.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        self.drop_block(memory, ordinal);
        memory.zspages.end(number);
        memory.add_ended(number);
    }

    /// Zspages that have no pages of their own any more.
    pub(crate) fn sealed(&self) -> u64 {
        let sealed = (0..self.blocks.len()).filter(|ordinal| self.blocks.is_sealed(*ordinal));
        sealed.count().saturating_sub(self.leaving.len()) as u64
    }

    /// Removes the objects of a sealed zspage that have bytes in one of `pages`, a bit each.
    pub(crate) fn lose(&mut self, memory: &Memory, zspage: u32, pages: u32) -> Vec<(u32, Entry)> {
        let page = memory.pages.page_bytes() as usize;
        self.evict_where(memory, zspage, |bytes| {
            (bytes.start / page..=(bytes.end - 1) / page).any(|at| pages & 1 << at != 0)
        })
    }

    /// The objects of a sealed zspage, each with its entry's index and the entry, if of the slots
    /// that were ever used so many quarters or fewer are.
    pub(crate) fn sparse_objects(
        &self,
        memory: &Memory,
        zspage: u32,
        quarters: u32,
    ) -> Vec<(u32, Entry)> {
        if !self.has(memory, zspage) || !memory.zspages.about(zspage).is_sealed {
            return Vec::new();
        }
        let ordinal = memory.zspages.ordinal(zspage);
        let (used, fresh) = (self.blocks.used(ordinal), self.blocks.fresh(ordinal));
        if used * 4 > fresh * quarters {
            return Vec::new();
        }
        (0..fresh).filter_map(|slot| self.object(memory, ordinal, slot)).collect()
    }
}
