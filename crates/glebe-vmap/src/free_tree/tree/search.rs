//! At each level, a search takes the first child whose maximum is large enough. The search goes
//! back up only if the leaf offers less than the maximum.

use super::super::lanes::{at_least, rank, usable, Lane};
use super::{Entry, Path, Spot, Tree, NOWHERE};

/// A `Need` asks for `len` positions that start at a multiple of `mask + 1`, within `low..high`.
#[derive(Clone, Copy, Debug)]
pub(in crate::free_tree) struct Need<L> {
    pub(in crate::free_tree) len: L,
    pub(in crate::free_tree) mask: L,
    pub(in crate::free_tree) log: u32,
    pub(in crate::free_tree) low: L,
    pub(in crate::free_tree) high: L,
}

impl<L: Lane> Need<L> {
    #[inline(always)]
    pub(in crate::free_tree) fn of(len: u64, align: u64, (low, high): (u64, u64)) -> Self {
        let [len, mask, low, high] = [len, align - 1, low, high].map(L::of);
        Self { len, mask, log: align.trailing_zeros(), low, high }
    }
}

impl<L: Lane, const B: usize> Tree<L, B> {
    #[inline(always)]
    pub(in crate::free_tree) fn find(&self, need: &Need<L>, path: &mut Path) -> Option<(Spot, L)> {
        let found = if need.low > L::ZERO {
            let spot = self.descend(need.low, path);
            if let Some(found) = self.find_in_before(need, path, spot) {
                return (found.1 + need.len <= need.high).then_some(found);
            }
            self.first_fit(path, self.height, spot.leaf, spot.lane, need)
        } else {
            self.first_fit(path, 0, self.root as usize, 0, need)
        };
        let spot = found?;
        let (start, _) = self.entry(spot);
        let place = start + start.pad(need.mask);
        // Every other place is higher, so it does not fit either.
        (place + need.len <= need.high).then_some((spot, place))
    }

    /// Tries the first aligned place from `need.low`, in the extent before `spot`.
    #[inline(always)]
    fn find_in_before(&self, need: &Need<L>, path: &mut Path, spot: Spot) -> Option<(Spot, L)> {
        let fits = |(start, len): Entry<L>| {
            let rest = (start + len).minus(need.low);
            usable(need.low, rest, need.mask) >= need.len
        };
        let place = need.low + need.low.pad(need.mask).min(L::MAX - need.low);
        if spot.lane > 0 {
            let before = Spot { lane: spot.lane - 1, ..spot };
            return fits(self.entry(before)).then_some((before, place));
        }
        let mut way = path.clone();
        let before = self.retreat(&mut way)?;
        if !fits(self.entry(before)) {
            return None;
        }
        *path = way;
        Some((before, place))
    }

    #[inline(always)]
    fn first_fit(
        &self,
        path: &mut Path,
        mut level: usize,
        mut n: usize,
        mut from: usize,
        need: &Need<L>,
    ) -> Option<Spot> {
        let class = self.class(need.log);
        path.leaf = NOWHERE;
        // If not 0, no place starts before this position.
        let mut next = L::ZERO;
        loop {
            if next > L::ZERO && level < self.height {
                // Skips children that end before `next`.
                from = from.max(rank(&self.inners[n].key, next).saturating_sub(2));
            }
            let later = (u64::from(u32::MAX) << from) as u32;
            if level == self.height {
                let fits = self.leaf_fits(n, need.len, need.mask) & later;
                if fits != 0 {
                    (path.leaf, path.shape) = (n as u32, self.shape);
                    return Some(Spot { leaf: n, lane: fits.trailing_zeros() as usize });
                }
                if self.leaves[n].start[0] >= need.high {
                    return None;
                }
                // If the leaf spans less than the alignment, the first multiple after the leaf's
                // end is the next candidate.
                if need.mask > self.masks[class] {
                    let (start, len) = self.entry(Spot { leaf: n, lane: self.count(n) - 1 });
                    if need.mask >= start - self.leaves[n].start[0] {
                        let pad = (start + len).pad(need.mask);
                        if pad >= L::MAX - (start + len) {
                            return None;
                        }
                        next = start + len + pad;
                    }
                }
            } else {
                let row = self.row(n, class);
                let lane = match row[0] >= need.len && from == 0 {
                    true => 0,
                    false => (at_least(row, need.len) & later).trailing_zeros() as usize,
                };
                if lane < B {
                    (path.node[level], path.lane[level]) = (n as u32, lane as u8);
                    n = self.inners[n].child[lane] as usize;
                    (level, from) = (level + 1, 0);
                    continue;
                }
            }
            level = level.checked_sub(1)?;
            (n, from) = (path.node(level), path.lane(level) + 1);
        }
    }
}
