//! The search for the lowest fit.
//!
//! Owns nothing. It reads one row of maxima and one child at each level, and then a leaf. It
//! goes up again only where a row promised what the leaf does not hold: for an alignment that is no
//! class, and at the few leaves of which the maxima may be too large.

use super::super::lanes::{at_least, rank, usable, Lane};
use super::{Entry, Path, Spot, Tree, NOWHERE};

/// What a place must have: `len` positions from a multiple of `mask + 1`, in `low..high`.
#[derive(Clone, Copy, Debug)]
pub(in crate::free_tree) struct Need<L> {
    pub(in crate::free_tree) len: L,
    pub(in crate::free_tree) mask: L,
    /// The logarithm of `mask + 1`.
    pub(in crate::free_tree) log: u32,
    pub(in crate::free_tree) low: L,
    pub(in crate::free_tree) high: L,
}

impl<L: Lane> Need<L> {
    /// `len` from a multiple of `align` on, in a window.
    #[inline(always)]
    pub(in crate::free_tree) fn of(len: u64, align: u64, (low, high): (u64, u64)) -> Self {
        let [len, mask, low, high] = [len, align - 1, low, high].map(L::of);
        Self { len, mask, log: align.trailing_zeros(), low, high }
    }
}

impl<L: Lane, const B: usize> Tree<L, B> {
    /// The lowest place that is as `need` says, and where the extent is that it lies in.
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
        // All others are higher.
        (place + need.len <= need.high).then_some((spot, place))
    }

    /// A place at the start of the window, in the extent before `spot`.
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

    /// The first extent that fits, beginning at lane `from` of node `n` at `level`, unless the
    /// window ends before it; and the way there.
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
        // All places are here or later, if it is not 0.
        let mut next = L::ZERO;
        loop {
            if next > L::ZERO && level < self.height {
                // What lies in the child before may reach past the key, and nothing further back.
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
                // A place after a whole leaf: what lies before it is passed by.
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
