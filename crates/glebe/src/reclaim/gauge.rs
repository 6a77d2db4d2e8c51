//! [`Gauge`] computes how much memory an allocator should give back.
//!
//! A look allocates and frees nothing, even if it fails: files stay open, and text is read onto the
//! stack. Only time makes a look due; the kernel's notices do not.

use std::path::Path;
use std::time::{Duration, Instant};

use super::clock::{Due, PAUSE_BLIND};
use super::plan::{plan_for, PartStats};
use super::policy::Policy;
use super::pressure::Pressure;
use super::sensor::{Lazy, Sensor};
use super::{Class, ReclaimError};
use crate::volatile::Priority;
use glebe_os::units::Bytes;

/// `Free` counts an allocator's marked, unused and rewritten memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// Bytes marked and not yet freed by the kernel.
    pub marked: Bytes,
    /// Bytes resident and not marked.
    pub unmarked: Bytes,
    /// Bytes written after a mark, free or in use. The kernel counts them as page cache until a
    /// scan.
    pub rewritten: Bytes,
}

/// The result of a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The pressure; `None` if no limit could be read.
    pub pressure: Option<Pressure>,
    /// Bytes of room to keep.
    pub margin: Bytes,
    /// Bytes to give back, marked or not.
    pub short: Bytes,
    /// Marked bytes to give back so that the kernel need not drop file pages in use.
    /// [`short`](Reading::short) may include the same bytes.
    pub crowded: Bytes,
    /// Time until the next look.
    pub pause: Duration,
    /// True if [`Gauge::find`] and another look are due.
    pub is_stale: bool,
}

/// A `Gauge` says how much free memory to give back.
///
/// ```
/// use glebe::internal::{Free, Gauge};
/// use glebe::reclaim::Policy;
/// use glebe::units::Bytes;
///
/// let mut gauge = Gauge::new(Policy::default())?;
/// let free = Free { marked: Bytes::mib(20), unmarked: Bytes::mib(4), ..Free::default() };
/// let mut reading = gauge.look(free); // allocates nothing
/// if reading.is_stale && gauge.find().is_ok() {
///     reading = gauge.look(free);
/// }
/// assert!(reading.short <= Bytes::mib(24) && reading.crowded <= free.marked);
/// # Ok::<(), glebe::reclaim::ReclaimError>(())
/// ```
#[derive(Debug)]
pub struct Gauge {
    policy: Policy,
    sensor: Sensor,
    short_at: Option<Instant>,
}

impl Gauge {
    /// Creates a gauge of the groups above this process and of the machine.
    ///
    /// # Errors
    /// [`ReclaimError::Blind`].
    pub fn new(policy: Policy) -> Result<Self, ReclaimError> {
        Self::below(Path::new("/"), policy)
    }

    pub(crate) fn below(root: &Path, policy: Policy) -> Result<Self, ReclaimError> {
        let mut sensor = Sensor::unopened(root, &[]);
        let _ = sensor.find();
        sensor.look(Lazy::default())?;
        Ok(Self { policy, sensor, short_at: None })
    }

    /// Returns the bytes to give back. Allocates and frees nothing; may change `errno`.
    #[must_use]
    pub fn look(&mut self, free: Free) -> Reading {
        self.look_at(free, Instant::now())
    }

    fn look_at(&mut self, free: Free, now: Instant) -> Reading {
        let is_old = self.sensor.is_old(now);
        let most = Bytes::new(free.marked.get().saturating_add(free.rewritten.get()));
        let Ok(look) = self.sensor.glance(Lazy { marked: free.marked, most }, now) else {
            return Reading { pause: PAUSE_BLIND, is_stale: true, ..Reading::default() };
        };
        let Self { policy, short_at, .. } = self;
        let pressure = look.pressure;
        let (short, crowded) = (policy.short(&pressure), policy.crowded(&pressure));
        if short > Bytes::ZERO {
            *short_at = Some(now);
        }
        let due = Due {
            policy,
            pressure: &pressure,
            marked: free.marked,
            since_short: short_at.map(|at| now.saturating_duration_since(at)),
            tells_above: false,
            was_told: false,
        };
        let part = [part(free)];
        let given = |short, crowded| plan_for(&part, pressure.scope, short, crowded).total();
        Reading {
            pressure: Some(pressure),
            margin: policy.margin_at(&pressure),
            short: given(short, Bytes::ZERO),
            crowded: given(Bytes::ZERO, crowded),
            pause: due.pause(),
            is_stale: is_old || !look.sees_groups,
        }
    }

    /// Reports bytes `taken` from the system and unmarked bytes `given` back since the last look.
    /// The measured rise of usage omits these bytes.
    pub fn exchanged(&mut self, taken: Bytes, given: Bytes) {
        self.sensor.took(taken);
        self.sensor.gave_up(given);
    }

    /// Searches for the groups, and opens closed files. Allocates, so call it without the
    /// allocator's lock.
    ///
    /// # Errors
    /// [`ReclaimError::Os`]; the known groups stay.
    pub fn find(&mut self) -> Result<(), ReclaimError> {
        self.sensor.find()
    }

    /// Closes all files. Looks fail until [`Gauge::find`].
    pub fn close(&mut self) {
        self.sensor.close();
    }

    /// Returns the directory of the group with the least room, or "the machine".
    ///
    /// # Errors
    /// The reason, as text.
    pub fn limit(&self) -> Result<String, String> {
        self.sensor.limit()
    }
}

fn part(free: Free) -> PartStats {
    let mut part = PartStats { is_charged: true, is_lazy: true, ..PartStats::default() };
    part.sheddable[Class::Volatile(Priority::NORMAL).place()] = free.marked;
    part.sheddable[Class::Waste.place()] = free.unmarked;
    part
}

#[cfg(test)]
mod tests;
