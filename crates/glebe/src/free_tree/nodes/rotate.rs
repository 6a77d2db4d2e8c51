//! Rotations: how the tree keeps its balance.
//!
//! Owns nothing. A rotation keeps the order, and leaves the heights and rows of the nodes it moves
//! right; it writes two rows. O(classes).

use super::{Index, Node, Nodes, NIL};

impl Nodes {
    /// Sets the height of `n` and rotates where its children's differ by two; returns the node that
    /// is now in its place.
    pub(super) fn rebalance(&mut self, n: Index) -> Index {
        let Node { left, right, .. } = self.nodes[n as usize];
        let (left_height, right_height) = (self.height(left), self.height(right));
        if left_height > right_height + 1 {
            let Node { left: outer, right: inner, .. } = self.nodes[left as usize];
            if self.height(inner) > self.height(outer) {
                self.rotate_left(left);
            }
            self.rotate_right(n)
        } else if right_height > left_height + 1 {
            let Node { left: inner, right: outer, .. } = self.nodes[right as usize];
            if self.height(inner) > self.height(outer) {
                self.rotate_right(right);
            }
            self.rotate_left(n)
        } else {
            self.nodes[n as usize].height = left_height.max(right_height) + 1;
            n
        }
    }

    fn rotate_left(&mut self, n: Index) -> Index {
        let top = self.nodes[n as usize].right;
        let inner = self.nodes[top as usize].left;
        self.nodes[n as usize].right = inner;
        self.nodes[top as usize].left = n;
        self.finish_rotation(n, top, inner)
    }

    fn rotate_right(&mut self, n: Index) -> Index {
        let top = self.nodes[n as usize].left;
        let inner = self.nodes[top as usize].right;
        self.nodes[n as usize].left = inner;
        self.nodes[top as usize].right = n;
        self.finish_rotation(n, top, inner)
    }

    /// What both rotations share: `top` comes to the place of `n`, `inner` below `n`.
    fn finish_rotation(&mut self, n: Index, top: Index, inner: Index) -> Index {
        if inner != NIL {
            self.nodes[inner as usize].parent = n;
        }
        self.replace_child(self.nodes[n as usize].parent, n, top);
        self.nodes[n as usize].parent = top;
        // The subtree holds the same extents as before, so its row only moves to the new top.
        let base = n as usize * self.classes;
        self.maxima.copy_within(base..base + self.classes, top as usize * self.classes);
        self.recompute(n, 0..self.classes);
        for n in [n, top] {
            let Node { left, right, .. } = self.nodes[n as usize];
            self.nodes[n as usize].height = self.height(left).max(self.height(right)) + 1;
        }
        top
    }
}
