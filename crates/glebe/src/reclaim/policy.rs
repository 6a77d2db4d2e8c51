//! [`Policy`]: how far from the limit shedding begins, and what it is for. Plain numbers.

use std::time::Duration;

use super::pressure::{Pressure, Scope};
use crate::units::Bytes;

/// The margin is this part of the limit, as a shift, and within these bounds.
const MARGIN_SHIFT: u32 = 4;
const MARGIN_MIN: Bytes = Bytes::mib(4);
const MARGIN_MAX: Bytes = Bytes::mib(256);
/// Of the limit the margin is never more than this part at rest, and than that however fast usage
/// rises.
const STILL_SHIFT_MAX: u32 = 2;
const RISING_SHIFT_MAX: u32 = 1;
/// A rise is looked ahead for so long.
const LEAD: Duration = Duration::from_millis(100);
const WITHHOLD: Duration = Duration::from_secs(1);
/// Shedding ends so much beyond the margin, a part of it as a shift: the next poll finds it calm.
const BEYOND_SHIFT: u32 = 2;

/// When to shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    margin: Option<Bytes>,
    lead: Duration,
    keeps_files: bool,
    withhold: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self { margin: None, lead: LEAD, keeps_files: true, withhold: WITHHOLD }
    }
}

impl Policy {
    /// Sheds while less than `margin` can be had; by itself a sixteenth of the limit, of 4 to
    /// 256 MiB.
    #[must_use]
    pub fn margin(self, margin: Bytes) -> Self {
        Self { margin: Some(margin), ..self }
    }

    /// Adds to the margin what usage rises by in so much time, at the speed measured.
    #[must_use]
    pub fn lead(self, lead: Duration) -> Self {
        Self { lead, ..self }
    }

    /// Whether marked memory, in a group with a limit, stays so little that the kernel drops no
    /// file page for it. Yes by itself. No leaves it to the kernel, which takes marked memory and
    /// files by turns.
    #[must_use]
    pub fn keep_files(self, keeps: bool) -> Self {
        Self { keeps_files: keeps, ..self }
    }

    /// How long [`Refills`](crate::volatile::Refills) are withheld after memory was short.
    #[must_use]
    pub fn withhold(self, time: Duration) -> Self {
        Self { withhold: time, ..self }
    }

    pub(super) fn withhold_time(&self) -> Duration {
        self.withhold
    }

    /// What is to be had at rest.
    #[must_use]
    pub fn still_margin(&self, limit: Bytes) -> Bytes {
        let part = Bytes::new(limit.get() >> MARGIN_SHIFT).clamp(MARGIN_MIN, MARGIN_MAX);
        self.margin.unwrap_or(part).min(Bytes::new(limit.get() >> STILL_SHIFT_MAX))
    }

    /// What is to be had now: with what comes within the lead.
    #[must_use]
    pub fn margin_at(&self, pressure: &Pressure) -> Bytes {
        let rise = u128::from(pressure.rise_a_second.get()) * self.lead.as_millis() / 1000;
        let ahead = Bytes::new(u64::try_from(rise).unwrap_or(u64::MAX));
        let most = Bytes::new(pressure.limit.get() >> RISING_SHIFT_MAX);
        let still = self.still_margin(pressure.limit);
        Bytes::new(still.get().saturating_add(ahead.get())).min(most)
    }

    /// How much everything is short: enough that the next look finds it calm.
    #[must_use]
    pub fn short(&self, pressure: &Pressure) -> Bytes {
        missing(pressure.room(), self.margin_at(pressure))
    }

    /// How much marked memory is too much for the files beside it.
    #[must_use]
    pub fn crowded(&self, pressure: &Pressure) -> Bytes {
        if !self.limits_marked(pressure) {
            return Bytes::ZERO;
        }
        missing(pressure.free(), self.still_margin(pressure.limit))
    }

    /// Whether marked memory is kept within what is free.
    pub(super) fn limits_marked(&self, pressure: &Pressure) -> bool {
        self.keeps_files && pressure.scope == Scope::Group
    }
}

/// What `had` lacks, where that is less than the margin.
fn missing(had: Bytes, margin: Bytes) -> Bytes {
    if had >= margin {
        return Bytes::ZERO;
    }
    Bytes::new(margin.get().saturating_add(margin.get() >> BEYOND_SHIFT)).saturating_sub(had)
}
