//! Each change makes room if needed, writes the leaf, updates the maxima above, and balances small
//! nodes.
//!
//! Making room and balancing move entries only between nodes of one parent, so no maximum above
//! that parent changes.

use super::super::lanes::{insert, remove, Lane};
use super::{Entry, Path, Paths, Spot, Tree};

#[derive(Clone, Copy, Debug)]
pub(in crate::free_tree) enum Refused<L> {
    Overlaps(Entry<L>),
    Full,
}

const fn none<L: Lane>() -> Entry<L> {
    (L::ZERO, L::ZERO)
}

impl<L: Lane, const B: usize> Tree<L, B> {
    /// Takes `len` positions from `at` on. Fails if this leaves two extents and the tree is full.
    #[inline(always)]
    pub(in crate::free_tree) fn carve(
        &mut self,
        path: &mut Path,
        mut spot: Spot,
        at: L,
        len: L,
    ) -> Result<(), Refused<L>> {
        let (start, old_len) = self.entry(spot);
        let (left, right) = (at - start, old_len - (at - start) - len);
        let (first, second) = match (left > L::ZERO, right > L::ZERO) {
            (false, false) => (none(), none()),
            (false, true) => ((at + len, right), none()),
            (true, false) => ((start, left), none()),
            (true, true) => {
                if self.len == self.limit {
                    return Err(Refused::Full);
                }
                if self.count(spot.leaf) == B {
                    spot = self.make_room(path, spot.leaf, start);
                    spot.lane -= 1;
                }
                ((start, left), (at + len, right))
            }
        };
        let old = self.entry(spot);
        if first.1 == L::ZERO {
            self.take_out(path, spot, true);
            return Ok(());
        }
        self.write(spot, first);
        if second.1 > L::ZERO {
            spot.lane += 1;
            self.put_in(spot, second);
        }
        self.settle_shrunk(path, old, first, second);
        if right > L::ZERO {
            self.raise_next_key(path, spot);
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn add_with(
        &mut self,
        paths: &mut Paths,
        start: L,
        len: L,
    ) -> Result<(), Refused<L>> {
        let (spot, path) = self.locate(start, paths);
        let count = self.count(spot.leaf);
        let (in_before, in_after) = (spot.lane > 0, spot.lane < count);
        let before = match in_before {
            true => Some(self.entry(Spot { lane: spot.lane - 1, ..spot })),
            false => self.retreat(&mut path.clone()).map(|spot| self.entry(spot)),
        };
        let after = match in_after {
            true => Some(self.entry(spot)),
            false => self.advance(&mut path.clone()).map(|spot| self.entry(spot)),
        };
        let mut joins = (None, None);
        if let Some(before) = before {
            let end = before.0 + before.1;
            if end > start {
                return Err(Refused::Overlaps(before));
            }
            joins.0 = (end == start).then_some(before);
        }
        if let Some(after) = after {
            if after.0 < start + len {
                return Err(Refused::Overlaps(after));
            }
            joins.1 = (after.0 == start + len).then_some(after);
        }
        let (old, new) = match joins {
            (Some(before), Some(after)) => {
                self.join(path, spot, before, len, after);
                return Ok(());
            }
            (Some(before), None) => {
                let spot = self.before(path, spot).expect("found before");
                let new = (before.0, before.1 + len);
                self.write(spot, new);
                (before, new)
            }
            (None, Some(after)) => {
                let spot = self.after(path, spot).expect("found before");
                let new = (start, len + after.1);
                self.write(spot, new);
                if !in_after {
                    self.set_key(path, start);
                }
                (after, new)
            }
            (None, None) => {
                if self.len == self.limit {
                    return Err(Refused::Full);
                }
                let spot = match count == B {
                    true => self.make_room(path, spot.leaf, start),
                    false => spot,
                };
                self.put_in(spot, (start, len));
                (none(), (start, len))
            }
        };
        self.settle_grown(path, old, new);
        Ok(())
    }

    #[inline(always)]
    fn join(&mut self, path: &mut Path, spot: Spot, before: Entry<L>, len: L, after: Entry<L>) {
        if spot.lane == 0 || spot.lane == self.count(spot.leaf) {
            return self.join_apart(path, spot, before, len, after);
        }
        // The joined extent offers at least what its parts offered, so maxima only grow.
        let whole = (before.0, before.1 + len + after.1);
        self.write(Spot { lane: spot.lane - 1, ..spot }, whole);
        self.settle_grown(path, before, whole);
        self.take_out(path, spot, false);
    }

    #[cold]
    fn join_apart(
        &mut self,
        path: &mut Path,
        spot: Spot,
        before: Entry<L>,
        len: L,
        after: Entry<L>,
    ) {
        let whole = (before.0, before.1 + len + after.1);
        let mut way = path.clone();
        let to_before = self.before(&mut way, spot).expect("found before");
        self.write(to_before, whole);
        self.settle_grown(&way, before, whole);
        let to_after = self.after(path, spot).expect("found before");
        self.take_out(path, to_after, true);
    }

    #[inline(always)]
    fn write(&mut self, spot: Spot, entry: Entry<L>) {
        let leaf = &mut self.leaves[spot.leaf];
        (leaf.start[spot.lane], leaf.len[spot.lane]) = entry;
    }

    #[inline(always)]
    fn put_in(&mut self, spot: Spot, (start, len): Entry<L>) {
        let count = self.count(spot.leaf);
        let leaf = &mut self.leaves[spot.leaf];
        insert(&mut leaf.start, count, spot.lane, start);
        insert(&mut leaf.len, count, spot.lane, len);
        self.leaf_counts[spot.leaf] += 1;
        self.len += 1;
    }

    #[inline(always)]
    fn take_out(&mut self, path: &mut Path, spot: Spot, settle: bool) {
        let old = self.entry(spot);
        let count = self.count(spot.leaf);
        let leaf = &mut self.leaves[spot.leaf];
        remove(&mut leaf.start, count, spot.lane, L::MAX);
        remove(&mut leaf.len, count, spot.lane, L::ZERO);
        self.leaf_counts[spot.leaf] -= 1;
        self.len -= 1;
        if spot.lane == 0 && count > 1 {
            // Raises this leaf's key, because the previous leaf's last extent may grow past the old
            // key. Searches from the old key on would look for it only in this leaf.
            let first = self.leaves[spot.leaf].start[0];
            self.set_key(path, first);
        }
        if settle {
            self.settle_shrunk(path, old, none(), none());
        }
        if count <= Self::MIN && self.height > 0 {
            self.even_out(path, spot.leaf);
        }
    }

    #[inline(always)]
    fn raise_next_key(&mut self, path: &mut Path, spot: Spot) {
        if self.height == 0 || spot.lane + 1 < self.count(spot.leaf) {
            return;
        }
        let (start, _) = self.entry(spot);
        if self.next_key(path).is_none_or(|key| key > start) {
            return;
        }
        if let Some(next) = self.advance(path) {
            let (first, _) = self.entry(next);
            self.set_key(path, first);
        }
    }

    #[inline(always)]
    fn set_key(&mut self, path: &Path, key: L) {
        let Some(level) = (0..self.height).rev().find(|&level| path.lane[level] > 0) else {
            // The first leaf's key is never read.
            return;
        };
        for level in level..self.height {
            self.inners[path.node(level)].key[path.lane(level)] = key;
        }
    }
}
