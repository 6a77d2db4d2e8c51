//! [`Ration`] is the number of units (32 slices of 64 KiB) that may still get a huge page.
//!
//! The first object in a huge page brings the whole page into memory. Threads with a few objects of
//! many sizes may touch only a quarter of their slices. The untouched rest of each huge page would
//! fill a small memory limit. So units get huge pages only while the limit leaves room for later
//! base pages. The keeper thread looks at the limit and sets the number, which is small at first. A
//! unit that one object fills always gets a huge page.
//!
//! `begin_unit` chooses. While units are counted, a unit has base pages before this choice, so an
//! early touch brings in no huge page. Source: madvise(2).
//!
//! # Safety
//! `madvise` for huge or base pages changes no contents.
#![allow(unsafe_code)]

use std::ops::Range;

use glebe::internal::sys::errno;
use glebe::internal::sys::memory::madvise::{try_advise, Advice};
use glebe::reclaim::Pressure;
use glebe::Bytes;

use super::space::{Space, UNIT, UNIT_SLICES};
use crate::sync::{AtomicU64, Ordering};

/// Units are not counted.
const ALL: u64 = u64::MAX;
/// Maximum units before the keeper's first look. A heap of this size starts the keeper.
const FIRST: u64 = (32 << 20) / UNIT as u64;
/// Room kept for base pages: `limit >> LEFT_SHIFT`, but at least `LEFT_MIN` and at most `LEFT_MAX`.
/// `LEFT_MIN` also has room for the huge pages of a race: threads that touch one unit at the same
/// time each fill a huge page, and the kernel frees all but one.
const LEFT_SHIFT: u32 = 1;
const LEFT_MIN: Bytes = Bytes::mib(256);
const LEFT_MAX: Bytes = Bytes::gib(1);

/// Units that may still get a huge page.
#[derive(Debug)]
pub struct Ration(AtomicU64);

impl Default for Ration {
    fn default() -> Self {
        Self(AtomicU64::new(ALL))
    }
}

impl Ration {
    /// Begins to count, with few units. A keeper thread must start, because only this thread adds
    /// units.
    pub(crate) fn begin(&self, limit: Option<Bytes>) {
        let units = limit.map_or(FIRST, |limit| units_in(limit, limit));
        self.0.store(units.min(FIRST), Ordering::Relaxed);
    }

    /// Sets the number from the keeper's reading. Without a reading, stops counting.
    pub(crate) fn set(&self, pressure: Option<Pressure>) {
        let units = pressure.map_or(ALL, |pressure| units_in(pressure.room(), pressure.limit));
        self.0.store(units, Ordering::Relaxed);
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.0.load(Ordering::Relaxed) != ALL
    }

    pub(crate) fn is_used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    fn take(&self) -> bool {
        let fewer = |units: u64| if units == ALL { Some(ALL) } else { units.checked_sub(1) };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok()
    }
}

fn units_in(room: Bytes, limit: Bytes) -> u64 {
    let left = Bytes::new(limit.get() >> LEFT_SHIFT).clamp(LEFT_MIN, LEFT_MAX);
    room.saturating_sub(left).get() / UNIT as u64
}

impl Space {
    pub(crate) fn have_base_pages(&self, slices: Range<usize>) {
        let units = &self.units()[slices.start / UNIT_SLICES..slices.end / UNIT_SLICES];
        units.iter().for_each(|unit| unit.set_base_pages(true));
    }

    /// Chooses huge or base pages for an unused unit. The caller then uses `slices` of its slices.
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
        // SAFETY: the range is the space's memory, and the advice changes no contents.
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
