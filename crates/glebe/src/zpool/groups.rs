//! [`Groups`]: the zspages of a class by fullness, in twelve lists: empty, below 10 % ... below
//! 100 %, full. New objects go to the fullest zspage with room; compaction empties the emptiest.
//!
//! Lists are linked through the blocks, by ordinal; the last that came is first. All of it is
//! under the class's lock. Cost: O(1). Source: `mm/zsmalloc.c` of Linux 6.3 and later.

use super::zspage::{Blocks, NEXT, NONE, PREV};

/// Fullness groups.
pub(crate) const GROUPS: usize = 12;
/// That of zspages of which no slot is in use.
pub(crate) const EMPTY: usize = 0;
const FULL: usize = GROUPS - 1;

/// See the module.
#[derive(Debug)]
pub(crate) struct Groups {
    heads: [u32; GROUPS],
    /// Groups with a zspage, a bit each.
    present: u32,
    objects: u32,
    /// 10 / objects in 32 bits of fraction, rounded up: exact for all that a zspage may hold.
    tenths: u64,
}

impl Groups {
    /// For zspages of `objects` slots.
    pub(crate) fn new(objects: u32) -> Self {
        let tenths = (10_u64 << 32).div_ceil(objects.into());
        Self { heads: [NONE; GROUPS], present: 0, objects, tenths }
    }

    /// The group of a zspage with `used` slots in use.
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

    /// The first zspage of the fullest group that has room.
    #[inline]
    pub(crate) fn fullest(&self) -> Option<u32> {
        let with_room = self.present & ((1 << FULL) - 1);
        (with_room != 0).then(|| self.heads[with_room.ilog2() as usize])
    }

    /// The first zspage of which no slot is in use.
    #[inline]
    pub(crate) fn empty(&self) -> Option<u32> {
        Some(self.heads[EMPTY]).filter(|head| *head != NONE)
    }

    /// The first full zspage.
    pub(crate) fn full(&self) -> Option<u32> {
        Some(self.heads[FULL]).filter(|head| *head != NONE)
    }

    /// The first zspages of each list, emptiest list first, full ones left out.
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

    /// Follows a linked block that has moved to `ordinal`.
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

    /// Zspages of each group.
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
