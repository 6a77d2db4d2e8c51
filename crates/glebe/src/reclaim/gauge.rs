//! [`Gauge`] tells an allocator how much memory to give back, without allocating.
//!
//! It decides by the [`Policy`], [`plan`] and clock of a [`Reclaimer`](super::Reclaimer), for the
//! memory that the program freed. A look allocates and frees nothing, even if it fails: files stay
//! open, and text is read onto the stack. [`Gauge::find`] allocates, so call it without a lock.
//!
//! Only the clock says when to look: a thread cannot wait at once for descriptors and for a word
//! that other threads change. One thread owns a gauge. A look costs three or four reads a group and
//! one of /proc/meminfo, some tens of µs.

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

/// Memory that an allocator has and nobody uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// Bytes marked, which the kernel counts as page cache and frees itself. Leave out bytes that
    /// it has freed: they would hide real files.
    pub marked: Bytes,
    /// Bytes resident and not marked.
    pub unmarked: Bytes,
    /// Bytes marked, then written before the kernel freed them, in use or not. The kernel counts
    /// them as page cache until its reclaim scans them.
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
    /// Marked bytes to give back for the files beside them. Those given for
    /// [`short`](Reading::short) count.
    pub crowded: Bytes,
    /// Time until the next look.
    pub pause: Duration,
    /// True if [`Gauge::find`] and another look are due: the groups were found some seconds ago, or
    /// one cannot be read.
    pub is_stale: bool,
}

/// Says how much of an allocator's free memory to give back.
///
/// ```
/// use glebe::reclaim::{Free, Gauge, Policy};
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
    /// Creates a gauge of the groups above this process and of the machine. Until the list of
    /// groups can be read, only the machine counts. Allocates.
    ///
    /// # Errors
    /// [`ReclaimError::Blind`].
    pub fn new(policy: Policy) -> Result<Self, ReclaimError> {
        Self::below(Path::new("/"), policy)
    }

    /// Creates a gauge of the files below `root`. For tests.
    #[doc(hidden)]
    pub fn below(root: &Path, policy: Policy) -> Result<Self, ReclaimError> {
        let mut sensor = Sensor::unopened(root, &[]);
        let _ = sensor.find();
        sensor.look(Lazy::default())?;
        Ok(Self { policy, sensor, short_at: None })
    }

    /// Returns how much free memory to give back. Allocates and frees nothing; may change `errno`.
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

    /// Reports bytes `taken` from the system since the last look, and unmarked bytes `given` back.
    /// The measured rise leaves both out: they say nothing of other programs' needs.
    pub fn exchanged(&mut self, taken: Bytes, given: Bytes) {
        self.sensor.took(taken);
        self.sensor.gave_up(given);
    }

    /// Searches for the groups above this process, and opens closed files. Allocates.
    ///
    /// # Errors
    /// [`ReclaimError::Os`] if the list of groups or a group's file cannot be read; the known
    /// groups stay.
    pub fn find(&mut self) -> Result<(), ReclaimError> {
        self.sensor.find()
    }

    /// Closes all files, for a thread that shares its descriptors with the program. Looks fail
    /// until [`Gauge::find`]; measurements stay.
    pub fn close(&mut self) {
        self.sensor.close();
    }

    /// Returns the group with the least room, or "the machine". Allocates.
    ///
    /// # Errors
    /// Says why the groups cannot be read; the machine then decides.
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
