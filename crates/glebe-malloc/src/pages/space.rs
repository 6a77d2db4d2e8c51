//! [`Space`] is reserved addresses with a table of their slices, 64 KiB each, to take and free.
//!
//! Invariants: slices below `opened` may be touched; between changes, the word of a [`Unit`] counts
//! its slices in use. Lengths are in slices unless a name says bytes. Cost: an exchange or store
//! per slice and some additions; a system call for each first use of 32 MiB. Lock: [`Right`], to
//! claim slices for system calls.
//!
//! ```text
//!   | slack | units of 2 MiB, reserved ...                  | this struct, units, states |
//!           base           ^ opened (may be touched)         1 byte a slice, 16 a unit
//! ```
//!
//! # Safety
//! The table is zeroed memory of the reservation, behind the slices, and lives as long as the
//! process. Zeros are valid values in it.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::ptr;
use std::slice;

use glebe::internal::sys::errno;
use glebe::internal::sys::processes::lean;

use super::counters::{add, Counters};
use super::ration::Ration;
use super::right::{Held, Right};
use super::state::{Slice, State, Turn};
use super::unit::Unit;
use crate::sync::{AtomicU32, AtomicU64, AtomicU8, Ordering};

pub use super::SLICE;

/// Bytes of a unit.
pub const UNIT: usize = 2 << 20;
/// Slices of a unit.
pub const UNIT_SLICES: usize = UNIT / SLICE;
/// Slices made accessible at a time.
const STEP: usize = (32 << 20) / SLICE;

/// A reservation of addresses and its table.
#[derive(Debug)]
pub struct Space {
    base: usize,
    states: &'static [State],
    units: &'static [Unit],
    opened: AtomicU64,
    turn: AtomicU8,
    right: Right,
    listed: AtomicU64,
    /// 1 while a forked child may share this memory. The fork's handler stores 1 before it gives up
    /// `right`.
    pub shared: AtomicU32,
    /// Decides which units get a huge page.
    pub ration: Ration,
    /// Totals of slices that changed state.
    pub counters: Counters,
}

/// Result of a take, in slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Slices taken.
    pub slices: usize,
    /// Slices that were not in use before.
    pub begun: usize,
    /// Slices without memory.
    pub cold: usize,
    /// True if more addresses became accessible.
    pub has_grown: bool,
}

impl Taken {
    /// Returns true if all taken slices read as zeros.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.cold == self.slices
    }
}

impl Space {
    /// Reserves units and their table for good.
    ///
    /// # Errors
    /// If mmap(2) or mprotect(2) fails.
    pub fn reserve(units: usize) -> io::Result<&'static Self> {
        let slices = units * UNIT_SLICES;
        let table = size_of::<Self>() + slices * size_of::<State>() + units * size_of::<Unit>();
        let whole = UNIT + units * UNIT + table;
        let at = lean::reserve(whole)?;
        let base = at.next_multiple_of(UNIT);
        let head = base + units * UNIT;
        // SAFETY: the range is within the new reservation.
        if let Err(refused) = unsafe { lean::make_writable(head, table) } {
            // SAFETY: nobody else uses the reservation.
            unsafe { lean::unreserve(at, whole) };
            return Err(refused);
        }
        // SAFETY: the table is ours for good. Units, aligned as words, follow the struct, then
        // states of one byte. Zeros are valid values of both.
        let space = unsafe {
            let own = ptr::with_exposed_provenance_mut::<Self>(head);
            let first = own.add(1).cast::<Unit>();
            let states = slice::from_raw_parts(first.add(units).cast::<State>(), slices);
            let units = slice::from_raw_parts(first, units);
            own.write(Self::new(base, states, units));
            &*own
        };
        Ok(space)
    }

    fn new(base: usize, states: &'static [State], units: &'static [Unit]) -> Self {
        Self {
            base,
            states,
            units,
            opened: AtomicU64::new(0),
            turn: AtomicU8::new(0),
            right: Right::default(),
            listed: AtomicU64::new(0),
            shared: AtomicU32::new(0),
            ration: Ration::default(),
            counters: Counters::default(),
        }
    }

    /// Returns all states.
    #[must_use]
    pub fn states(&self) -> &'static [State] {
        self.states
    }

    pub(super) fn units(&self) -> &'static [Unit] {
        self.units
    }

    /// Returns the right to claim.
    #[must_use]
    pub fn right(&self) -> &Right {
        &self.right
    }

    /// Returns the number of slices that may be touched. Later slices were never used.
    #[must_use]
    pub fn opened(&self) -> usize {
        self.opened.load(Ordering::Acquire) as usize
    }

    /// Returns the address and the length in bytes of slices.
    #[must_use]
    pub fn memory_of(&self, start: usize, len: usize) -> (usize, usize) {
        (self.base + start * SLICE, len * SLICE)
    }

    /// Returns the slices that bytes of the space touch.
    #[must_use]
    #[inline]
    pub fn slices_at(&self, addr: usize, bytes: usize) -> Range<usize> {
        let from = addr - self.base;
        from / SLICE..(from + bytes).div_ceil(SLICE)
    }

    /// Returns the keeper's turn.
    #[must_use]
    #[inline]
    pub fn turn(&self) -> Turn {
        Turn::of(self.turn.load(Ordering::Relaxed))
    }

    /// Begins the next turn. Only the keeper may call it.
    pub fn next_turn(&self) {
        let next = self.turn.load(Ordering::Relaxed).wrapping_add(1);
        self.turn.store(next, Ordering::Relaxed);
    }

    /// Takes free slices; `None` if they cannot be made accessible.
    #[inline]
    pub fn take(&self, slices: Range<usize>) -> Option<Taken> {
        let mut taken = Taken { slices: slices.len(), ..Taken::default() };
        if slices.end > self.opened() {
            self.open(slices.end).ok()?;
            taken.has_grown = true;
        }
        let mut thawed = 0;
        for (unit, slices) in by_unit(slices) {
            let (mut begun, mut gone) = (0, 0);
            for state in &self.states[slices] {
                let was = state.take().unwrap_or_else(|| self.wait_for(state));
                begun += u8::from(was != Slice::Live);
                gone += usize::from(was == Slice::Gone);
                thawed += usize::from(was == Slice::Volatile);
            }
            if self.units[unit].take(begun) && gone > 0 {
                self.begin_unit(unit, begun);
            }
            taken.cold += gone;
            taken.begun += usize::from(begun);
        }
        let Counters { taken: all, cold, thawed: of_volatile, .. } = &self.counters;
        add(all, taken.begun);
        if taken.cold > 0 {
            cold.fetch_add(taken.cold as u64, Ordering::AcqRel);
        }
        add(of_volatile, thawed);
        Some(taken)
    }

    #[cold]
    fn wait_for(&self, state: &State) -> Slice {
        let _kept = errno::keep();
        state.take_after_call(&self.right, || drop(self.hold()))
    }

    /// Frees the caller's slices. Returns true if a whole unit became free.
    #[inline]
    pub fn free(&self, slices: Range<usize>) -> bool {
        let (turn, mut freed, mut is_whole) = (self.turn(), 0, false);
        for (unit, slices) in by_unit(slices) {
            let ended = self.states[slices].iter().filter(|state| state.free(turn)).count() as u8;
            is_whole |= self.units[unit].free(ended);
            freed += usize::from(ended);
        }
        // AcqRel, so that the keeper thread cannot sleep through the addition: see `Bell`.
        self.counters.freed.fetch_add(freed as u64, Ordering::AcqRel);
        is_whole
    }

    /// Makes addresses accessible up to `end`, rounded up to a step. Two threads may do so at once.
    #[cold]
    fn open(&self, end: usize) -> io::Result<()> {
        let (from, to) = (self.opened(), end.next_multiple_of(STEP).min(self.states.len()));
        let (addr, bytes) = self.memory_of(from, to.saturating_sub(from));
        let _kept = errno::keep();
        if bytes > 0 {
            // SAFETY: within the reservation.
            unsafe { lean::make_writable(addr, bytes)? };
        }
        self.opened.fetch_max(to as u64, Ordering::AcqRel);
        Ok(())
    }

    /// Returns the number of slices marked and not dropped since, in any state. The kernel counts
    /// marked pages as page cache until reclaim finds them written.
    #[must_use]
    pub fn listed(&self) -> u64 {
        self.listed.load(Ordering::Relaxed)
    }

    /// Notes slices as marked or dropped. The caller holds the right.
    pub(super) fn list(&self, slices: Range<usize>, is_marked: bool) {
        for (unit, slices) in by_unit(slices) {
            let mask = slices.fold(0_u32, |mask, slice| mask | 1 << (slice % UNIT_SLICES));
            let listed = &self.units[unit].listed;
            let was = listed.load(Ordering::Relaxed);
            let now = if is_marked { was | mask } else { was & !mask };
            listed.store(now, Ordering::Relaxed);
            let (was, now) = (u64::from(was.count_ones()), u64::from(now.count_ones()));
            self.listed.fetch_add(now.wrapping_sub(was), Ordering::Relaxed);
        }
    }

    /// Takes the right to claim. In a forked child, slices that a thread of the parent had claimed
    /// become hot (free, contents kept), because the child runs no system call on the slices.
    pub fn hold(&self) -> Held<'_> {
        let held = self.right.take();
        self.repair(&held);
        held
    }

    /// Takes the right unless a thread of this process holds it.
    pub fn try_hold(&self) -> Option<Held<'_>> {
        let held = self.right.try_take()?;
        self.repair(&held);
        Some(held)
    }

    fn repair(&self, held: &Held<'_>) {
        if held.is_inherited {
            let left = self.states[..self.opened()].iter().filter(|it| it.get() == Slice::Marking);
            left.for_each(|state| state.settle(Slice::Hot(self.turn())));
        }
    }
}

#[inline]
pub(super) fn by_unit(slices: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut start = slices.start;
    std::iter::from_fn(move || {
        let unit = start / UNIT_SLICES;
        let end = slices.end.min((unit + 1) * UNIT_SLICES);
        let cut = (start < end).then_some((unit, start..end));
        start = end;
        cut
    })
}
