//! Marks memory that stayed free for some turns, so that the kernel may take it.
//!
//! Marking a part of a huge page splits the page, so a unit (2 MiB) waits until all of it is free.
//! Without huge pages, runs of slices (64 KiB) are marked. Memory that a child may share is
//! dropped, because the kernel would keep it for the child. Lock: the right to claim slices, a unit
//! at a time. Cost: some loads per unchanged unit, some µs per marked unit. Source: madvise(2).
//!
//! # Safety
//! System calls change only claimed slices, which no other thread touches or needs.
#![allow(unsafe_code)]

use std::ops::Range;

use glebe::internal::sys::memory::madvise::{try_advise, try_discard, Advice};
use glebe::Bytes;

use super::counters::add;
use super::run::Run;
use super::space::{Space, UNIT_SLICES};
use super::state::Slice;
use crate::sync::Ordering;

/// Manner of marking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Least age in turns.
    pub age: u8,
    /// Units are huge pages.
    pub is_huge: bool,
    /// No other process shared the memory at the last check; [`Space::shared`] shows later forks.
    pub is_alone: bool,
}

/// The result of [`Space::mark`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marked {
    /// Slices marked or dropped.
    pub slices: usize,
    /// True if some slices are too young; a later turn marks them.
    pub is_due: bool,
}

impl Space {
    /// Marks old enough slices, or drops them if a child may share them.
    pub fn mark(&self, manner: Manner) -> Marked {
        let mut marked = Marked::default();
        let opened = self.opened() / UNIT_SLICES;
        for (nth, unit) in self.units()[..opened].iter().enumerate() {
            let (live, frees) = unit.get();
            let manner = Manner { is_huge: manner.is_huge && !unit.has_base_pages(), ..manner };
            if unit.seen.load(Ordering::Relaxed) == frees || manner.is_huge && live > 0 {
                continue;
            }
            let slices = nth * UNIT_SLICES..(nth + 1) * UNIT_SLICES;
            if self.has_young(slices.clone(), manner) {
                marked.is_due = true;
            } else {
                unit.seen.store(frees, Ordering::Relaxed);
            }
            self.mark_unit(slices, manner, &mut marked);
        }
        marked
    }

    fn fits(&self, slice: Slice, manner: Manner) -> bool {
        match slice {
            Slice::Hot(turn) => turn.age(self.turn()) >= manner.age,
            other => matches!(other, Slice::Volatile | Slice::Gone),
        }
    }

    fn has_young(&self, slices: Range<usize>, manner: Manner) -> bool {
        let is_young = |slice| matches!(slice, Slice::Hot(_)) && !self.fits(slice, manner);
        self.states()[slices].iter().any(|state| is_young(state.get()))
    }

    fn mark_unit(&self, slices: Range<usize>, manner: Manner, marked: &mut Marked) {
        let states = &self.states()[slices.clone()];
        let fits = |slice| self.fits(slice, manner);
        if manner.is_huge && !states.iter().all(|state| fits(state.get())) {
            return;
        }
        let _held = self.hold();
        let is_alone = manner.is_alone && self.shared.load(Ordering::Relaxed) == 0;
        let mut start = slices.start;
        while start < slices.end {
            let mut run = Run::claim(self, start, slices.end, fits);
            start += run.len().max(1);
            let is_hot = |slice| matches!(slice, Slice::Hot(_));
            let (hot, is_cut) = (run.count(is_hot), run.len() < UNIT_SLICES);
            if hot > 0 && !(manner.is_huge && is_cut) {
                self.mark_run(&mut run, hot, is_alone, marked);
            }
        }
    }

    fn mark_run(&self, run: &mut Run<'_>, hot: usize, is_alone: bool, marked: &mut Marked) {
        let (addr, bytes) = run.memory();
        let len = Bytes::new(bytes as u64);
        // SAFETY: the run is claimed.
        let done = unsafe {
            if is_alone {
                try_advise(addr, len, Advice::Free)
            } else {
                try_discard(addr, len)
            }
        };
        add(&self.counters.calls, 1);
        if done.is_err() {
            add(&self.counters.refused, 1);
            return;
        }
        marked.slices += hot;
        self.list(run.slices(), is_alone);
        if is_alone {
            add(&self.counters.marked, hot);
            run.settle(|was| if was == Slice::Gone { was } else { Slice::Volatile });
        } else {
            add(&self.counters.dropped_hot, hot);
            add(&self.counters.dropped_volatile, run.count(|was| was == Slice::Volatile));
            run.settle(|_| Slice::Gone);
        }
    }
}
