//! [`Run`] holds consecutive slices, claimed for a system call.
//!
//! Invariant: while a run exists, its slices are `Marking`, and nobody else touches them. The run's
//! drop restores their states, unless [`Run::settle`] chose others. Cost: an exchange and a store
//! per slice, and an addition per run.

use std::ops::Range;

use super::space::{Space, UNIT_SLICES};
use super::state::Slice;

/// Claimed slices.
#[derive(Debug)]
pub struct Run<'a> {
    space: &'a Space,
    start: usize,
    /// State of each slice after drop.
    next: [Slice; UNIT_SLICES],
    len: usize,
}

impl<'a> Run<'a> {
    /// Claims slices from `start` on, until `end`, the unit's end or the first slice that cannot be
    /// claimed. The caller holds the right to claim slices.
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

    /// Returns the number of slices.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the range of slices.
    #[must_use]
    pub fn slices(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// Returns the number of slices whose state was `such`.
    #[must_use]
    pub fn count(&self, such: impl Fn(Slice) -> bool) -> usize {
        self.next[..self.len].iter().filter(|was| such(**was)).count()
    }

    /// Returns the address and length of the memory, in bytes.
    #[must_use]
    pub fn memory(&self) -> (usize, usize) {
        self.space.memory_of(self.start, self.len)
    }

    /// Chooses each slice's state after the drop, from its old state.
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
