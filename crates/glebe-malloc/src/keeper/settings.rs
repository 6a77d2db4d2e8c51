//! [`set`] stores the keeper's settings once, before the heap and the keeper thread read them.

use std::time::Duration;

use glebe::internal::sys::processes::lean;
use glebe::reclaim::Policy;
use glebe::Bytes;

use crate::heap::Settings;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Default bytes to keep free below a memory limit: as much as two processors that fault in huge
/// pages use up in three turns (periods) of the keeper thread. [`Policy`] caps the margin at a
/// quarter of the limit, or at half while other processes' usage rises.
const MARGIN: Bytes = Bytes::mib(256);

static AGE_MICROS: AtomicU64 = AtomicU64::new(0);
static ROOM: AtomicU64 = AtomicU64::new(0);
static IS_CHOSEN: AtomicU32 = AtomicU32::new(0);
static WANTS_HUGE: AtomicU32 = AtomicU32::new(0);

pub(crate) fn set(settings: &Settings) {
    let age = u64::try_from(settings.age.as_micros()).unwrap_or(u64::MAX);
    AGE_MICROS.store(age, Ordering::Relaxed);
    ROOM.store(settings.margin.unwrap_or(MARGIN).get(), Ordering::Relaxed);
    IS_CHOSEN.store(settings.margin.is_some().into(), Ordering::Relaxed);
    let wants_huge = settings.huge && !lean::huge_pages_forbidden();
    WANTS_HUGE.store(wants_huge.into(), Ordering::Relaxed);
}

pub(crate) fn wants_huge() -> bool {
    WANTS_HUGE.load(Ordering::Relaxed) != 0
}

pub(super) fn age() -> Duration {
    Duration::from_micros(AGE_MICROS.load(Ordering::Relaxed))
}

/// Returns the room to keep while no other process takes memory; `None` if the user chose a margin.
pub(super) fn quiet_margin(limit: Bytes) -> Option<Bytes> {
    let is_chosen = IS_CHOSEN.load(Ordering::Relaxed) != 0;
    (!is_chosen).then(|| Policy::default().still_margin(limit))
}

pub(super) fn policy() -> Policy {
    Policy::default().margin(Bytes::new(ROOM.load(Ordering::Relaxed)))
}
