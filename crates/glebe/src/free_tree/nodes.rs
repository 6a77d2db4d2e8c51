//! [`Nodes`]: the balanced tree below a free tree, its nodes named by index in bounded storage.
//!
//! Owns the extents, their order and the maxima of each subtree; knows nothing of windows, merging
//! or errors.
//!
//! # Layout
//!
//! ```text
//! nodes   [ 0: NIL | 1 | 2 | ... ]            one Node each: extent, links, height
//! maxima  [ 0 0 .. | c0 c1 .. cK | ... ]      `classes` words each, the row of the same index
//! ```
//!
//! Word `c` of a row is the most that one extent of the subtree has from its first multiple of
//! `1 << c` on. A request aligned to that class fits in a subtree exactly if this is no less than
//! its length, so a search goes down and never back up. Row 0 is all zero: the absent child.
//!
//! # Invariants
//!
//! Extents lie in order and do not touch; the heights of two siblings differ by one at most (AVL),
//! so a tree of n extents has at most 1.45 log2(n + 2) levels; every row is the maximum over its
//! own extent and both children's rows; both vectors stay within the capacity they were made with.
//!
//! # Cost
//!
//! A change costs at most two passes over the levels. At each level only the classes that changed
//! below are computed again, and the way up ends where none did: rows cost O(levels x classes)
//! words at worst and a few words as a rule. Unused storage is never touched.
//!
//! Source: Adelson-Velsky and Landis 1962; the maxima follow `subtree_max_size` of the kernel's
//! `mm/vmalloc.c`, with one maximum for each alignment instead of one in all.

mod check;
mod rotate;

use std::cell::Cell;
use std::ops::Range;

use crate::extent::Extent;

/// Index of a node; [`NIL`] names none.
pub(super) type Index = u32;

/// No node: row and entry 0, whose height and maxima are zero.
pub(super) const NIL: Index = 0;

/// Most nodes that an [`Index`] can name.
const NODES_MAX: usize = Index::MAX as usize - 1;

#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) left: Index,
    /// The right child; of a node that is not in the tree, the next such node.
    pub(super) right: Index,
    pub(super) parent: Index,
    /// Levels of the subtree, this one included.
    pub(super) height: u32,
}

// Two nodes a cache line: a search reads one node and one word of a row at each level.
const _: () = assert!(size_of::<Node>() == 32);

impl Node {
    const ABSENT: Self = Self { start: 0, end: 0, left: NIL, right: NIL, parent: NIL, height: 0 };

    /// The extent; of a node in the tree only.
    pub(super) fn extent(&self) -> Extent {
        between(self.start, self.end)
    }
}

/// The extent `start..end`, of bounds whose order an invariant gives.
pub(super) fn between(start: u64, end: u64) -> Extent {
    let extent = end.checked_sub(start).and_then(|len| Extent::new(start, len));
    extent.unwrap_or_else(|| panic!("bounds {start:#x}..{end:#x} of a free extent"))
}

/// What `start..end` has from its first multiple of `mask + 1` on; 0 if it has none.
pub(super) fn usable(start: u64, end: u64, mask: u64) -> u64 {
    // The padding may reach past u64::MAX as a position, but never overflows as a length.
    (end - start).saturating_sub(start.wrapping_neg() & mask)
}

/// The ordered tree: see the module's documentation.
#[derive(Debug)]
pub(super) struct Nodes {
    nodes: Vec<Node>,
    maxima: Vec<u64>,
    classes: usize,
    limit: usize,
    root: Index,
    /// First of the nodes that were used and released, linked by `right`.
    spare: Index,
    len: usize,
}

impl Nodes {
    /// Storage for `limit` extents whose ends are at most `end`.
    pub(super) fn new(end: u64, limit: usize) -> Self {
        let limit = limit.min(NODES_MAX);
        // Beyond the first class whose unit covers the span, only position 0 is aligned, as in it.
        let address_bits = end.saturating_sub(1).checked_ilog2().map_or(0, |bit| bit + 1);
        let classes = address_bits.min(u64::BITS - 1) as usize + 1;
        let entries = limit + 1;
        let mut nodes = Vec::with_capacity(entries);
        let mut maxima =
            Vec::with_capacity(entries.checked_mul(classes).expect("too many extents"));
        nodes.push(Node::ABSENT);
        maxima.resize(classes, 0);
        Self { nodes, maxima, classes, limit, root: NIL, spare: NIL, len: 0 }
    }

    pub(super) fn root(&self) -> Index {
        self.root
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == self.limit
    }

    pub(super) fn get(&self, n: Index) -> &Node {
        #[cfg(test)]
        super::tests::count_visit();
        &self.nodes[n as usize]
    }

    /// The class that answers for `align`, a power of two.
    pub(super) fn class(&self, align: u64) -> usize {
        (align.trailing_zeros() as usize).min(self.classes - 1)
    }

    /// The most that one extent of the subtree `n` has for `class`; 0 for [`NIL`].
    pub(super) fn max(&self, n: Index, class: usize) -> u64 {
        self.maxima[n as usize * self.classes + class]
    }

    /// The first extent in the subtree `n` that has `len` for `class`; the subtree must have one.
    pub(super) fn first_fit(&self, mut n: Index, len: u64, class: usize) -> Index {
        debug_assert!(self.max(n, class) >= len && len > 0);
        let mask = (1 << class) - 1;
        loop {
            let node = self.get(n);
            if self.max(node.left, class) >= len {
                n = node.left;
            } else if usable(node.start, node.end, mask) >= len {
                return n;
            } else {
                n = node.right;
                assert!(n != NIL, "no fit for {len} in class {class}, against the maxima");
            }
        }
    }

    /// The last extent in the subtree `n` that has `len` for `class`; the subtree must have one.
    pub(super) fn last_fit(&self, mut n: Index, len: u64, class: usize) -> Index {
        debug_assert!(self.max(n, class) >= len && len > 0);
        let mask = (1 << class) - 1;
        loop {
            let node = self.get(n);
            if self.max(node.right, class) >= len {
                n = node.right;
            } else if usable(node.start, node.end, mask) >= len {
                return n;
            } else {
                n = node.left;
                assert!(n != NIL, "no fit for {len} in class {class}, against the maxima");
            }
        }
    }

    /// The first of the shortest extents that have `len` for `class`; [`NIL`] if there is none.
    pub(super) fn best_fit(&self, len: u64, class: usize) -> Index {
        let mut best = None;
        self.better_fit(self.root, len, class, &mut best);
        best.map_or(NIL, |(_, n)| n)
    }

    /// Makes `best`, an extent's length and node, that of a shorter fit in the subtree `n`, which
    /// lies after it.
    fn better_fit(&self, n: Index, len: u64, class: usize, best: &mut Option<(u64, Index)>) {
        // Nothing is shorter than an exact fit.
        if self.max(n, class) < len || best.is_some_and(|(shortest, _)| shortest == len) {
            return;
        }
        let node = self.get(n);
        self.better_fit(node.left, len, class, best);
        let own = node.end - node.start;
        if best.is_none_or(|(shortest, _)| own < shortest)
            && usable(node.start, node.end, (1 << class) - 1) >= len
        {
            *best = Some((own, n));
        }
        self.better_fit(node.right, len, class, best);
    }

    /// The last extent that starts at or before `position`, the first that starts after it, and
    /// whether the latter is the lower of the two in the tree.
    pub(super) fn around(&self, position: u64) -> (Index, Index, bool) {
        let (mut before, mut after, mut after_is_lower) = (NIL, NIL, false);
        let mut n = self.root;
        while n != NIL {
            let node = self.get(n);
            after_is_lower = node.start > position;
            if after_is_lower {
                after = n;
                n = node.left;
            } else {
                before = n;
                n = node.right;
            }
        }
        (before, after, after_is_lower)
    }

    /// The first node of the subtree `n`.
    pub(super) fn leftmost(&self, mut n: Index) -> Index {
        while self.get(n).left != NIL {
            n = self.get(n).left;
        }
        n
    }

    /// The next node in order.
    pub(super) fn next(&self, n: Index) -> Index {
        let node = self.get(n);
        if node.right != NIL {
            return self.leftmost(node.right);
        }
        let (mut child, mut n) = (n, node.parent);
        while n != NIL && self.get(n).right == child {
            (child, n) = (n, self.get(n).parent);
        }
        n
    }

    /// Gives node `n` other bounds, which must leave it between its neighbours.
    pub(super) fn resize(&mut self, n: Index, start: u64, end: u64) {
        (self.nodes[n as usize].start, self.nodes[n as usize].end) = (start, end);
        self.update(n, n, false);
    }

    /// Adds `extent` below `before` or `after`, its neighbours, of which [`Self::around`] told the
    /// lower; there must be a node left.
    pub(super) fn insert(
        &mut self,
        extent: Extent,
        before: Index,
        after: Index,
        after_is_lower: bool,
    ) {
        let n = self.acquire(extent);
        let parent = if after_is_lower { after } else { before };
        if parent == NIL {
            self.root = n;
        } else if after_is_lower {
            self.nodes[parent as usize].left = n;
        } else {
            self.nodes[parent as usize].right = n;
        }
        self.nodes[n as usize].parent = parent;
        self.update(n, n, true);
    }

    /// Cuts node `n` to end at `end` and adds `rest` as its successor; there must be a node left.
    pub(super) fn split(&mut self, n: Index, end: u64, rest: Extent) {
        let leaf = self.acquire(rest);
        self.nodes[n as usize].end = end;
        let right = self.get(n).right;
        let parent = if right == NIL { n } else { self.leftmost(right) };
        if right == NIL {
            self.nodes[n as usize].right = leaf;
        } else {
            self.nodes[parent as usize].left = leaf;
        }
        self.nodes[leaf as usize].parent = parent;
        self.update(leaf, n, true);
    }

    /// Takes node `n` out.
    pub(super) fn remove(&mut self, n: Index) {
        let Node { left, right, .. } = *self.get(n);
        if left == NIL || right == NIL {
            self.unlink(n, NIL);
        } else {
            let next = self.leftmost(right);
            let Node { start, end, .. } = *self.get(next);
            (self.nodes[n as usize].start, self.nodes[n as usize].end) = (start, end);
            self.unlink(next, n);
        }
    }

    /// Takes out the lower of two neighbours and gives the higher the bounds of both.
    pub(super) fn join(&mut self, before: Index, after: Index, after_is_lower: bool) {
        let (lower, upper) = if after_is_lower { (after, before) } else { (before, after) };
        let (start, end) = (self.get(before).start, self.get(after).end);
        (self.nodes[upper as usize].start, self.nodes[upper as usize].end) = (start, end);
        self.unlink(lower, upper);
    }

    /// Takes out `n`, which has one child at most, and updates the rows above; `changed` is a node
    /// above `n` whose extent changed, or [`NIL`].
    fn unlink(&mut self, n: Index, changed: Index) {
        let Node { left, right, parent, .. } = self.nodes[n as usize];
        let child = if left == NIL { right } else { left };
        self.replace_child(parent, n, child);
        self.release(n);
        let changed = if changed == NIL { parent } else { changed };
        if parent != NIL {
            self.update(parent, changed, true);
        }
    }

    /// A node that holds `extent`, is linked from nowhere yet, and so has no height yet.
    fn acquire(&mut self, extent: Extent) -> Index {
        let node = Node { start: extent.start(), end: extent.end(), ..Node::ABSENT };
        self.len += 1;
        if self.spare != NIL {
            let n = self.spare;
            self.spare = self.nodes[n as usize].right;
            self.nodes[n as usize] = node;
            // What was here before it is linked, to those above: nothing.
            let base = n as usize * self.classes;
            self.maxima[base..base + self.classes].fill(0);
            return n;
        }
        debug_assert!(self.nodes.len() <= self.limit);
        self.nodes.push(node);
        self.maxima.resize(self.maxima.len() + self.classes, 0);
        Index::try_from(self.nodes.len() - 1).expect("the limit is within the index")
    }

    fn release(&mut self, n: Index) {
        self.nodes[n as usize] = Node { right: self.spare, ..Node::ABSENT };
        self.spare = n;
        self.len -= 1;
    }

    /// Puts `new` in the place of `old` below `parent`.
    fn replace_child(&mut self, parent: Index, old: Index, new: Index) {
        if parent == NIL {
            self.root = new;
        } else if self.nodes[parent as usize].left == old {
            self.nodes[parent as usize].left = new;
        } else {
            self.nodes[parent as usize].right = new;
        }
        if new != NIL {
            self.nodes[new as usize].parent = parent;
        }
    }

    /// Makes rows and balance right again from `n` upward; `changed`, at or above `n`, is the
    /// highest node whose extent changed, `reshaped` says whether nodes came or went.
    fn update(&mut self, mut n: Index, mut changed: Index, mut reshaped: bool) {
        let mut classes = 0..self.classes;
        while n != NIL {
            if n == changed {
                classes = 0..self.classes;
                changed = NIL;
            }
            let Node { parent, height, .. } = *self.get(n);
            classes = self.recompute(n, classes);
            if reshaped {
                let top = self.rebalance(n);
                reshaped = self.height(top) != height;
            }
            if changed == NIL && classes.is_empty() && !reshaped {
                return;
            }
            n = parent;
        }
    }

    /// Computes the given classes of the row of `n` again; returns a range that holds all those
    /// that changed.
    fn recompute(&mut self, n: Index, classes: Range<usize>) -> Range<usize> {
        let Node { start, end, left, right, .. } = self.nodes[n as usize];
        let rows = Cell::from_mut(&mut self.maxima[..]).as_slice_of_cells();
        let row = |n: Index| {
            let base = n as usize * self.classes;
            &rows[base + classes.start..base + classes.end]
        };
        let (mut differ, mut class) = (0_u64, classes.start);
        for ((own, left), right) in row(n).iter().zip(row(left)).zip(row(right)) {
            let max = usable(start, end, (1 << class) - 1).max(left.get()).max(right.get());
            // A shift and not a branch: which classes differ cannot be predicted.
            differ |= u64::from(own.get() != max) << class;
            own.set(max);
            class += 1;
        }
        if differ == 0 {
            return 0..0;
        }
        differ.trailing_zeros() as usize..(u64::BITS - differ.leading_zeros()) as usize
    }

    fn height(&self, n: Index) -> u32 {
        self.nodes[n as usize].height
    }
}
