//! [`RbTree`] is the plain design, like the kernel's: a red-black tree of free extents by address.
//!
//! Each node knows the longest extent of its subtree. A list of all nodes finds neighbours without
//! a walk. A search descends by length and tests each extent that is long enough. The search finds
//! the lowest fit, but an aligned request may look at every extent. Source: the description in
//! "improve vmap allocation" (Linux 2019); red-black trees after Guibas and Sedgewick 1978.

use glebe::internal::sys::memory::madvise::prefer_huge;

use super::space::Space;

/// The absent node: black, of length 0, at a position that no extent touches. `NIL` has the root as
/// first child, ends the list on both sides, and may have any parent.
const NIL: u32 = 0;

#[derive(Clone, Copy, Debug)]
struct Node {
    start: u64,
    len: u64,
    /// Length of the longest extent in the subtree.
    max: u64,
    child: [u32; 2],
    parent: u32,
    red: bool,
}

const ABSENT: Node =
    Node { start: u64::MAX, len: 0, max: 0, child: [NIL, NIL], parent: NIL, red: false };

/// Nodes of 40 bytes are in a vector and named by index; freed nodes are reused first.
pub(super) struct RbTree {
    nodes: Vec<Node>,
    links: Vec<[u32; 2]>,
    spare: Vec<u32>,
}

impl RbTree {
    /// Makes room for `most` extents, on huge pages if possible, like `FreeTree`.
    pub(super) fn new(most: usize) -> Self {
        let (mut nodes, mut links) = (Vec::with_capacity(most + 1), Vec::with_capacity(most + 1));
        prefer_huge(nodes.spare_capacity_mut());
        prefer_huge(links.spare_capacity_mut());
        nodes.push(ABSENT);
        links.push([NIL, NIL]);
        Self { nodes, links, spare: Vec::new() }
    }

    fn at(&self, n: u32) -> &Node {
        &self.nodes[n as usize]
    }

    fn at_mut(&mut self, n: u32) -> &mut Node {
        &mut self.nodes[n as usize]
    }

    fn root(&self) -> u32 {
        self.at(NIL).child[0]
    }

    /// Returns the lowest extent with a place for the request, and the place.
    fn find(&self, len: u64, align: u64) -> Option<(u32, u64)> {
        let mut n = self.root();
        if self.at(n).max < len {
            return None;
        }
        loop {
            // Goes down to the lowest extent that is long enough.
            while self.at(self.at(n).child[0]).max >= len {
                n = self.at(n).child[0];
            }
            // Goes up to the first fit, or to a right subtree with a long enough extent.
            loop {
                let node = self.at(n);
                if let Some(place) = place(node, len, align) {
                    return Some((n, place));
                }
                if self.at(node.child[1]).max >= len {
                    n = node.child[1];
                    break;
                }
                n = self.above_left(n)?;
            }
        }
    }

    /// Returns the lowest ancestor that has `n` in its left subtree.
    fn above_left(&self, mut n: u32) -> Option<u32> {
        loop {
            let parent = self.at(n).parent;
            if parent == NIL || self.at(parent).child[0] == n {
                return (parent != NIL).then_some(parent);
            }
            n = parent;
        }
    }

    fn longest(&self, n: u32) -> u64 {
        let node = self.at(n);
        node.len.max(self.at(node.child[0]).max).max(self.at(node.child[1]).max)
    }

    /// Corrects maxima from `n` upward until one is right.
    fn propagate(&mut self, mut n: u32) {
        while n != NIL {
            let max = self.longest(n);
            if self.at(n).max == max {
                return;
            }
            self.at_mut(n).max = max;
            n = self.at(n).parent;
        }
    }

    fn side(&self, n: u32, parent: u32) -> usize {
        usize::from(self.at(parent).child[1] == n)
    }

    fn hang(&mut self, parent: u32, side: usize, child: u32) {
        self.at_mut(parent).child[side] = child;
        self.at_mut(child).parent = parent;
    }

    /// Rotates `n` down to `side`; the other child takes its place.
    fn rotate(&mut self, n: u32, side: usize) {
        let parent = self.at(n).parent;
        let top = self.at(n).child[1 - side];
        self.hang(parent, self.side(n, parent), top);
        self.hang(n, 1 - side, self.at(top).child[side]);
        self.hang(top, side, n);
        self.at_mut(top).max = self.at(n).max;
        self.at_mut(n).max = self.longest(n);
    }

    /// Adds an extent as the absent child `side` of `parent`.
    fn insert(&mut self, start: u64, len: u64, parent: u32, side: usize) {
        let n = self.spare.pop().unwrap_or_else(|| {
            self.nodes.push(ABSENT);
            self.links.push([NIL, NIL]);
            (self.nodes.len() - 1) as u32
        });
        *self.at_mut(n) = Node { start, len, red: true, ..ABSENT };
        self.hang(parent, side, n);
        // Links the node between the parent and the parent's list neighbour on that side.
        let other = self.links[parent as usize][side];
        self.links[n as usize][side] = other;
        self.links[n as usize][1 - side] = parent;
        self.links[parent as usize][side] = n;
        self.links[other as usize][1 - side] = n;
        self.propagate(n);
        self.balance_inserted(n);
    }

    fn balance_inserted(&mut self, mut n: u32) {
        loop {
            let parent = self.at(n).parent;
            if parent == NIL {
                self.at_mut(n).red = false;
            }
            if !self.at(parent).red {
                return;
            }
            let grand = self.at(parent).parent;
            let side = self.side(parent, grand);
            let uncle = self.at(grand).child[1 - side];
            if self.at(uncle).red {
                self.at_mut(uncle).red = false;
                self.at_mut(parent).red = false;
                self.at_mut(grand).red = true;
                n = grand;
                continue;
            }
            let mut top = parent;
            if self.at(parent).child[1 - side] == n {
                self.rotate(parent, side);
                top = n;
            }
            self.at_mut(top).red = false;
            self.at_mut(grand).red = true;
            self.rotate(grand, 1 - side);
            return;
        }
    }

    /// Removes the extent of `n`. If `n` has two children, moves the next extent into `n` and
    /// removes that extent's node.
    fn remove(&mut self, n: u32) {
        let mut gone = n;
        if !self.at(n).child.contains(&NIL) {
            gone = self.links[n as usize][1];
            let Node { start, len, .. } = *self.at(gone);
            (self.at_mut(n).start, self.at_mut(n).len) = (start, len);
        }
        let [before, after] = self.links[gone as usize];
        self.links[before as usize][1] = after;
        self.links[after as usize][0] = before;
        let Node { child: [left, right], parent, red, .. } = *self.at(gone);
        let below = if left == NIL { right } else { left };
        self.hang(parent, self.side(gone, parent), below);
        self.propagate(parent);
        if gone != n {
            // The first walk may have ended below `n`, whose extent changed.
            self.propagate(n);
        }
        self.spare.push(gone);
        if !red {
            self.balance_removed(below, parent);
        }
    }

    /// Restores balance after a black node was removed above `n` (perhaps absent), below `parent`.
    fn balance_removed(&mut self, mut n: u32, mut parent: u32) {
        while parent != NIL && !self.at(n).red {
            let side = self.side(n, parent);
            let mut sibling = self.at(parent).child[1 - side];
            if self.at(sibling).red {
                self.at_mut(sibling).red = false;
                self.at_mut(parent).red = true;
                self.rotate(parent, side);
                sibling = self.at(parent).child[1 - side];
            }
            let [near, far] = [side, 1 - side].map(|side| self.at(sibling).child[side]);
            if !self.at(near).red && !self.at(far).red {
                self.at_mut(sibling).red = true;
                n = parent;
                parent = self.at(n).parent;
                continue;
            }
            if !self.at(far).red {
                self.at_mut(near).red = false;
                self.at_mut(sibling).red = true;
                self.rotate(sibling, 1 - side);
                sibling = near;
            }
            let far = self.at(sibling).child[1 - side];
            self.at_mut(sibling).red = self.at(parent).red;
            self.at_mut(parent).red = false;
            self.at_mut(far).red = false;
            self.rotate(parent, side);
            return;
        }
        self.at_mut(n).red = false;
    }

    fn resize(&mut self, n: u32, start: u64, end: u64) {
        (self.at_mut(n).start, self.at_mut(n).len) = (start, end - start);
        self.propagate(n);
    }
}

fn place(node: &Node, len: u64, align: u64) -> Option<u64> {
    let start = node.start.checked_next_multiple_of(align)?;
    (start.checked_add(len)? <= node.start + node.len).then_some(start)
}

impl Space for RbTree {
    fn alloc(&mut self, len: u64, align: u64) -> Option<u32> {
        let (n, taken) = self.find(len, align)?;
        let Node { start, len: old, child, .. } = *self.at(n);
        let end = start + old;
        match (start == taken, end == taken + len) {
            (true, true) => self.remove(n),
            (true, false) => self.resize(n, taken + len, end),
            (false, true) => self.resize(n, start, taken),
            (false, false) => {
                self.resize(n, taken + len, end);
                // The first part comes right before `n` in the list, so it needs no search.
                let (parent, side) = match child[0] {
                    NIL => (n, 0),
                    _ => (self.links[n as usize][0], 1),
                };
                self.insert(start, taken - start, parent, side);
            }
        }
        Some(taken as u32)
    }

    fn free(&mut self, place: u32, len: u64) {
        let start = u64::from(place);
        let (mut parent, mut side, mut n) = (NIL, 0, self.root());
        while n != NIL {
            parent = n;
            side = usize::from(start >= self.at(n).start);
            n = self.at(n).child[side];
        }
        let other = self.links[parent as usize][side];
        let (before, after) = if side == 0 { (other, parent) } else { (parent, other) };
        let Node { start: first, len: first_len, .. } = *self.at(before);
        let Node { start: last, len: last_len, .. } = *self.at(after);
        match (first + first_len == start, last == start + len) {
            (true, true) => {
                self.remove(after);
                self.resize(before, first, last + last_len);
            }
            (true, false) => self.resize(before, first, start + len),
            (false, true) => self.resize(after, start, last + last_len),
            (false, false) => self.insert(start, len, parent, side),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::list::List;
    use super::*;
    use crate::reserve::keyed::Random;

    fn check(tree: &RbTree, n: u32) -> u32 {
        if n == NIL {
            return 1;
        }
        let node = tree.at(n);
        let [left, right] = node.child.map(|child| check(tree, child));
        assert_eq!(left, right);
        assert_eq!(node.max, tree.longest(n));
        for child in node.child.into_iter().filter(|child| *child != NIL) {
            assert_eq!(tree.at(child).parent, n);
            assert!(!(node.red && tree.at(child).red));
        }
        left + u32::from(!node.red)
    }

    #[test]
    fn the_tree_is_balanced_and_answers_as_the_list_does() {
        let (mut tree, mut list, mut random) = (RbTree::new(16), List::new(), Random::new(1));
        let mut held = Vec::new();
        tree.free(0, 9000);
        list.free(0, 9000);
        for step in 0..20_000 {
            // Allocates for 1000 steps, then frees for 1000 steps, and so on.
            if step / 1000 % 2 == 0 || held.is_empty() {
                let (len, align) = (1 + random.below(30), 1 << random.below(4));
                let place = tree.alloc(len, align);
                assert_eq!(place, list.alloc(len, align));
                held.extend(place.map(|place| (place, len)));
            } else {
                let (place, len) = held.swap_remove(random.below(held.len() as u64) as usize);
                tree.free(place, len);
                list.free(place, len);
            }
            assert!(!tree.at(NIL).red && tree.at(NIL).max == 0);
            check(&tree, tree.root());
        }
    }
}
