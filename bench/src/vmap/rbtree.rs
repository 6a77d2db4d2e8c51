//! [`RbTree`]: the plain design, a red-black tree of free extents augmented by size.
//!
//! The peer that stands for the kernel's free areas: one node an extent, sorted by address, in a
//! red-black tree where each node knows the longest extent below it, and in a list, so that
//! neighbours are met without a walk. A search descends by length alone and tests each extent that
//! is long enough: always the lowest fit, but an aligned request may look at every extent.
//!
//! Nodes are 40 bytes, side by side and named by index, and freed ones are used again first.
//! Source: written from the description of the design in "improve vmap allocation" (Linux 2019);
//! red-black trees after Guibas and Sedgewick 1978.

use glebe::extent::Extent;
use glebe::sys::madvise::prefer_huge;

use super::space::Space;

const NIL: u32 = 0;

#[derive(Clone, Copy, Debug)]
struct Node {
    start: u64,
    len: u64,
    /// The longest extent of the subtree.
    max: u64,
    child: [u32; 2],
    parent: u32,
    red: bool,
}

const ABSENT: Node = Node { start: 0, len: 0, max: 0, child: [NIL, NIL], parent: NIL, red: false };

/// The tree; see the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct RbTree {
    nodes: Vec<Node>,
    /// The neighbours in the order of addresses.
    links: Vec<[u32; 2]>,
    root: u32,
    spare: Vec<u32>,
}

impl RbTree {
    /// With room for `most` extents, on huge pages, as the free tree's nodes are and the kernel's.
    pub(super) fn new(most: usize) -> Self {
        let (mut nodes, mut links) = (Vec::with_capacity(most + 1), Vec::with_capacity(most + 1));
        prefer_huge(nodes.spare_capacity_mut());
        prefer_huge(links.spare_capacity_mut());
        nodes.push(ABSENT);
        links.push([NIL, NIL]);
        Self { nodes, links, root: NIL, spare: Vec::new() }
    }

    fn at(&self, n: u32) -> &Node {
        &self.nodes[n as usize]
    }

    fn at_mut(&mut self, n: u32) -> &mut Node {
        &mut self.nodes[n as usize]
    }

    /// The lowest extent with `len`, of which a place at `low` or above in `high` fits.
    fn find(&self, len: u64, align: u64, low: u64, high: u64) -> Option<(u32, u64)> {
        let mut low = low;
        let mut n = self.root;
        let first = low;
        while n != NIL {
            let node = self.at(n);
            let left = node.child[0];
            if self.at(left).max >= len && low < node.start {
                n = left;
                continue;
            }
            if let Some(place) = place(node, len, align, first) {
                return (place + len <= high).then_some((n, place));
            }
            if self.at(node.child[1]).max >= len {
                n = node.child[1];
                continue;
            }
            // Up to the first ancestor, reached from the left, that fits or has a right subtree
            // where a fit may be; what lies left of it is not entered again.
            loop {
                let child = n;
                n = self.at(n).parent;
                if n == NIL {
                    return None;
                }
                let node = self.at(n);
                if node.child[1] == child {
                    continue;
                }
                if let Some(place) = place(node, len, align, first) {
                    return (place + len <= high).then_some((n, place));
                }
                if node.start >= high {
                    return None;
                }
                if self.at(node.child[1]).max >= len && low <= node.start {
                    low = node.start + 1;
                    n = node.child[1];
                    break;
                }
            }
        }
        None
    }

    fn compute(&self, n: u32) -> u64 {
        let node = self.at(n);
        node.len.max(self.at(node.child[0]).max).max(self.at(node.child[1]).max)
    }

    /// Makes the maxima right again from `n` upward, up to the first that is.
    fn propagate(&mut self, mut n: u32) {
        while n != NIL {
            let max = self.compute(n);
            if self.at(n).max == max {
                return;
            }
            self.at_mut(n).max = max;
            n = self.at(n).parent;
        }
    }

    fn replace_child(&mut self, parent: u32, old: u32, new: u32) {
        if parent == NIL {
            self.root = new;
        } else {
            let side = usize::from(self.at(parent).child[1] == old);
            self.at_mut(parent).child[side] = new;
        }
    }

    /// Lifts the child of `n` that is on the other side than `side`.
    fn rotate(&mut self, n: u32, side: usize) {
        let top = self.at(n).child[1 - side];
        let inner = self.at(top).child[side];
        let parent = self.at(n).parent;
        self.at_mut(n).child[1 - side] = inner;
        if inner != NIL {
            self.at_mut(inner).parent = n;
        }
        self.replace_child(parent, n, top);
        self.at_mut(top).parent = parent;
        self.at_mut(top).child[side] = n;
        self.at_mut(n).parent = top;
        self.at_mut(top).max = self.at(n).max;
        self.at_mut(n).max = self.compute(n);
    }

    /// Adds an extent below `parent`, on `side` of it, where nothing is.
    fn insert(&mut self, start: u64, len: u64, parent: u32, side: usize) {
        let node = Node { start, len, max: 0, parent, red: true, ..ABSENT };
        let n = self.spare.pop().unwrap_or_else(|| {
            self.nodes.push(ABSENT);
            self.links.push([NIL, NIL]);
            (self.nodes.len() - 1) as u32
        });
        self.nodes[n as usize] = node;
        if parent == NIL {
            self.root = n;
            self.links[n as usize] = [NIL, NIL];
        } else {
            self.at_mut(parent).child[side] = n;
            // Parent and the parent's neighbour on that side are the neighbours.
            let other = self.links[parent as usize][side];
            self.links[n as usize][side] = other;
            self.links[n as usize][1 - side] = parent;
            self.links[parent as usize][side] = n;
            if other != NIL {
                self.links[other as usize][1 - side] = n;
            }
        }
        self.propagate(n);
        self.balance_inserted(n);
    }

    fn balance_inserted(&mut self, mut n: u32) {
        loop {
            let parent = self.at(n).parent;
            if parent == NIL {
                self.at_mut(n).red = false;
                return;
            }
            if !self.at(parent).red {
                return;
            }
            let grand = self.at(parent).parent;
            let side = usize::from(self.at(grand).child[1] == parent);
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

    fn remove(&mut self, n: u32) {
        let [before, after] = self.links[n as usize];
        if before != NIL {
            self.links[before as usize][1] = after;
        }
        if after != NIL {
            self.links[after as usize][0] = before;
        }
        let Node { child: [left, right], parent, .. } = *self.at(n);
        // Where the tree lost a node: what is there now, its parent, and the colour that is gone.
        let (hole, above, lost_red);
        if left != NIL && right != NIL {
            // The next one, which is the leftmost on the right, takes the place.
            let next = after;
            lost_red = self.at(next).red;
            hole = self.at(next).child[1];
            if self.at(next).parent == n {
                above = next;
            } else {
                above = self.at(next).parent;
                self.at_mut(above).child[0] = hole;
                if hole != NIL {
                    self.at_mut(hole).parent = above;
                }
                self.at_mut(next).child[1] = right;
                self.at_mut(right).parent = next;
            }
            self.at_mut(next).child[0] = left;
            self.at_mut(left).parent = next;
            self.at_mut(next).red = self.at(n).red;
            self.at_mut(next).parent = parent;
            self.replace_child(parent, n, next);
            self.at_mut(next).max = self.at(n).max;
            self.recompute_up_to(above, next);
            self.propagate(next);
        } else {
            hole = if left == NIL { right } else { left };
            above = parent;
            lost_red = self.at(n).red;
            self.replace_child(parent, n, hole);
            if hole != NIL {
                self.at_mut(hole).parent = parent;
            }
            self.propagate(parent);
        }
        self.spare.push(n);
        if !lost_red {
            self.balance_removed(hole, above);
        }
    }

    /// Makes the maxima right from `n` up to and with `last`.
    fn recompute_up_to(&mut self, mut n: u32, last: u32) {
        loop {
            self.at_mut(n).max = self.compute(n);
            if n == last {
                return;
            }
            n = self.at(n).parent;
        }
    }

    fn balance_removed(&mut self, mut n: u32, mut parent: u32) {
        while parent != NIL && !self.at(n).red {
            let side = usize::from(self.at(parent).child[1] == n);
            let mut sibling = self.at(parent).child[1 - side];
            if self.at(sibling).red {
                self.at_mut(sibling).red = false;
                self.at_mut(parent).red = true;
                self.rotate(parent, side);
                sibling = self.at(parent).child[1 - side];
            }
            let near = self.at(sibling).child[side];
            let far = self.at(sibling).child[1 - side];
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
        if n != NIL {
            self.at_mut(n).red = false;
        }
    }

    fn resize(&mut self, n: u32, start: u64, len: u64) {
        (self.at_mut(n).start, self.at_mut(n).len) = (start, len);
        self.propagate(n);
    }
}

/// The lowest place in `node` at `low` or above.
fn place(node: &Node, len: u64, align: u64, low: u64) -> Option<u64> {
    let start = node.start.max(low).checked_next_multiple_of(align)?;
    (start.checked_add(len)? <= node.start + node.len).then_some(start)
}

impl Space for RbTree {
    fn alloc(&mut self, len: u64, align: u64, within: Option<Extent>) -> Option<u32> {
        let (low, high) = within.map_or((0, u64::MAX), |within| (within.start(), within.end()));
        let (n, taken) = self.find(len, align, low, high)?;
        let Node { start, len: old, child, .. } = *self.at(n);
        let end = start + old;
        match (start == taken, end == taken + len) {
            (true, true) => self.remove(n),
            (true, false) => self.resize(n, taken + len, old - len),
            (false, true) => self.resize(n, start, taken - start),
            (false, false) => {
                self.resize(n, taken + len, end - taken - len);
                // The first part lies just before: no search for its place is needed.
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
        let (mut parent, mut side, mut n) = (NIL, 0, self.root);
        while n != NIL {
            parent = n;
            side = usize::from(start >= self.at(n).start);
            n = self.at(n).child[side];
        }
        if parent == NIL {
            self.insert(start, len, NIL, 0);
            return;
        }
        let other = self.links[parent as usize][side];
        let (before, after) = if side == 0 { (other, parent) } else { (parent, other) };
        let joins_before = before != NIL && self.at(before).start + self.at(before).len == start;
        let joins_after = after != NIL && self.at(after).start == start + len;
        match (joins_before, joins_after) {
            (true, true) => {
                let whole = self.at(before).len + len + self.at(after).len;
                let first = self.at(before).start;
                self.remove(after);
                self.resize(before, first, whole);
            }
            (true, false) => {
                let Node { start, len: old, .. } = *self.at(before);
                self.resize(before, start, old + len);
            }
            (false, true) => {
                let old = self.at(after).len;
                self.resize(after, start, len + old);
            }
            (false, false) => self.insert(start, len, parent, side),
        }
    }
}
