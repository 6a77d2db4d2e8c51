//! [`Space`]: one reservation of addresses, the table of its slices, and how both change hands.
//!
//! Invariants: addresses up to `opened` may be touched; a unit's word is how many of its slices are
//! in use, once those who change them are done. Lengths are in slices where no name says bytes.
//! Cost: a take or a free is one exchange or store a slice and two additions; no system call, but
//! one each 32 MiB that were never in use before. Lock: [`Right`], for who makes calls on memory.
//!
//! ```text
//!   | slack | units of 2 MiB, reserved ...                  | this struct, units, states |
//!           base           ^ opened (may be touched)         1 byte a slice, 16 a unit
//! ```
//!
//! # Safety
//! The table lies in zeroed memory of the reservation, behind the slices, which lives as long as
//! the process; zeros are a value of everything in it.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::ptr;
use std::slice;

use glebe::sys::{errno, lean};

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
/// Slices that become accessible at once.
const STEP: usize = (32 << 20) / SLICE;

/// See the module.
#[derive(Debug)]
pub struct Space {
    base: usize,
    states: &'static [State],
    units: &'static [Unit],
    opened: AtomicU64,
    turn: AtomicU8,
    right: Right,
    listed: AtomicU64,
    /// 1: there was a fork, and nobody saw that its child is gone. Set before the fork gives up the
    /// right.
    pub shared: AtomicU32,
    /// Which units have a huge page.
    pub ration: Ration,
    /// What went which way.
    pub counters: Counters,
}

/// What a take found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Slices.
    pub slices: usize,
    /// Those that were free, as far as this layer was told: all, but those which mimalloc freed
    /// before its own start.
    pub begun: usize,
    /// Those without memory.
    pub cold: usize,
    /// Whether there are more accessible addresses than before.
    pub has_grown: bool,
}

impl Taken {
    /// Whether all of it reads as zeros.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.cold == self.slices
    }
}

impl Space {
    /// Reserves whole units, and the table behind them. It is never given back.
    ///
    /// # Errors
    /// What mmap(2) or mprotect(2) refuses.
    pub fn reserve(units: usize) -> io::Result<&'static Self> {
        let slices = units * UNIT_SLICES;
        let table = size_of::<Self>() + slices * size_of::<State>() + units * size_of::<Unit>();
        let whole = UNIT + units * UNIT + table;
        let at = lean::reserve(whole)?;
        let base = at.next_multiple_of(UNIT);
        let head = base + units * UNIT;
        // SAFETY: within what was reserved just now.
        if let Err(refused) = unsafe { lean::make_writable(head, table) } {
            // SAFETY: nobody knows of it.
            unsafe { lean::unreserve(at, whole) };
            return Err(refused);
        }
        // SAFETY: the table is ours for good; behind the struct come the units, words as it has
        // some, and then the states, bytes. Both are zeros, which are values of theirs.
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

    /// Every slice.
    #[must_use]
    pub fn states(&self) -> &'static [State] {
        self.states
    }

    pub(super) fn units(&self) -> &'static [Unit] {
        self.units
    }

    /// Who may claim slices.
    #[must_use]
    pub fn right(&self) -> &Right {
        &self.right
    }

    /// Slices that may be touched; those behind never were in use.
    #[must_use]
    pub fn opened(&self) -> usize {
        self.opened.load(Ordering::Acquire) as usize
    }

    /// The address and bytes of slices.
    #[must_use]
    pub fn memory_of(&self, start: usize, len: usize) -> (usize, usize) {
        (self.base + start * SLICE, len * SLICE)
    }

    /// The slices that a range of bytes touches; the range lies in the space.
    #[must_use]
    #[inline]
    pub fn slices_at(&self, addr: usize, bytes: usize) -> Range<usize> {
        let from = addr - self.base;
        from / SLICE..(from + bytes).div_ceil(SLICE)
    }

    /// The keeper's turn.
    #[must_use]
    #[inline]
    pub fn turn(&self) -> Turn {
        Turn::of(self.turn.load(Ordering::Relaxed))
    }

    /// Begins the next turn; by the keeper alone.
    pub fn next_turn(&self) {
        let next = self.turn.load(Ordering::Relaxed).wrapping_add(1);
        self.turn.store(next, Ordering::Relaxed);
    }

    /// Gives free slices to a new owner. None where their addresses cannot be made accessible.
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

    /// Makes slices free that are the caller's; whether units became free as a whole.
    #[inline]
    pub fn free(&self, slices: Range<usize>) -> bool {
        let (turn, mut freed, mut is_whole) = (self.turn(), 0, false);
        for (unit, slices) in by_unit(slices) {
            let ended = self.states[slices].iter().filter(|state| state.free(turn)).count() as u8;
            is_whole |= self.units[unit].free(ended);
            freed += usize::from(ended);
        }
        // In one order with the keeper's going to sleep, as a growth is: see the keeper.
        self.counters.freed.fetch_add(freed as u64, Ordering::AcqRel);
        is_whole
    }

    /// Makes addresses accessible up to a slice and to the end of a step. Two threads that do so at
    /// once do no harm.
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

    /// Slices that were marked and not dropped since, whatever they are now: to the kernel their
    /// pages are page cache, until it finds that they were written.
    #[must_use]
    pub fn listed(&self) -> u64 {
        self.listed.load(Ordering::Relaxed)
    }

    /// Notes that slices were marked, or dropped; by the holder of the right.
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

    /// Takes the right to claim slices. Those that a thread had claimed which did not come along
    /// into this process are hot again: no call on them is under way here.
    pub fn hold(&self) -> Held<'_> {
        let held = self.right.take();
        self.repair(&held);
        held
    }

    /// As [`Space::hold`], if no thread of this process has it.
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

/// Cuts slices into those of each unit.
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
