//! Gives free memory back at once, and finds marked memory that the kernel took.
//!
//! [`Space::give_back`] takes wholly free units (2 MiB) first, from the top, because mimalloc takes
//! from the bottom; then free slices (64 KiB) of other units. Lock: the right to claim slices, for
//! one unit at a time or for a whole given range. Cost: some µs per dropped unit; 2 ms per GiB
//! looked at. Source: madvise(2), mincore(2).
//!
//! # Safety
//! System calls change only claimed slices, which no other thread touches or needs.
#![allow(unsafe_code)]

use std::ops::Range;

use glebe::internal::sys::memory::madvise::try_discard;
use glebe::internal::sys::memory::mincore;
use glebe::internal::sys::processes::signals::Blocked;
use glebe::{page_size, Bytes};

use super::counters::add;
use super::right::Held;
use super::run::Run;
use super::space::{Space, SLICE, UNIT, UNIT_SLICES};
use super::state::Slice;

/// Memory to give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All free memory.
    Free,
    /// Marked memory.
    Volatile,
}

/// Slices given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Unmarked.
    pub hot: usize,
    /// Marked.
    pub volatile: usize,
}

impl Given {
    /// Returns the sum.
    #[must_use]
    pub fn slices(&self) -> usize {
        self.hot + self.volatile
    }
}

/// Result of a look at marked memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Bytes of marked memory in pages that are present.
    pub resident: usize,
    /// Slices newly found absent.
    pub lost: usize,
    /// Units without an answer from the kernel.
    pub untold: usize,
}

impl Which {
    fn fits(self, slice: Slice) -> bool {
        match self {
            Which::Free => slice.is_held(),
            Which::Volatile => slice == Slice::Volatile,
        }
    }
}

impl Space {
    /// Tries to give back `asked` slices, and may give back more, by less than a unit.
    pub fn give_back(&self, asked: usize, which: Which) -> Given {
        let mut given = Given::default();
        let opened = self.opened() / UNIT_SLICES;
        for is_whole in [true, false] {
            for nth in (0..opened).rev() {
                if given.slices() >= asked {
                    return given;
                }
                if (self.units()[nth].get().0 == 0) == is_whole {
                    // Blocks signals, because a fork in a handler would wait for `_held`.
                    let _blocked = Blocked::new();
                    let _held = self.hold();
                    self.give_back_unit(nth, which, asked, &mut given);
                }
            }
        }
        given
    }

    /// Gives back the wholly free units that `slices` overlaps, unless a thread holds the right to
    /// claim slices.
    pub fn give_back_at(&self, slices: &Range<usize>) -> Given {
        let mut given = Given::default();
        let _blocked = Blocked::new();
        if let Some(_held) = self.try_hold() {
            for nth in slices.start / UNIT_SLICES..slices.end.div_ceil(UNIT_SLICES) {
                if self.units()[nth].get().0 == 0 {
                    self.give_back_unit(nth, Which::Free, usize::MAX, &mut given);
                }
            }
        }
        given
    }

    fn give_back_unit(&self, nth: usize, which: Which, asked: usize, given: &mut Given) {
        let (mut start, end) = (nth * UNIT_SLICES, (nth + 1) * UNIT_SLICES);
        let fits = |slice| which.fits(slice);
        while start < end && given.slices() < asked {
            // A look is cheaper than a claim.
            if !fits(self.states()[start].get()) {
                start += 1;
                continue;
            }
            // A run may include slices already gone.
            let among = |slice| fits(slice) || slice == Slice::Gone;
            let mut run = Run::claim(self, start, end, among);
            start += run.len().max(1);
            self.drop_run(&mut run, given);
        }
    }

    fn drop_run(&self, run: &mut Run<'_>, given: &mut Given) {
        let volatile = run.count(|was| was == Slice::Volatile);
        let hot = run.count(Slice::is_held) - volatile;
        if !self.discard(run) {
            return;
        }
        add(&self.counters.dropped_hot, hot);
        add(&self.counters.dropped_volatile, volatile);
        given.hot += hot;
        given.volatile += volatile;
        run.settle(|_| Slice::Gone);
    }

    fn discard(&self, run: &Run<'_>) -> bool {
        let (addr, bytes) = run.memory();
        // SAFETY: the run is claimed.
        let done = unsafe { try_discard(addr, Bytes::new(bytes as u64)) };
        add(&self.counters.calls, 1);
        if done.is_err() {
            add(&self.counters.refused, 1);
            return false;
        }
        self.list(run.slices(), false);
        true
    }

    /// Looks at marked memory, and drops each marked slice without resident pages as lost. The drop
    /// ensures that the slice reads as zeros. Absent pages may be in swap, because `MADV_FREE`
    /// skips pages that a child shares.
    pub fn look_at_volatile(&self) -> Left {
        self.look(|| Some(self.hold()))
    }

    /// Looks without waiting for the right to claim slices, because a signal handler's own thread
    /// may hold the right. Drops no slice while any thread holds the right.
    pub fn peek_at_volatile(&self) -> Left {
        self.look(|| self.try_hold())
    }

    fn look<'a>(&'a self, hold: impl Fn() -> Option<Held<'a>>) -> Left {
        let mut left = Left::default();
        let opened = self.opened() / UNIT_SLICES;
        for nth in 0..opened {
            let slices = nth * UNIT_SLICES..(nth + 1) * UNIT_SLICES;
            let is_marked = |nth: &usize| self.states()[*nth].get() == Slice::Volatile;
            if slices.clone().any(|nth| is_marked(&nth)) {
                let _blocked = Blocked::new();
                let held = hold();
                self.look_at_unit(slices, held.is_some(), &mut left);
            }
        }
        left
    }

    fn look_at_unit(&self, slices: Range<usize>, is_held: bool, left: &mut Left) {
        let page = page_size().bytes().as_usize();
        let mut seen = [0_u8; UNIT >> 12];
        let seen = &mut seen[..UNIT / page];
        let marked: [bool; UNIT_SLICES] =
            std::array::from_fn(|nth| self.states()[slices.start + nth].get() == Slice::Volatile);
        let (addr, _) = self.memory_of(slices.start, slices.len());
        if mincore::look(addr, seen).is_err() {
            left.untold += 1;
            return;
        }
        let mut lost = [false; UNIT_SLICES];
        for (nth, pages) in seen.chunks(SLICE / page).enumerate().filter(|(nth, _)| marked[*nth]) {
            let there = pages.iter().filter(|seen| **seen & 1 != 0).count();
            left.resident += there * page;
            lost[nth] = is_held && there == 0;
        }
        if lost.contains(&true) {
            left.lost += self.drop_lost(slices.start, &lost);
        }
    }

    /// Drops lost slices that are still marked.
    pub(super) fn drop_lost(&self, first: usize, lost: &[bool; UNIT_SLICES]) -> usize {
        let (mut start, end, mut dropped) = (first, first + UNIT_SLICES, 0);
        while start < end {
            let len = lost[start - first..].iter().take_while(|lost| **lost).count();
            let mut run = Run::claim(self, start, start + len, |was| was == Slice::Volatile);
            start += run.len().max(1);
            if run.len() > 0 && self.discard(&run) {
                add(&self.counters.lost, run.len());
                dropped += run.len();
                run.settle(|_| Slice::Gone);
            }
        }
        dropped
    }
}
