//! Pages that need not lie side by side: many extents at once, all or none.
//!
//! The lowest ones, so that short holes are used up before long runs; where those are very many,
//! the longest ones. Cost: O(log n) an extent.

use super::Positions;
use crate::extent::Extent;

/// Why no scattered pages were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scattered {
    /// There are only so many, in whole grains.
    Free(u64),
    /// The list must be longer.
    NoRoom,
}

/// From so many on the lowest extents are passed over for the longest: a mapping costs
/// microseconds.
const MANY_EXTENTS: usize = 1024;

impl Positions {
    /// Free extents, contiguous or not.
    pub(crate) fn extents(&self) -> usize {
        self.searched(true).extents()
    }

    /// Takes `len` pages, contiguous or not, in whole grains, from the lowest ones up; puts them
    /// into `found`, which is empty, and takes none where that would have to grow.
    pub(crate) fn take_scattered(
        &mut self,
        len: u64,
        grain: u64,
        found: &mut Vec<Extent>,
    ) -> Result<(), Scattered> {
        let flat = self.flat.is_some();
        let (mut missing, mut from) = (len, 0);
        while missing > 0 {
            let tree = self.searched(flat);
            let rest = Extent::new(from, u64::MAX - from);
            let Some(place) = tree.find(grain, grain, rest).ok().flatten() else {
                return Err(Scattered::Free(len - missing));
            };
            if found.len() == found.capacity() {
                return Err(Scattered::NoRoom);
            }
            let end = tree.containing(place.start()).map_or(place.end(), Extent::end);
            let whole = (end - place.start()) / grain * grain;
            let pages = self.pages_of(place, flat).start;
            found.extend(Extent::new(pages, whole.min(missing)));
            missing -= whole.min(missing);
            from = end;
        }
        if grain == 1 && found.len() > MANY_EXTENTS {
            found.clear();
            self.take_longest(len, found);
            return Ok(());
        }
        found.iter().for_each(|pages| self.claim(*pages));
        Ok(())
    }

    /// Takes `len` pages that are free, from the longest extents down.
    fn take_longest(&mut self, mut missing: u64, found: &mut Vec<Extent>) {
        let flat = self.flat.is_some();
        while missing > 0 {
            let tree = self.searched(flat);
            let len = tree.largest().min(missing);
            let place = tree.find(len, 1, None).ok().flatten().expect("enough is free");
            let start = self.pages_of(place, flat).start;
            let pages = Extent::new(start, len).expect("not empty");
            self.claim(pages);
            found.push(pages);
            missing -= len;
        }
    }
}
