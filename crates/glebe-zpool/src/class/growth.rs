//! [`ClassState`] adds and frees zspages, and frees slots in limbo.

use super::{ClassState, Empty};
use crate::class::blocks::EMPTY;
use crate::memory::account::NoRoom;
use crate::shared::Memory;
use glebe_os::internal::sync::Ordering;

impl ClassState {
    #[cold]
    pub(super) fn grow_or_settle(&mut self, memory: &Memory) -> Result<u32, NoRoom> {
        if !self.limbo.is_empty() {
            self.settle(memory);
            if let Some(ordinal) = self.groups.fullest() {
                return Ok(ordinal);
            }
        }
        self.grow(memory)
    }

    pub(super) fn grow(&mut self, memory: &Memory) -> Result<u32, NoRoom> {
        let account = &memory.account;
        let (number, made) = memory.zspages.take(account)?;
        let page = match memory.pages.alloc(account, self.shape.pages) {
            Ok(page) => page,
            Err(error) => {
                memory.zspages.drop_number(account, number);
                return Err(error);
            }
        };
        let ordinal = match self.blocks.push(account, number, page) {
            Ok(ordinal) => ordinal,
            Err(error) => {
                memory.pages.free(page, self.shape.pages);
                memory.zspages.drop_number(account, number);
                return Err(error);
            }
        };
        memory.zspages.set((number, made), self.number, page, ordinal);
        self.groups.link(&mut self.blocks, ordinal, EMPTY);
        self.set_slack(memory, self.slack + self.shape.objects);
        Ok(ordinal)
    }

    pub(crate) fn free_empty(&mut self, memory: &Memory) -> u32 {
        let before = self.zspages();
        while let Some(ordinal) = self.groups.empty() {
            self.shrink(memory, ordinal);
        }
        before - self.zspages()
    }

    #[cold]
    pub(super) fn shrink(&mut self, memory: &Memory, ordinal: u32) {
        if self.blocks.is_sealed(ordinal) {
            return self.end_sealed(memory, ordinal);
        }
        let (number, page) = (self.blocks.number(ordinal), self.blocks.page(ordinal));
        self.set_slack(memory, self.slack - self.shape.objects);
        self.groups.unlink(&mut self.blocks, ordinal, EMPTY);
        self.drop_block(memory, ordinal);
        memory.zspages.put_back(&memory.account, number);
        memory.pages.free(page, self.shape.pages);
    }

    pub(super) fn drop_block(&mut self, memory: &Memory, ordinal: u32) {
        if let Some(moved) = self.blocks.remove(&memory.account, ordinal) {
            self.blocks.tell(&memory.zspages, moved);
            if !self.blocks.is_sealed(moved) {
                let group = self.groups.of(self.blocks.used(moved));
                self.groups.relink(&mut self.blocks, moved, group);
            }
        }
    }

    /// Frees slots in limbo without readers. Returns true if pages or a zspage were freed.
    pub(crate) fn settle(&mut self, memory: &Memory) -> bool {
        let waiting = std::mem::take(&mut self.limbo);
        let mut went = false;
        if !self.leaving.is_empty() {
            went = self.settle_leaving(memory);
        }
        for place in waiting {
            memory.waiting.fetch_sub(1, Ordering::Relaxed);
            went |= self.give_up(memory, place, Empty::Goes);
        }
        went
    }
}
