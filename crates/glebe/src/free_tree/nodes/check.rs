//! The check of all that the tree's documentation says always holds.
//!
//! Owns nothing. Each node is compared with its children only, in order, with every link followed
//! back: local truth at every node is truth of the whole. Maxima are computed in another way than
//! updates compute them. O(n x classes).

use super::{Index, Nodes, NIL};

impl Nodes {
    /// Panics, with what is broken, unless the module's invariants hold.
    pub(in crate::free_tree) fn check(&self) {
        let at = |n: Index| self.nodes[n as usize];
        assert_eq!(at(self.root).parent, NIL, "root {} has a parent", self.root);
        assert_eq!((at(NIL).height, at(NIL).start, at(NIL).end), (0, 0, 0), "NIL was written");
        assert!((0..self.classes).all(|c| self.max(NIL, c) == 0), "row 0 was written");
        assert!(self.len <= self.limit && self.nodes.len() <= self.limit + 1, "past the limit");
        let mut n = if self.root == NIL { NIL } else { self.leftmost(self.root) };
        let (mut seen, mut last_end) = (0, None);
        while n != NIL {
            let node = at(n);
            let (left, right) = (at(node.left), at(node.right));
            assert!(node.start < node.end, "node {n} is empty: {node:?}");
            assert!(last_end < Some(node.start), "node {n} not after {last_end:?}: {node:?}");
            for child in [node.left, node.right] {
                assert!(
                    child == NIL || at(child).parent == n,
                    "node {n}: {child} has other parent"
                );
            }
            assert!(left.height.abs_diff(right.height) <= 1, "node {n} out of balance: {node:?}");
            assert_eq!(node.height, left.height.max(right.height) + 1, "height of {n}: {node:?}");
            for class in 0..self.classes {
                let aligned = node.start.checked_next_multiple_of(1 << class);
                let own = aligned.map_or(0, |aligned| node.end.saturating_sub(aligned));
                let max = own.max(self.max(node.left, class)).max(self.max(node.right, class));
                assert_eq!(self.max(n, class), max, "node {n}, class {class}: {node:?}");
            }
            (seen, last_end) = (seen + 1, Some(node.end));
            assert!(seen <= self.len, "more than {} nodes are linked", self.len);
            n = self.next(n);
        }
        assert_eq!(seen, self.len, "nodes linked, nodes counted");
        let (mut spares, mut n) = (0, self.spare);
        while n != NIL && spares <= self.limit {
            (spares, n) = (spares + 1, at(n).right);
        }
        assert_eq!(seen + spares, self.nodes.len() - 1, "nodes linked or spare, nodes in storage");
    }

    /// What the two vectors have room for, which no call may change.
    #[cfg(test)]
    pub(in crate::free_tree) fn capacity(&self) -> (usize, usize) {
        (self.nodes.capacity(), self.maxima.capacity())
    }
}
