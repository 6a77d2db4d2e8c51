//! [`Policy`] sets the margin.

use std::time::Duration;

use super::pressure::{Pressure, Scope};
use glebe_os::units::Bytes;

const MARGIN_SHIFT: u32 = 4;
const MARGIN_MIN: Bytes = Bytes::mib(4);
const MARGIN_MAX: Bytes = Bytes::mib(256);
/// The margin is at most `limit >> STILL_SHIFT_MAX`, or in a rise `limit >> RISING_SHIFT_MAX`.
const STILL_SHIFT_MAX: u32 = 2;
const RISING_SHIFT_MAX: u32 = 1;
const LEAD: Duration = Duration::from_millis(100);
const LATE_FACTOR: u32 = 4;
/// Upper limit of a check's counted delay. After a longer delay, the machine probably slept.
const LATE_MAX: Duration = Duration::from_secs(1);
const WITHHOLD: Duration = Duration::from_secs(1);
/// Shedding aims at `margin + (margin >> BEYOND_SHIFT)`, so that the next look finds no shortage.
const BEYOND_SHIFT: u32 = 2;

/// A `Policy` says when to shed, and how much.
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
    /// Sets the bytes of room to keep while usage does not rise, at most a quarter of the limit.
    /// Default: a sixteenth of the limit, but 4 to 256 MiB.
    #[must_use]
    pub fn margin(self, margin: Bytes) -> Self {
        Self { margin: Some(margin), ..self }
    }

    /// Adds to the margin the rise expected within `lead`, by default 100 ms. A reclaimer that
    /// checks late raises a nonzero `lead` to four times its longest recent delay, up to 4 s.
    #[must_use]
    pub fn lead(self, lead: Duration) -> Self {
        Self { lead, ..self }
    }

    pub(super) fn late_by(self, delay: Duration) -> Self {
        let longer = self.lead.max(LATE_FACTOR * delay.min(LATE_MAX));
        self.lead(if self.lead.is_zero() { self.lead } else { longer })
    }

    /// Sets whether marked memory of a cgroup stays so small that the kernel need not drop cached
    /// files in use. Default: true.
    #[must_use]
    pub fn keep_files(self, keeps: bool) -> Self {
        Self { keeps_files: keeps, ..self }
    }

    /// Sets the least time that [`Refills`](crate::volatile::Refills) stay withheld after a
    /// shortage.
    #[must_use]
    pub fn withhold(self, time: Duration) -> Self {
        Self { withhold: time, ..self }
    }

    pub(super) fn withhold_time(&self) -> Duration {
        self.withhold
    }

    /// Returns the margin while usage does not rise.
    #[must_use]
    pub fn still_margin(&self, limit: Bytes) -> Bytes {
        let part = Bytes::new(limit.get() >> MARGIN_SHIFT).clamp(MARGIN_MIN, MARGIN_MAX);
        self.margin.unwrap_or(part).min(Bytes::new(limit.get() >> STILL_SHIFT_MAX))
    }

    /// Returns the bytes of room to keep now, with the expected rise.
    #[must_use]
    pub fn margin_at(&self, pressure: &Pressure) -> Bytes {
        let rise = u128::from(pressure.rise_a_second.get()) * self.lead.as_millis() / 1000;
        let ahead = Bytes::new(u64::try_from(rise).unwrap_or(u64::MAX));
        let most = Bytes::new(pressure.limit.get() >> RISING_SHIFT_MAX);
        let still = self.still_margin(pressure.limit);
        Bytes::new(still.get().saturating_add(ahead.get())).min(most)
    }

    /// Returns the bytes to shed, from any kind of memory.
    #[must_use]
    pub fn short(&self, pressure: &Pressure) -> Bytes {
        missing(pressure.room(), self.margin_at(pressure))
    }

    /// Returns the bytes of marked memory to shed, so that the kernel need not drop files in use.
    #[must_use]
    pub fn crowded(&self, pressure: &Pressure) -> Bytes {
        if !self.limits_marked(pressure) {
            return Bytes::ZERO;
        }
        missing(pressure.free(), self.still_margin(pressure.limit))
    }

    pub(super) fn limits_marked(&self, pressure: &Pressure) -> bool {
        self.keeps_files && pressure.scope == Scope::Group
    }
}

fn missing(had: Bytes, margin: Bytes) -> Bytes {
    if had >= margin {
        return Bytes::ZERO;
    }
    Bytes::new(margin.get().saturating_add(margin.get() >> BEYOND_SHIFT)).saturating_sub(had)
}
