//! [`Tree`] splits and merges nodes, and moves lanes (entries of a node) between nodes.
//!
//! Each step changes two neighbours below one parent, or adds or removes the root. So only the
//! parent's two lanes for these neighbours need new maxima.

use super::super::lanes::{insert, remove, Counts, Lane};
use super::{Inner, Leaf, Path, Spot, Tree};

impl<L: Lane, const B: usize> Tree<L, B> {
    #[cold]
    pub(super) fn make_room(&mut self, path: &mut Path, leaf: usize, at: L) -> Spot {
        self.refresh_all();
        self.shape += 1;
        let mut spot = Spot { leaf, lane: 0 };
        while self.count(spot.leaf) == B {
            // A node splits only below a parent with room.
            let full = |level: usize| usize::from(self.inner_counts[path.node(level)]) == B;
            let above = (0..self.height).rev().take_while(|&level| full(level)).count();
            match self.height - above {
                0 => self.raise_root(),
                level if level == self.height => self.split(path, level, spot.leaf),
                level => self.split(path, level, path.node(level)),
            }
            spot = self.descend(at, path);
        }
        spot
    }

    fn raise_root(&mut self) {
        let root = self.acquire_inner();
        self.inners[root as usize].key[0] = L::ZERO;
        self.inners[root as usize].child[0] = self.root;
        self.inner_counts[root as usize] = 1;
        self.height += 1;
        self.root = root;
        self.recompute(0, root as usize, 0);
    }

    fn split(&mut self, path: &Path, level: usize, left: usize) {
        let (parent, lane) = (path.node(level - 1), path.lane(level - 1));
        let right = match level == self.height {
            true => self.acquire_leaf(),
            false => self.acquire_inner(),
        };
        let count = usize::from(self.inner_counts[parent]);
        insert(&mut self.inners[parent].child, count, lane + 1, right);
        insert(&mut self.inners[parent].key, count, lane + 1, L::MAX);
        for class in 0..self.classes {
            insert(&mut self.maxima[parent * self.classes + class], count, lane + 1, L::ZERO);
        }
        self.inner_counts[parent] += 1;
        self.shift(level, (left, right as usize), B - B / 2);
        self.inners[parent].key[lane + 1] = self.first_key(level, right as usize);
        self.recompute(level - 1, parent, lane);
        self.recompute(level - 1, parent, lane + 1);
    }

    /// Merges a node of too few entries with its neighbour, or takes entries from the neighbour.
    #[cold]
    pub(super) fn even_out(&mut self, path: &Path, leaf: usize) {
        self.refresh_all();
        self.shape += 1;
        let mut n = leaf;
        for level in (1..=self.height).rev() {
            if self.used(level, n) >= Self::MIN {
                return;
            }
            let parent = path.node(level - 1);
            let left_lane = path.lane(level - 1).saturating_sub(1);
            let [left, right] = [0, 1].map(|i| self.inners[parent].child[left_lane + i] as usize);
            let all = self.used(level, left) + self.used(level, right);
            if all > Self::MERGE_MAX {
                self.shift(level, (left, right), all / 2);
                self.inners[parent].key[left_lane + 1] = self.first_key(level, right);
                self.recompute(level - 1, parent, left_lane);
                self.recompute(level - 1, parent, left_lane + 1);
                return;
            }
            self.shift(level, (left, right), all);
            self.drop_right(level, parent, left_lane);
            n = parent;
        }
        while self.height > 0 && self.inner_counts[self.root as usize] == 1 {
            let root = self.root;
            self.root = self.inners[root as usize].child[0];
            self.spare_inners.push(root);
            self.height -= 1;
        }
    }

    pub(in crate::free_tree) fn used_bytes(&self) -> usize {
        let leaf = size_of::<Leaf<L, B>>() + size_of::<u8>();
        let inner = size_of::<Inner<L, B>>() + size_of::<u8>() + self.classes * size_of::<[L; B]>();
        (self.leaves.len() - self.spare_leaves.len()) * leaf
            + (self.inners.len() - self.spare_inners.len()) * inner
    }

    fn drop_right(&mut self, level: usize, parent: usize, left_lane: usize) {
        let (right_lane, count) = (left_lane + 1, usize::from(self.inner_counts[parent]));
        let right = self.inners[parent].child[right_lane];
        remove(&mut self.inners[parent].child, count, right_lane, 0);
        remove(&mut self.inners[parent].key, count, right_lane, L::MAX);
        for class in 0..self.classes {
            let row = &mut self.maxima[parent * self.classes + class];
            row[left_lane] = row[left_lane].max(row[right_lane]);
            remove(row, count, right_lane, L::ZERO);
        }
        self.inner_counts[parent] -= 1;
        match level == self.height {
            true => self.spare_leaves.push(right),
            false => self.spare_inners.push(right),
        }
    }

    fn shift(&mut self, level: usize, (left, right): (usize, usize), target: usize) {
        let counts = Counts { left: self.used(level, left), right: self.used(level, right) };
        let (left_count, right_count) = (target as u8, (counts.left + counts.right - target) as u8);
        if level == self.height {
            let (a, b) = pair(&mut self.leaves, left, right);
            counts.shift(target, &mut a.start, &mut b.start, L::MAX);
            counts.shift(target, &mut a.len, &mut b.len, L::ZERO);
            (self.leaf_counts[left], self.leaf_counts[right]) = (left_count, right_count);
            return;
        }
        let (a, b) = pair(&mut self.inners, left, right);
        counts.shift(target, &mut a.key, &mut b.key, L::MAX);
        counts.shift(target, &mut a.child, &mut b.child, 0);
        for class in 0..self.classes {
            let row = |n: usize| n * self.classes + class;
            let (a, b) = pair(&mut self.maxima, row(left), row(right));
            counts.shift(target, a, b, L::ZERO);
        }
        (self.inner_counts[left], self.inner_counts[right]) = (left_count, right_count);
    }

    fn recompute(&mut self, level: usize, n: usize, lane: usize) {
        let child = self.inners[n].child[lane] as usize;
        for class in 0..self.classes {
            let max = self.max_below(level + 1, child, class);
            self.maxima[n * self.classes + class][lane] = max;
            if max == L::ZERO {
                // Larger alignments are zero too.
                for above in class + 1..self.classes {
                    self.maxima[n * self.classes + above][lane] = max;
                }
                return;
            }
        }
    }

    fn first_key(&self, level: usize, n: usize) -> L {
        match level == self.height {
            true => self.leaves[n].start[0],
            false => self.inners[n].key[0],
        }
    }

    fn used(&self, level: usize, n: usize) -> usize {
        match level == self.height {
            true => usize::from(self.leaf_counts[n]),
            false => usize::from(self.inner_counts[n]),
        }
    }

    pub(super) fn acquire_leaf(&mut self) -> u32 {
        let empty = Leaf { start: [L::MAX; B], len: [L::ZERO; B] };
        if let Some(n) = self.spare_leaves.pop() {
            self.leaves[n as usize] = empty;
            self.leaf_counts[n as usize] = 0;
            return n;
        }
        debug_assert!(self.leaves.len() < self.leaves.capacity());
        self.leaves.push(empty);
        self.leaf_counts.push(0);
        (self.leaves.len() - 1) as u32
    }

    fn acquire_inner(&mut self) -> u32 {
        let empty = Inner { key: [L::MAX; B], child: [0; B] };
        if let Some(n) = self.spare_inners.pop() {
            self.inners[n as usize] = empty;
            self.inner_counts[n as usize] = 0;
            let first = n as usize * self.classes;
            self.maxima[first..first + self.classes].fill([L::ZERO; B]);
            return n;
        }
        debug_assert!(self.inners.len() < self.inners.capacity());
        self.inners.push(empty);
        self.inner_counts.push(0);
        for _ in 0..self.classes {
            self.maxima.push([L::ZERO; B]);
        }
        (self.inners.len() - 1) as u32
    }
}

fn pair<T>(all: &mut [T], a: usize, b: usize) -> (&mut T, &mut T) {
    if a < b {
        let (head, tail) = all.split_at_mut(b);
        return (&mut head[a], &mut tail[0]);
    }
    let (head, tail) = all.split_at_mut(a);
    (&mut tail[0], &mut head[b])
}
