//! [`Blocks`] holds a size class's own data on its zspages; [`Groups`] lists zspages by fullness.
//!
//! ```text
//! block, words of 32 bits
//!  0  number
//!  1  first page
//!  2  previous in its list
//!  3  next in its list
//!  4  used slots 16 | slots ever used 16
//!  5  sealed 1 | first free slot 16
//!  6  back pointers, one a slot
//! ```
//!
//! A *back pointer* is the index of the pool's entry for the object in the slot. If its highest bit
//! is set, the slot has no object; in a free slot, the lower bits name the next free slot.
//!
//! A zspage is in the group empty, below 10 % ... below 100 %, or full. Lock: the class's.

use crate::memory::account::{Account, NoRoom};
use crate::memory::zspages::Zspages;

pub(crate) const NONE: u32 = u32::MAX;
const NO_SLOT: u32 = 0xffff;
const IS_SEALED: u32 = 1 << 16;
const FREE: u32 = 1 << 31;
const LIMBO: u32 = FREE | 1 << 30;

const NUMBER: usize = 0;
const PAGE: usize = 1;
pub(super) const PREV: usize = 2;
pub(super) const NEXT: usize = 3;
const COUNTS: usize = 4;
const HEAD: usize = 5;
const BACK: usize = 6;

const AHEAD_PARTS: usize = 8;
const AHEAD_WORDS: usize = 32;

#[derive(Debug)]
pub(crate) struct Blocks {
    words: Vec<u32>,
    room: usize,
    len: u32,
    stride: u16,
}

const fn bytes_of(words: usize) -> u64 {
    (words * size_of::<u32>()) as u64
}

impl Blocks {
    pub(crate) fn new(objects: u32) -> Self {
        Self { words: Vec::new(), room: 0, len: 0, stride: BACK as u16 + objects as u16 }
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn push(
        &mut self,
        account: &Account,
        number: u32,
        page: u32,
    ) -> Result<u32, NoRoom> {
        let (ordinal, words) = (self.len, self.words.len() + usize::from(self.stride));
        if words > self.room {
            let room = words + words / AHEAD_PARTS + AHEAD_WORDS;
            if !account.charge(bytes_of(room - self.room)) {
                return Err(NoRoom::Limit);
            }
            self.words.reserve_exact(room - self.words.len());
            self.room = room;
        }
        self.words.resize(words, 0);
        self.len += 1;
        self.at_mut(ordinal)[..BACK].copy_from_slice(&[number, page, NONE, NONE, 0, NO_SLOT]);
        Ok(ordinal)
    }

    /// Returns `ordinal` if the last block moved there.
    pub(crate) fn remove(&mut self, account: &Account, ordinal: u32) -> Option<u32> {
        let last = self.len - 1;
        let (left, to) = (self.start(last), self.start(ordinal));
        self.words.copy_within(left.., to);
        self.words.truncate(left);
        self.len = last;
        let room = left + left / AHEAD_PARTS + AHEAD_WORDS;
        // Keeps some room, so adding and removing one zspage repeatedly does not allocate.
        if self.room > room + room / AHEAD_PARTS + AHEAD_WORDS {
            self.words.shrink_to(room);
            account.release(bytes_of(self.room - room));
            self.room = room;
        }
        (ordinal != last).then_some(ordinal)
    }

    /// Gives up the room that [`Blocks::remove`] keeps.
    pub(super) fn give_up(&mut self, account: &Account) {
        debug_assert_eq!(self.len, 0);
        account.release(bytes_of(self.room));
        (self.words, self.room) = (Vec::new(), 0);
    }

    #[inline]
    fn start(&self, ordinal: u32) -> usize {
        ordinal as usize * usize::from(self.stride)
    }

    #[inline]
    fn at(&self, ordinal: u32) -> &[u32] {
        &self.words[self.start(ordinal)..][..usize::from(self.stride)]
    }

    #[inline]
    fn at_mut(&mut self, ordinal: u32) -> &mut [u32] {
        let start = self.start(ordinal);
        &mut self.words[start..][..usize::from(self.stride)]
    }

    #[inline]
    pub(crate) fn number(&self, ordinal: u32) -> u32 {
        self.at(ordinal)[NUMBER]
    }

    #[inline]
    pub(crate) fn page(&self, ordinal: u32) -> u32 {
        self.at(ordinal)[PAGE]
    }

    #[inline]
    pub(crate) fn used(&self, ordinal: u32) -> u32 {
        self.at(ordinal)[COUNTS] >> 16
    }

    #[inline]
    pub(super) fn link(&self, ordinal: u32, which: usize) -> u32 {
        self.at(ordinal)[which]
    }

    #[inline]
    pub(super) fn set_link(&mut self, ordinal: u32, which: usize, to: u32) {
        self.at_mut(ordinal)[which] = to;
    }

    #[inline]
    pub(crate) fn is_sealed(&self, ordinal: u32) -> bool {
        self.at(ordinal)[HEAD] & IS_SEALED != 0
    }

    pub(crate) fn set_sealed(&mut self, ordinal: u32, sealed: bool) {
        let head = &mut self.at_mut(ordinal)[HEAD];
        *head = *head & !IS_SEALED | if sealed { IS_SEALED } else { 0 };
    }

    #[inline]
    pub(crate) fn take_slot(&mut self, ordinal: u32, index: u32) -> u32 {
        let block = self.at_mut(ordinal);
        let head = block[HEAD] & 0xffff;
        let slot = if head == NO_SLOT {
            let fresh = block[COUNTS] & 0xffff;
            block[COUNTS] += 1;
            fresh
        } else {
            let next = block[BACK + head as usize] & 0xffff;
            block[HEAD] = block[HEAD] & !0xffff | next;
            head
        };
        block[COUNTS] += 1 << 16;
        block[BACK + slot as usize] = index;
        slot
    }

    #[inline]
    pub(crate) fn free_slot(&mut self, ordinal: u32, slot: u32) {
        let block = self.at_mut(ordinal);
        debug_assert!(block[BACK + slot as usize] & LIMBO != FREE, "slot {slot} was free");
        block[BACK + slot as usize] = FREE | block[HEAD] & 0xffff;
        block[HEAD] = block[HEAD] & !0xffff | slot;
        block[COUNTS] -= 1 << 16;
    }

    pub(crate) fn set_limbo(&mut self, ordinal: u32, slot: u32) {
        self.at_mut(ordinal)[BACK + slot as usize] = LIMBO;
    }

    /// The object may not be written yet.
    #[inline]
    pub(crate) fn back(&self, ordinal: u32, slot: u32) -> Option<u32> {
        let back = self.at(ordinal)[BACK + slot as usize];
        (back & FREE == 0).then_some(back)
    }

    pub(crate) fn fresh(&self, ordinal: u32) -> u32 {
        self.at(ordinal)[COUNTS] & 0xffff
    }

    pub(crate) fn tell(&self, zspages: &Zspages, ordinal: u32) {
        zspages.set_ordinal(self.number(ordinal), ordinal);
    }
}

pub(crate) const GROUPS: usize = 12;
pub(crate) const EMPTY: usize = 0;
const FULL: usize = GROUPS - 1;

#[derive(Debug)]
pub(crate) struct Groups {
    heads: [u32; GROUPS],
    present: u32,
    objects: u32,
    /// 10 / `objects` in units of 2^-32, rounded up, so that [`Groups::of`] is exact.
    tenths: u64,
}

impl Groups {
    pub(crate) fn new(objects: u32) -> Self {
        let tenths = (10_u64 << 32).div_ceil(objects.into());
        Self { heads: [NONE; GROUPS], present: 0, objects, tenths }
    }

    #[inline]
    pub(crate) fn of(&self, used: u32) -> usize {
        if used == 0 {
            EMPTY
        } else if used == self.objects {
            FULL
        } else {
            ((u64::from(used) * self.tenths) >> 32) as usize + 1
        }
    }

    #[inline]
    pub(crate) fn fullest(&self) -> Option<u32> {
        let with_room = self.present & ((1 << FULL) - 1);
        (with_room != 0).then(|| self.heads[with_room.ilog2() as usize])
    }

    #[inline]
    pub(crate) fn empty(&self) -> Option<u32> {
        Some(self.heads[EMPTY]).filter(|head| *head != NONE)
    }

    pub(crate) fn full(&self) -> Option<u32> {
        Some(self.heads[FULL]).filter(|head| *head != NONE)
    }

    pub(crate) fn emptiest_first(&self) -> impl Iterator<Item = u32> + '_ {
        self.heads[..FULL].iter().copied().filter(|head| *head != NONE)
    }

    #[inline]
    pub(crate) fn link(&mut self, blocks: &mut Blocks, ordinal: u32, group: usize) {
        let head = self.heads[group];
        blocks.set_link(ordinal, PREV, NONE);
        blocks.set_link(ordinal, NEXT, head);
        if head != NONE {
            blocks.set_link(head, PREV, ordinal);
        }
        self.heads[group] = ordinal;
        self.present |= 1 << group;
    }

    #[inline]
    pub(crate) fn unlink(&mut self, blocks: &mut Blocks, ordinal: u32, group: usize) {
        let (prev, next) = (blocks.link(ordinal, PREV), blocks.link(ordinal, NEXT));
        if next != NONE {
            blocks.set_link(next, PREV, prev);
        }
        if prev != NONE {
            blocks.set_link(prev, NEXT, next);
        } else {
            self.heads[group] = next;
            if next == NONE {
                self.present &= !(1 << group);
            }
        }
    }

    pub(crate) fn relink(&mut self, blocks: &mut Blocks, ordinal: u32, group: usize) {
        let (prev, next) = (blocks.link(ordinal, PREV), blocks.link(ordinal, NEXT));
        if next != NONE {
            blocks.set_link(next, PREV, ordinal);
        }
        if prev != NONE {
            blocks.set_link(prev, NEXT, ordinal);
        } else {
            self.heads[group] = ordinal;
        }
    }

    pub(crate) fn counts(&self, blocks: &Blocks) -> [u64; GROUPS] {
        let mut counts = [0; GROUPS];
        (0..blocks.len()).for_each(|ordinal| counts[self.of(blocks.used(ordinal))] += 1);
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_ten_percent() {
        for objects in 1..=1024 {
            let groups = Groups::new(objects);
            for used in 1..objects {
                let exact = (100 * used / objects / 10 + 1) as usize;
                assert_eq!(groups.of(used), exact, "{used} of {objects}");
            }
            assert_eq!((groups.of(0), groups.of(objects)), (0, FULL));
        }
    }
}
