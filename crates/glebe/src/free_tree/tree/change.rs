//! What changes a tree: extents cut, taken, added and joined.
//!
//! Owns nothing. The order is always: make room, while nothing has changed; write the leaf; settle
//! the maxima above; even out what has become too small. Making room and evening out move lanes
//! between neighbours below one parent, so that they change no maximum above that parent.

use super::super::lanes::{insert, largest_but, remove, usable, Lane};
use super::{Entry, Path, Spot, Tree, LEVELS};

/// The longest extents beside the one that changes, as far as they were looked for.
struct Others<L> {
    /// A bit for each level.
    known: u32,
    max: [L; LEVELS],
}

/// Why a change was refused.
#[derive(Clone, Copy, Debug)]
pub(in crate::free_tree) enum Refused<L> {
    /// An extent is in the way, which is this one.
    Overlaps(Entry<L>),
    /// There are as many extents as there may be.
    Full,
}

/// No extent, as unused lanes have it: nothing of it is usable.
const fn none<L: Lane>() -> Entry<L> {
    (L::ZERO, L::ZERO)
}

impl<L: Lane, const B: usize> Tree<L, B> {
    /// Takes `len` positions from `at` out of the extent at `spot`, which has them; refuses if that
    /// leaves two extents and there may be no more.
    #[inline]
    pub(in crate::free_tree) fn carve(
        &mut self,
        path: &mut Path,
        mut spot: Spot,
        at: L,
        len: L,
    ) -> Result<(), Refused<L>> {
        let old @ (start, old_len) = self.entry(spot);
        let (left, right) = (at - start, old_len - (at - start) - len);
        match (left > L::ZERO, right > L::ZERO) {
            (false, false) => self.take_out(path, spot, true),
            (false, true) => {
                let rest = (at + len, right);
                self.write(spot, rest);
                self.settle(path, spot, old, rest, none());
                self.raise_next_key(path, spot);
            }
            (true, false) => {
                self.write(spot, (start, left));
                self.settle(path, spot, old, (start, left), none());
            }
            (true, true) => {
                if self.len == self.limit {
                    return Err(Refused::Full);
                }
                if self.count(spot.leaf) == B {
                    spot = self.make_room(path, spot.leaf, start);
                    spot.lane -= 1;
                }
                let rest = (at + len, right);
                self.write(spot, (start, left));
                spot.lane += 1;
                self.put_in(spot, rest);
                self.settle(path, spot, old, (start, left), rest);
                self.raise_next_key(path, spot);
            }
        }
        Ok(())
    }

    /// Adds an extent, as one with those that it touches; refuses if any of it is there already, or
    /// if it touches none and there may be no more.
    #[inline]
    pub(in crate::free_tree) fn add(
        &mut self,
        path: &mut Path,
        start: L,
        len: L,
    ) -> Result<(), Refused<L>> {
        let spot = self.descend(start, path);
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
        match joins {
            (Some(before), Some(after)) => self.join(path, spot, before, len, after),
            (Some(before), None) => {
                let spot = self.before(path, spot).expect("found before");
                let new = (before.0, before.1 + len);
                self.write(spot, new);
                self.settle(path, spot, before, new, none());
            }
            (None, Some(after)) => {
                let spot = self.after(path, spot).expect("found before");
                let new = (start, len + after.1);
                self.write(spot, new);
                self.settle(path, spot, after, new, none());
                if !in_after {
                    self.set_key(path, start);
                }
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
                self.settle(path, spot, none(), (start, len), none());
            }
        }
        Ok(())
    }

    /// Makes one of `before`, which lies before `spot`, `len` positions after it, and `after`,
    /// which lies at `spot` or after it.
    fn join(&mut self, path: &mut Path, spot: Spot, before: Entry<L>, len: L, after: Entry<L>) {
        let whole = (before.0, before.1 + len + after.1);
        // The whole has no less of any alignment than its parts had: maxima only grow.
        if spot.lane == 0 {
            let mut way = path.clone();
            let to_before = self.retreat(&mut way).expect("found before");
            self.write(to_before, whole);
            self.settle(&way, to_before, before, whole, none());
            return self.take_out(path, spot, true);
        }
        self.write(Spot { lane: spot.lane - 1, ..spot }, whole);
        self.settle(path, spot, before, whole, none());
        let same_leaf = spot.lane < self.count(spot.leaf);
        let to_after = self.after(path, spot).expect("found before");
        self.take_out(path, to_after, !same_leaf);
    }

    #[inline]
    fn write(&mut self, spot: Spot, entry: Entry<L>) {
        let leaf = &mut self.leaves[spot.leaf];
        (leaf.start[spot.lane], leaf.len[spot.lane]) = entry;
    }

    /// Puts an extent into a leaf that has room.
    #[inline]
    fn put_in(&mut self, spot: Spot, (start, len): Entry<L>) {
        let count = self.count(spot.leaf);
        let leaf = &mut self.leaves[spot.leaf];
        insert(&mut leaf.start, count, spot.lane, start);
        insert(&mut leaf.len, count, spot.lane, len);
        self.leaf_counts[spot.leaf] += 1;
        self.len += 1;
    }

    /// Takes an extent out of its leaf, and settles the maxima if asked.
    #[inline]
    fn take_out(&mut self, path: &mut Path, spot: Spot, settle: bool) {
        let old = self.entry(spot);
        let count = self.count(spot.leaf);
        let leaf = &mut self.leaves[spot.leaf];
        remove(&mut leaf.start, count, spot.lane, L::MAX);
        remove(&mut leaf.len, count, spot.lane, L::ZERO);
        self.leaf_counts[spot.leaf] -= 1;
        self.len -= 1;
        if spot.lane == 0 && count > 1 {
            // The extent before may reach past the key by now, and start there when it is cut.
            let first = self.leaves[spot.leaf].start[0];
            self.set_key(path, first);
        }
        if settle {
            // It is in no lane any more.
            self.settle(path, Spot { lane: B, ..spot }, old, none(), none());
        }
        if count <= Self::MIN && self.height > 0 {
            self.even_out(path, spot.leaf);
        }
    }

    /// Makes the maxima above a leaf right again, in which `old` has become `new`, which is at
    /// `spot` if it is not nothing, and `rest`.
    #[inline]
    fn settle(&mut self, path: &Path, spot: Spot, old: Entry<L>, new: Entry<L>, rest: Entry<L>) {
        if self.height == 0 {
            return;
        }
        if self.stale != 0 && self.stale_leaf != spot.leaf && new.1 < old.1 {
            self.refresh();
        }
        let mut others = Others { known: 0, max: [L::ZERO; LEVELS] };
        let (first_row, lane) =
            (path.node(self.height - 1) * self.classes, path.lane(self.height - 1));
        for class in 0..self.classes {
            let mask = self.masks[class];
            let had = usable(old.0, old.1, mask);
            let has = usable(new.0, new.1, mask).max(usable(rest.0, rest.1, mask));
            if had.max(has) == L::ZERO {
                // Nor for larger alignments.
                return;
            }
            if had == has {
                continue;
            }
            let max = self.maxima[first_row + class][lane];
            if has >= max && self.stale_leaf == spot.leaf {
                self.stale &= !(1 << class);
            }
            // An extent that stays the longest by far needs no look at the others.
            let longest = others.known >> self.height & 1 == 1 && has >= others.max[self.height];
            if class == 0 || has > max || longest {
                self.climb(path, spot, class, had, has, &mut others);
            } else if has < max && had == max {
                // What was taken is often given back first: until another leaf shrinks, too much is
                // expected here, and a search for it may look at one leaf in vain.
                self.stale |= 1 << class;
                self.stale_leaf = spot.leaf;
            }
        }
    }

    /// Makes the maxima right again that were left as they were.
    #[cold]
    pub(in crate::free_tree) fn refresh(&mut self) {
        let mut path = Path::new();
        let leaf = self.stale_leaf;
        let found = self.descend(self.leaves[leaf].start[0], &mut path);
        debug_assert_eq!(found.leaf, leaf);
        let spot = Spot { leaf, lane: B };
        let mut others = Others { known: 0, max: [L::ZERO; LEVELS] };
        let (first_row, lane) =
            (path.node(self.height - 1) * self.classes, path.lane(self.height - 1));
        while self.stale != 0 {
            let class = self.stale.trailing_zeros() as usize;
            self.stale &= self.stale - 1;
            let had = self.maxima[first_row + class][lane];
            self.climb(&path, spot, class, had, L::ZERO, &mut others);
        }
    }

    /// Makes the maxima of a class right, so that no search goes down in vain.
    #[inline]
    pub(in crate::free_tree) fn refresh_class(&mut self, log: u32) {
        if self.stale >> self.class(log) & 1 == 1 {
            self.refresh();
        }
    }

    /// Makes the maxima of one class right again, where one below has gone from `had` to `has`.
    #[inline]
    fn climb(
        &mut self,
        path: &Path,
        spot: Spot,
        class: usize,
        mut had: L,
        mut has: L,
        others: &mut Others<L>,
    ) {
        let mut n = spot.leaf;
        for level in (0..self.height).rev() {
            super::count_visit();
            let parent = path.node(level);
            let (index, lane) = (parent * self.classes + class, path.lane(level));
            let max = self.maxima[index][lane];
            if has <= max {
                if had < max {
                    return;
                }
                // The largest is less than it was, or there is another one.
                let longest = self.others(path, spot, level + 1, others);
                if has < longest {
                    has = match class {
                        0 => longest,
                        _ => self.max_below(level + 1, n, class),
                    };
                    if has == max {
                        return;
                    }
                }
            }
            self.maxima[index][lane] = has;
            (had, n) = (max, parent);
        }
    }

    /// The longest extent below the node at `level`, but for what lies below the lane that was
    /// changed: no other has more than this of any alignment.
    #[inline]
    fn others(&self, path: &Path, spot: Spot, level: usize, others: &mut Others<L>) -> L {
        if others.known >> level & 1 == 0 {
            super::count_visit();
            others.known |= 1 << level;
            others.max[level] = match level == self.height {
                true => largest_but(&self.leaves[spot.leaf].len, spot.lane),
                false => {
                    let row = path.node(level) * self.classes;
                    largest_but(&self.maxima[row], path.lane(level))
                }
            };
        }
        others.max[level]
    }

    /// Makes the next leaf's key no less than its extents need it, after the extent at `spot` has
    /// been cut to start later.
    #[inline]
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

    /// Sets the key of the leaf that `path` leads to, and of the nodes that begin with it.
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
