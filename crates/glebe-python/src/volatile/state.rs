//! [`State`]: the marks and users of a [`VolatileBuffer`](super::VolatileBuffer).
//!
//! A page counts as marked from before the library marks it until after the library unmarks it, so
//! a page that does not count as marked is safe. A forked child inherits the state. If another
//! thread was marking or unmarking, pages may count as marked until the next unmark.

use std::ops::Range;

use crate::{forks, Failure, Result};

pub(super) struct State {
    pub(super) is_marked: Vec<bool>,
    pub(super) marked: usize,
    pub(super) exports: usize,
    /// The thread of each open `with` block.
    pub(super) holds: Vec<u64>,
    /// True if the end of the last export marks all pages.
    pub(super) marks_later: bool,
    pub(super) is_busy: bool,
    /// Number of the process that this state describes.
    process: u64,
}

impl State {
    pub(super) fn new(pages: usize) -> Self {
        Self {
            is_marked: vec![false; pages],
            marked: 0,
            exports: 0,
            holds: Vec::new(),
            marks_later: false,
            is_busy: false,
            process: forks::process(),
        }
    }

    pub(super) fn set(&mut self, pages: Range<usize>, is_marked: bool) {
        self.is_marked[pages].fill(is_marked);
        self.marked = self.is_marked.iter().filter(|is_marked| **is_marked).count();
    }

    /// In a forked child, forgets calls and holds of threads that stayed with the parent.
    pub(super) fn follow_fork(&mut self) {
        let process = forks::process();
        if self.process != process {
            self.is_busy = false;
            self.holds.retain(|thread| forks::came_along(*thread));
            self.process = process;
        }
    }

    /// Ends a `with` block, preferably the calling thread's. Returns false if none is open.
    pub(super) fn end_hold(&mut self) -> bool {
        let own = forks::thread();
        let at = self.holds.iter().position(|thread| *thread == own);
        let is_held = !self.holds.is_empty();
        if is_held {
            self.holds.swap_remove(at.unwrap_or(0));
        }
        is_held
    }

    /// # Errors
    /// `BufferError` if arrays or `with` blocks use the memory.
    pub(super) fn may_mark(&self) -> Result<()> {
        if self.exports > 0 || !self.holds.is_empty() {
            let (exports, holds) = (self.exports, self.holds.len());
            return Err(Failure::buffer(format!(
                "memory in use cannot be marked: {exports} arrays or views, {holds} held blocks"
            )));
        }
        Ok(())
    }
}
