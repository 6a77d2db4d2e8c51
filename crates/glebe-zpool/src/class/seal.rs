//! [`ClassState`] seals a zspage: its *holder* copies the bytes, then the zspage's pages are freed.
//!
//! ```text
//! listed -- begin --> about to be sealed -- finish --> sealed -- last slot freed --> ended
//!    ^                        |
//!    +--------- abort --------+
//! ```
//!
//! `begin` takes a zspage without a writer out of its list, so the zspage gives out no slot. A pin
//! until `finish` or `abort` keeps slots of removed objects used, so the zspage does not end.
//! `finish` first sets the flag *sealed*, so new readers use the copy. The own pages are freed when
//! no earlier reader pins the zspage.
//!
//! An ended zspage keeps its number until the holder has dropped the copy.

use super::ClassState;
use crate::class::blocks::{NEXT, NONE};
use crate::entry::word::Entry;
use crate::shared::Memory;
use glebe_os::internal::sync::Ordering;

const CANDIDATES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fullness {
    Full,
    Fullest,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) zspage: u32,
    pub(crate) page: u32,
    pub(crate) pages: u32,
    pub(crate) len: usize,
}

impl ClassState {
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

    fn is_published(&self, memory: &Memory, ordinal: u32) -> bool {
        let mut slots = 0..self.blocks.fresh(ordinal);
        slots.all(|slot| {
            self.blocks.back(ordinal, slot).is_none()
                || self.object(memory, ordinal, slot).is_some()
        })
    }

    pub(crate) fn finish_seal(&mut self, memory: &Memory, begun: Begun) {
        memory.zspages.set_sealed(begun.zspage);
        memory.pins.unpin(begun.zspage);
        self.leaving.push((begun.zspage, begun.page));
        memory.waiting.fetch_add(1, Ordering::Relaxed);
        self.settle_leaving(memory);
    }

    pub(crate) fn abort_seal(&mut self, memory: &Memory, begun: Begun) {
        memory.pins.unpin(begun.zspage);
        let ordinal = memory.zspages.ordinal(begun.zspage);
        self.blocks.set_sealed(ordinal, false);
        let used = self.blocks.used(ordinal);
        self.groups.link(&mut self.blocks, ordinal, self.groups.of(used));
        self.set_slack(memory, self.slack + self.shape.objects - used);
    }

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

    pub(crate) fn sealed(&self) -> u64 {
        let sealed = (0..self.blocks.len()).filter(|ordinal| self.blocks.is_sealed(*ordinal));
        sealed.count().saturating_sub(self.leaving.len()) as u64
    }

    pub(crate) fn lose(&mut self, memory: &Memory, zspage: u32, pages: u32) -> Vec<(u32, Entry)> {
        let page = memory.pages.page_bytes() as usize;
        self.evict_where(memory, zspage, |bytes| {
            (bytes.start / page..=(bytes.end - 1) / page).any(|at| pages & 1 << at != 0)
        })
    }

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
