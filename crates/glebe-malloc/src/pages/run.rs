//! [`Run`]: slices in a row that are claimed, so that a system call may be made on them.
//!
//! Invariant: while it lives, its slices are `Marking` and nobody else touches their memory. When
//! it is dropped they are what they were, but for what [`Run::settle`] said. At most a unit long.
//! Cost: one exchange a slice, and one to ring.

use std::ops::Range;

use super::space::{Space, UNIT_SLICES};
use super::state::Slice;

/// See the module.
#[derive(Debug)]
pub struct Run<'a> {
    space: &'a Space,
    start: usize,
    /// What each slice is to become; what it was until that is said.
    next: [Slice; UNIT_SLICES],
    len: usize,
}

impl<'a> Run<'a> {
    /// Claims slices from `start` on, up to `end`, the end of the unit or the first that does not
    /// fit. The caller holds the right.
    pub fn claim(space: &'a Space, start: usize, end: usize, fits: impl Fn(Slice) -> bool) -> Self {
        let end = end.min((start / UNIT_SLICES + 1) * UNIT_SLICES);
        let mut run = Self { space, start, next: [Slice::Gone; UNIT_SLICES], len: 0 };
        for state in &space.states()[start..end] {
            let Some(was) = state.claim(&fits) else { break };
            run.next[run.len] = was;
            run.len += 1;
        }
        run
    }

    /// How many slices it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Which they are.
    #[must_use]
    pub fn slices(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// How many of them were such.
    #[must_use]
    pub fn count(&self, such: impl Fn(Slice) -> bool) -> usize {
        self.next[..self.len].iter().filter(|was| such(**was)).count()
    }

    /// Where its memory is, and how many bytes.
    #[must_use]
    pub fn memory(&self) -> (usize, usize) {
        self.space.memory_of(self.start, self.len)
    }

    /// What each is when this is dropped, by what it was.
    pub fn settle(&mut self, becomes: impl Fn(Slice) -> Slice) {
        self.next[..self.len].iter_mut().for_each(|next| *next = becomes(*next));
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let states = &self.space.states()[self.start..][..self.len];
        states.iter().zip(&self.next).for_each(|(state, next)| state.settle(*next));
        if self.len > 0 {
            self.space.right().ring();
        }
    }
}
