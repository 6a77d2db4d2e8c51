//! What a [`VolatileBuffer`](super::VolatileBuffer) knows of its memory and of its users.
//!
//! Pages are called marked before the library marks them and until it has unmarked them, so those
//! that are not called so are safe. A forked child finds its parent's state: marks that another
//! thread was making or ending may be called so for too long, which the next unmark mends.

use std::ops::Range;

use crate::{forks, Failure, Result};

/// What is known of a buffer.
pub(super) struct State {
    /// Which pages are marked, and how many.
    pub(super) is_marked: Vec<bool>,
    pub(super) marked: usize,
    pub(super) exports: usize,
    /// The thread of each `with` block under way.
    pub(super) holds: Vec<u64>,
    /// Whether all is to be marked once the last export ends.
    pub(super) marks_later: bool,
    pub(super) is_busy: bool,
    /// The process that this is the state in.
    process: u64,
}

impl State {
    /// Returns the state of a buffer that has this number of pages and no mark.
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

    /// In a forked child: forgets what the threads do and hold that stayed with the parent.
    pub(super) fn follow_fork(&mut self) {
        let process = forks::process();
        if self.process != process {
            self.is_busy = false;
            self.holds.retain(|thread| forks::came_along(*thread));
            self.process = process;
        }
    }

    /// Ends a `with` block, one of the calling thread's if it has one. Returns whether there was
    /// any.
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
    /// `BufferError` where arrays or `with` blocks use the memory.
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
