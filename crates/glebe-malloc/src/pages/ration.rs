//! [`Ration`]: how many more units may come into use with a huge page each.
//!
//! The first object of a unit brings all of its huge page into memory. Threads with a few objects
//! each, of many sizes, touch a quarter of their slices: with huge pages they would fill a small
//! limit with zeros. So units have huge pages as long as there is room for what base pages may need
//! afterwards. The keeper says for how many at each look; until its first there are a few. A unit
//! that is used as a whole has its huge page in any case: its object is to be filled.
//!
//! The ration decides when an unused unit comes into use, until the unit is unused again. While
//! units are counted they begin with base pages, so a thread that touches one before the decision
//! brings in no huge page. Cost: a load, an exchange while units are counted, and a system call if
//! the unit changes.
//! Source: madvise(2).
//!
//! # Safety
//! The advice changes no contents.
#![allow(unsafe_code)]

use std::ops::Range;

use glebe::reclaim::Pressure;
use glebe::sys::errno;
use glebe::sys::madvise::{try_advise, Advice};
use glebe::Bytes;

use super::space::{Space, UNIT, UNIT_SLICES};
use crate::sync::{AtomicU64, Ordering};

/// Units are not counted.
const ALL: u64 = u64::MAX;
/// The most units before the keeper's first look; a heap of this size has a keeper.
const FIRST: u64 = (32 << 20) / UNIT as u64;
/// The room that is left to base pages: this part of the limit, as a shift, and within these
/// bounds. Threads that touch the same unit at once fill a huge page each, of which one stays: the
/// least is room for that.
const LEFT_SHIFT: u32 = 1;
const LEFT_MIN: Bytes = Bytes::mib(256);
const LEFT_MAX: Bytes = Bytes::gib(1);

/// See the module.
#[derive(Debug)]
pub struct Ration(AtomicU64);

impl Default for Ration {
    fn default() -> Self {
        Self(AtomicU64::new(ALL))
    }
}

impl Ration {
    /// Begins to count below a limit, where a keeper will look.
    pub(crate) fn begin(&self, limit: Option<Bytes>) {
        let units = limit.map_or(FIRST, |limit| units_in(limit, limit));
        self.0.store(units.min(FIRST), Ordering::Relaxed);
    }

    /// Sets how many units the keeper's look leaves room for; all if it sees no limit.
    pub(crate) fn set(&self, pressure: Option<Pressure>) {
        let units = pressure.map_or(ALL, |pressure| units_in(pressure.room(), pressure.limit));
        self.0.store(units, Ordering::Relaxed);
    }

    /// Returns true if units are counted.
    pub(crate) fn is_counted(&self) -> bool {
        self.0.load(Ordering::Relaxed) != ALL
    }

    /// Returns true if no unit is left.
    pub(crate) fn is_used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Takes a unit and returns true, if one is left.
    fn take(&self) -> bool {
        let fewer = |units: u64| if units == ALL { Some(ALL) } else { units.checked_sub(1) };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok()
    }
}

/// Returns how many units fit into the room below a limit.
fn units_in(room: Bytes, limit: Bytes) -> u64 {
    let left = Bytes::new(limit.get() >> LEFT_SHIFT).clamp(LEFT_MIN, LEFT_MAX);
    room.saturating_sub(left).get() / UNIT as u64
}

impl Space {
    /// Notes that whole units, by their slices, were told to have base pages.
    pub(crate) fn have_base_pages(&self, slices: Range<usize>) {
        let units = &self.units()[slices.start / UNIT_SLICES..slices.end / UNIT_SLICES];
        units.iter().for_each(|unit| unit.set_base_pages(true));
    }

    /// Chooses the pages of a unit before anyone touches it; `slices` of its slices come into use.
    #[cold]
    pub(super) fn begin_unit(&self, nth: usize, slices: u8) {
        let has_one = self.ration.take() || usize::from(slices) == UNIT_SLICES;
        let unit = &self.units()[nth];
        if unit.has_base_pages() != has_one {
            return;
        }
        let _kept = errno::keep();
        let (addr, bytes) = self.memory_of(nth * UNIT_SLICES, UNIT_SLICES);
        let advice = if has_one { Advice::HugePage } else { Advice::NoHugePage };
        // SAFETY: of the space; no contents change.
        if unsafe { try_advise(addr, Bytes::new(bytes as u64), advice) }.is_ok() {
            unit.set_base_pages(!has_one);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_as_the_keeper_sees_room_for_and_some_before() {
        let ration = Ration::default();
        let taken = |most: usize| (0..most).take_while(|_| ration.take()).count();
        assert_eq!(taken(1000), 1000, "nobody counts");
        for (limit, units) in [(None, 16), (Some(600), 16), (Some(266), 5), (Some(100), 0)] {
            ration.begin(limit.map(Bytes::mib));
            assert_eq!((taken(1000), ration.is_used_up()), (units, true), "{limit:?}");
        }
        let of = |limit, used| {
            let (limit, used) = (Bytes::mib(limit), Bytes::mib(used));
            Some(Pressure { limit, used, ..Pressure::default() })
        };
        for (pressure, units) in
            [(of(100, 1), 0), (of(600, 100), 100), (of(8192, 4096), 1536), (of(8192, 8000), 0)]
        {
            ration.set(pressure);
            assert_eq!(taken(10_000), units, "{pressure:?}");
        }
        ration.set(None);
        assert_eq!(taken(10_000), 10_000, "it sees nothing");
    }
}
