//! `check` walks the tree once and computes the maxima anew, to find errors.

use super::{Lane, Tree};

struct Seen<L> {
    leaves: usize,
    inners: usize,
    extents: usize,
    last_start: Option<L>,
    last_end: Option<L>,
}

impl<L: Lane, const B: usize> Tree<L, B> {
    pub(in crate::free_tree) fn check(&self) {
        let mut seen = Seen { leaves: 0, inners: 0, extents: 0, last_start: None, last_end: None };
        self.check_below(0, self.root as usize, None, &mut seen);
        assert!(!self.stale.is_any() || self.height > 0, "{:?}", self.stale);
        assert_eq!(seen.extents, self.len, "extents in the tree, extents counted");
        assert!(self.len <= self.limit, "{} extents, {} allowed", self.len, self.limit);
        let leaves = seen.leaves + self.spare_leaves.len();
        assert_eq!(leaves, self.leaves.len(), "leaves in the tree or spare, leaves in storage");
        let inners = seen.inners + self.spare_inners.len();
        assert_eq!(inners, self.inners.len(), "inner nodes in the tree or spare, in storage");
        assert_eq!(self.leaf_counts.len(), self.leaves.len());
        assert_eq!(self.inner_counts.len(), self.inners.len());
        assert_eq!(self.maxima.len(), self.inners.len() * self.classes);
    }

    fn check_below(&self, level: usize, n: usize, key: Option<L>, seen: &mut Seen<L>) -> Vec<L> {
        if level == self.height {
            return self.check_leaf(level, n, key, seen);
        }
        seen.inners += 1;
        let (inner, count) = (&self.inners[n], usize::from(self.inner_counts[n]));
        let least = if level == 0 { 2 } else { Self::MIN };
        assert!((least..=B).contains(&count), "inner node {n} has {count} lanes");
        assert!(key.is_none_or(|key| key == inner.key[0]), "inner node {n}: {key:?}, {inner:?}");
        let mut maxima = vec![L::ZERO; self.classes];
        for lane in 0..B {
            let row = |class: usize| self.maxima[n * self.classes + class][lane];
            if lane >= count {
                assert_eq!(inner.key[lane], L::MAX, "unused lane {lane} of inner node {n}");
                assert!((0..self.classes).all(|c| row(c) == L::ZERO), "unused {lane} of {n}");
                continue;
            }
            let key = (key.is_some() || lane > 0).then_some(inner.key[lane]);
            assert!(
                key.is_none_or(|key| seen.last_start.is_none_or(|last| last < key)),
                "inner node {n}, lane {lane}: {key:?} after {:?}",
                seen.last_start
            );
            let below = self.check_below(level + 1, inner.child[lane] as usize, key, seen);
            for (class, (max, below)) in maxima.iter_mut().zip(below).enumerate() {
                let child = inner.child[lane] as usize;
                let is_stale = class > 0 && level + 1 == self.height && self.stale.is(child, class);
                let right = row(class) == below || is_stale && row(class) > below;
                assert!(
                    right,
                    "inner node {n}, lane {lane}, class {class}: {:?}, {below:?}",
                    row(class)
                );
                *max = row(class).max(*max);
            }
        }
        maxima
    }

    fn check_leaf(&self, level: usize, n: usize, key: Option<L>, seen: &mut Seen<L>) -> Vec<L> {
        seen.leaves += 1;
        let (leaf, count) = (&self.leaves[n], usize::from(self.leaf_counts[n]));
        let least = if level == 0 { 0 } else { Self::MIN };
        assert!((least..=B).contains(&count), "leaf {n} has {count} lanes");
        let mut maxima = vec![L::ZERO; self.classes];
        for lane in 0..B {
            let (start, len) = (leaf.start[lane], leaf.len[lane]);
            if lane >= count {
                assert_eq!((start, len), (L::MAX, L::ZERO), "unused lane {lane} of leaf {n}");
                continue;
            }
            assert!(len > L::ZERO, "leaf {n}, lane {lane} is empty: {leaf:?}");
            assert!(key.is_none_or(|key| key <= start), "leaf {n}: {start:?} before {key:?}");
            assert!(seen.last_end < Some(start), "leaf {n}, lane {lane}: {leaf:?}");
            (seen.last_start, seen.last_end) = (Some(start), Some(start + len));
            seen.extents += 1;
            for (class, max) in maxima.iter_mut().enumerate() {
                let align = u128::from(self.masks[class].get()) + 1;
                let aligned = u128::from(start.get()).next_multiple_of(align);
                let end = u128::from(start.get()) + u128::from(len.get());
                *max = L::of(end.saturating_sub(aligned) as u64).max(*max);
            }
        }
        maxima
    }

    #[cfg(test)]
    pub(in crate::free_tree) fn capacity(&self) -> [usize; 5] {
        [
            self.leaves.capacity(),
            self.inners.capacity(),
            self.maxima.capacity(),
            self.spare_leaves.capacity(),
            self.spare_inners.capacity(),
        ]
    }
}
