//! [`List`]: a linked list of free extents, first fit.
//!
//! The simplest peer: sorted by address, searched from its head for a fit and for the place of what
//! is freed. Always the lowest fit; O(n). Nodes lie side by side and are named by index.

use glebe::extent::Extent;

use super::space::Space;

const NIL: u32 = 0;

#[derive(Clone, Copy, Debug)]
struct Node {
    start: u64,
    end: u64,
    next: u32,
}

/// The list; see the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct List {
    /// The first stands before all.
    nodes: Vec<Node>,
    spare: Vec<u32>,
    last: u32,
}

impl List {
    pub(super) fn new() -> Self {
        let nodes = vec![Node { start: 0, end: 0, next: NIL }];
        Self { nodes, spare: Vec::new(), last: NIL }
    }

    fn insert_after(&mut self, before: u32, start: u64, end: u64) {
        let node = Node { start, end, next: self.nodes[before as usize].next };
        let n = self.spare.pop().unwrap_or_else(|| {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        });
        self.nodes[n as usize] = node;
        self.nodes[before as usize].next = n;
        if self.last == before {
            self.last = n;
        }
    }

    fn remove_after(&mut self, before: u32) {
        let n = self.nodes[before as usize].next;
        self.nodes[before as usize].next = self.nodes[n as usize].next;
        if self.last == n {
            self.last = before;
        }
        self.spare.push(n);
    }
}

impl Space for List {
    fn alloc(&mut self, len: u64, align: u64, within: Option<Extent>) -> Option<u32> {
        let (low, high) = within.map_or((0, u64::MAX), |within| (within.start(), within.end()));
        let mut before = 0;
        loop {
            let n = self.nodes[before as usize].next;
            if n == NIL {
                return None;
            }
            let Node { start, end, .. } = self.nodes[n as usize];
            let at = start.max(low).checked_next_multiple_of(align)?;
            if at + len > high {
                return None;
            }
            if at + len > end {
                before = n;
                continue;
            }
            match (at == start, at + len == end) {
                (true, true) => self.remove_after(before),
                (true, false) => self.nodes[n as usize].start = at + len,
                (false, true) => self.nodes[n as usize].end = at,
                (false, false) => {
                    self.nodes[n as usize].end = at;
                    self.insert_after(n, at + len, end);
                }
            }
            return Some(at as u32);
        }
    }

    fn free(&mut self, place: u32, len: u64) {
        let start = u64::from(place);
        let end = start + len;
        // What is freed after all others is not searched for.
        let mut before = if self.nodes[self.last as usize].start < start { self.last } else { 0 };
        loop {
            let next = self.nodes[before as usize].next;
            if next == NIL || self.nodes[next as usize].start > start {
                break;
            }
            before = next;
        }
        let next = self.nodes[before as usize].next;
        let joins_before = before != 0 && self.nodes[before as usize].end == start;
        let joins_next = next != NIL && self.nodes[next as usize].start == end;
        match (joins_before, joins_next) {
            (true, true) => {
                self.nodes[before as usize].end = self.nodes[next as usize].end;
                self.remove_after(before);
            }
            (true, false) => self.nodes[before as usize].end = end,
            (false, true) => self.nodes[next as usize].start = start,
            (false, false) => self.insert_after(before, start, end),
        }
    }
}
