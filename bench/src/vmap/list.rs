//! [`List`] is the simplest peer: a linked list of free extents, sorted by address.
//!
//! A request searches from the head and takes the first fit, in O(n). Nodes are in a vector and
//! named by index.

use super::space::Space;

const NIL: u32 = 0;

#[derive(Clone, Copy, Debug)]
struct Node {
    start: u64,
    end: u64,
    next: u32,
}

pub(super) struct List {
    /// The first node is a sentinel.
    nodes: Vec<Node>,
    spare: Vec<u32>,
    last: u32,
}

impl List {
    pub(super) fn new() -> Self {
        let head = Node { start: 0, end: 0, next: NIL };
        Self { nodes: vec![head], spare: Vec::new(), last: NIL }
    }

    fn at(&mut self, n: u32) -> &mut Node {
        &mut self.nodes[n as usize]
    }

    fn insert_after(&mut self, before: u32, start: u64, end: u64) {
        let node = Node { start, end, next: self.at(before).next };
        let n = self.spare.pop().unwrap_or_else(|| {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        });
        *self.at(n) = node;
        self.at(before).next = n;
        if self.last == before {
            self.last = n;
        }
    }

    fn remove_after(&mut self, before: u32) {
        let n = self.at(before).next;
        self.at(before).next = self.at(n).next;
        if self.last == n {
            self.last = before;
        }
        self.spare.push(n);
    }
}

impl Space for List {
    fn alloc(&mut self, len: u64, align: u64) -> Option<u32> {
        let mut before = NIL;
        loop {
            let n = self.at(before).next;
            if n == NIL {
                return None;
            }
            let Node { start, end, .. } = *self.at(n);
            let at = start.checked_next_multiple_of(align)?;
            if at + len > end {
                before = n;
                continue;
            }
            match (at == start, at + len == end) {
                (true, true) => self.remove_after(before),
                (true, false) => self.at(n).start = at + len,
                (false, true) => self.at(n).end = at,
                (false, false) => {
                    self.at(n).end = at;
                    self.insert_after(n, at + len, end);
                }
            }
            return Some(at as u32);
        }
    }

    fn free(&mut self, place: u32, len: u64) {
        let start = u64::from(place);
        let end = start + len;
        let last = self.last;
        // A block after the last extent needs no search.
        let mut before = if self.at(last).start < start { last } else { NIL };
        let mut next = self.at(before).next;
        while next != NIL && self.at(next).start < start {
            before = next;
            next = self.at(before).next;
        }
        let joins_before = before != NIL && self.at(before).end == start;
        let joins_next = next != NIL && self.at(next).start == end;
        match (joins_before, joins_next) {
            (true, true) => {
                self.at(before).end = self.at(next).end;
                self.remove_after(before);
            }
            (true, false) => self.at(before).end = end,
            (false, true) => self.at(next).start = start,
            (false, false) => self.insert_after(before, start, end),
        }
    }
}
