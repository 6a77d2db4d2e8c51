//! [`Stale`] lists leaves whose maxima, in the nodes above, may count vanished extents.
//!
//! Callers often give positions back soon, so the tree only notes a leaf whose longest extent
//! shrank. The tree recomputes the leaf's maxima before an allocation searches them, before lanes
//! move between nodes, or when another leaf needs the place. Class 0 (alignment 1) is always right.

use super::super::lanes::{usable, Lane};
use super::{count_visit, Entry, Path, Tree};

/// Maximum number of leaves in a [`Stale`]. A `find` may visit each in vain.
const LEAVES: usize = 16;

/// Alignment classes compared at a time. The classes after class 0 form whole groups.
pub(super) const GROUP: usize = 4;

#[derive(Clone, Debug)]
pub(super) struct Stale<L> {
    any: u64,
    /// Noted classes of the leaf in `leaves`, a bit each; 0 if none.
    classes: [u64; LEAVES],
    leaves: [u32; LEAVES],
    /// Extent that shrank, or zeros if several did. If the extent comes back, the maxima are right.
    gone: [Entry<L>; LEAVES],
    /// Paths to the leaves. The tree keeps its shape while a leaf is noted.
    paths: [Path; LEAVES],
}

impl<L: Lane> Stale<L> {
    pub(super) fn none() -> Self {
        Self {
            any: 0,
            classes: [0; LEAVES],
            leaves: [0; LEAVES],
            gone: [(L::ZERO, L::ZERO); LEAVES],
            paths: std::array::from_fn(|_| Path::new()),
        }
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn is(&self, leaf: usize, class: usize) -> bool {
        (0..LEAVES).any(|i| self.leaves[i] as usize == leaf && self.classes[i] >> class & 1 == 1)
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn is_any(&self) -> bool {
        self.classes != [0; LEAVES]
    }

    #[inline(always)]
    fn set(&mut self, place: usize, classes: u64) {
        self.classes[place] = classes;
        self.any = self.classes.iter().fold(0, |any, classes| any | classes);
    }

    #[inline(always)]
    fn places(leaf: u32) -> [usize; 2] {
        let first = leaf as usize % LEAVES;
        [first, first ^ 1]
    }

    #[inline(always)]
    fn place(&self, leaf: u32) -> Option<usize> {
        let noted = |&place: &usize| self.leaves[place] == leaf && self.classes[place] != 0;
        Self::places(leaf).into_iter().find(noted)
    }
}

impl<L: Lane, const B: usize> Tree<L, B> {
    #[inline(always)]
    pub(super) fn settle_grown(&mut self, path: &Path, old: Entry<L>, new: Entry<L>) {
        if self.height == 0 {
            return;
        }
        self.climb_grown(path, 0, new.1);
        let noted = match self.stale.any {
            0 => None,
            _ => self.stale.place(path.leaf),
        };
        if let Some(place) = noted {
            if self.stale.gone[place] == new {
                return self.stale.set(place, 0);
            }
        }
        let same_end = old.0 + old.1 == new.0 + new.1;
        let mut from = 1;
        while from < self.classes {
            let (rows, masks) = self.group(path, from);
            let lane = path.lane(self.height - 1);
            let mut up: u64 = 0;
            // Without a branch, no row waits for another.
            for i in 0..GROUP {
                up |= u64::from(usable(new.0, new.1, masks[i]) > rows[i][lane]) << i;
            }
            let last = masks[GROUP - 1];
            while up != 0 {
                let class = from + up.trailing_zeros() as usize;
                up &= up - 1;
                self.climb_grown(path, class, usable(new.0, new.1, self.masks[class]));
            }
            if Self::is_done([old, new], last, same_end) {
                break;
            }
            from += GROUP;
        }
        if let Some(place) = noted {
            self.forget(path, place, new);
        }
    }

    /// Updates or notes the maxima after `old` shrank to two parts, `new` and `rest`.
    #[inline(always)]
    pub(super) fn settle_shrunk(
        &mut self,
        path: &Path,
        old: Entry<L>,
        new: Entry<L>,
        rest: Entry<L>,
    ) {
        if self.height == 0 {
            return;
        }
        self.climb_shrunk(path, 0, old.1);
        let same_end = rest.1 == L::ZERO && old.0 + old.1 == new.0 + new.1;
        let (mut down, mut from) = (0, 1);
        while from < self.classes {
            let (rows, masks) = self.group(path, from);
            let lane = path.lane(self.height - 1);
            for i in 0..GROUP {
                let had = usable(old.0, old.1, masks[i]);
                let most = (had == rows[i][lane]) & (had > L::ZERO);
                down |= u64::from(most) << (from + i);
            }
            if Self::is_done([old, new], masks[GROUP - 1], same_end) {
                break;
            }
            from += GROUP;
        }
        // Keeps only classes for which less is left than before.
        let mut left = if new.1 == L::ZERO { 0 } else { down };
        while left != 0 {
            let class = left.trailing_zeros() as usize;
            left &= left - 1;
            let [had, new, rest] = [old, new, rest].map(|it| usable(it.0, it.1, self.masks[class]));
            down &= !(u64::from(new.max(rest) == had) << class);
        }
        if down != 0 {
            self.note(path, down, old);
        }
    }

    #[inline(always)]
    fn group(&self, path: &Path, from: usize) -> (&[[L; B]; GROUP], &[L; GROUP]) {
        let rows = &self.maxima[path.node(self.height - 1) * self.classes + from..];
        let rows = rows.first_chunk().expect("whole groups of classes");
        (rows, self.masks[from..].first_chunk().expect("whole groups of classes"))
    }

    /// Returns true if larger alignments treat both extents alike: neither has a multiple of
    /// `mask + 1`, or both have the same end and first multiple.
    #[inline(always)]
    fn is_done(extents: [Entry<L>; 2], mask: L, same_end: bool) -> bool {
        let [old, new] = extents.map(|it| usable(it.0, it.1, mask));
        old == new && (same_end || old == L::ZERO)
    }

    /// Notes `classes`, whose maxima may be too large because the extent `gone` shrank.
    #[inline(always)]
    fn note(&mut self, path: &Path, classes: u64, gone: Entry<L>) {
        self.stale.any |= classes;
        if let Some(place) = self.stale.place(path.leaf) {
            self.stale.classes[place] |= classes;
            self.stale.gone[place] = (L::ZERO, L::ZERO);
            return;
        }
        let [first, other] = Stale::<L>::places(path.leaf);
        let place = if self.stale.classes[first] == 0 { first } else { other };
        if self.stale.classes[place] != 0 {
            self.refresh(place);
        }
        self.stale.classes[place] = classes;
        self.stale.leaves[place] = path.leaf;
        self.stale.gone[place] = gone;
        self.stale.paths[place].become_like(path, self.height);
    }

    /// Clears noted classes whose maxima are right again, because the extent `new` reaches them.
    #[inline(always)]
    fn forget(&mut self, path: &Path, place: usize, new: Entry<L>) {
        let (row, lane) = (path.node(self.height - 1) * self.classes, path.lane(self.height - 1));
        let (mut noted, mut all) = (self.stale.classes[place], 0);
        while noted != 0 {
            let class = noted.trailing_zeros() as usize;
            noted &= noted - 1;
            let has = usable(new.0, new.1, self.masks[class]);
            all |= u64::from(has >= self.maxima[row + class][lane]) << class;
        }
        self.stale.set(place, self.stale.classes[place] & !all);
    }

    #[inline(always)]
    pub(super) fn refresh_with(&mut self, place: usize) {
        let mut path = Path::new();
        path.become_like(&self.stale.paths[place], self.height);
        let mut classes = std::mem::take(&mut self.stale.classes[place]);
        let (row, lane) = (path.node(self.height - 1) * self.classes, path.lane(self.height - 1));
        while classes != 0 {
            let class = classes.trailing_zeros() as usize;
            classes &= classes - 1;
            let had = self.maxima[row + class][lane];
            self.climb_shrunk(&path, class, had);
        }
    }

    #[inline(always)]
    pub(super) fn refresh_all(&mut self) {
        if self.stale.any != 0 {
            self.refresh_classes(u64::MAX);
        }
    }

    #[inline(always)]
    pub(in crate::free_tree) fn refresh_class(&mut self, log: u32) {
        let classes = 1 << self.class(log);
        if self.stale.any & classes != 0 {
            self.refresh_classes(classes);
        }
    }

    #[cold]
    fn refresh_classes(&mut self, classes: u64) {
        for place in 0..LEAVES {
            if self.stale.classes[place] & classes != 0 {
                self.refresh(place);
            }
        }
        self.stale.any = self.stale.classes.iter().fold(0, |any, classes| any | classes);
    }

    #[inline(always)]
    fn climb_grown(&mut self, path: &Path, class: usize, has: L) {
        for level in (0..self.height).rev() {
            count_visit();
            let index = path.node(level) * self.classes + class;
            let max = &mut self.maxima[index][path.lane(level)];
            if has <= *max {
                return;
            }
            *max = has;
        }
    }

    #[inline(always)]
    fn climb_shrunk(&mut self, path: &Path, class: usize, had: L) {
        let mut n = path.leaf as usize;
        for level in (0..self.height).rev() {
            count_visit();
            let parent = path.node(level);
            let (index, lane) = (parent * self.classes + class, path.lane(level));
            if had < self.maxima[index][lane] {
                return;
            }
            let most = self.max_below(level + 1, n, class);
            if most == had {
                return;
            }
            self.maxima[index][lane] = most;
            n = parent;
        }
    }
}
