//! [`Gauge`]: how much an allocator is to give back, for one that cannot allocate to find out.
//!
//! It sees what a [`Reclaimer`](super::Reclaimer) sees and decides by the same [`Policy`],
//! [`plan`] and clock, for one part: memory that the program freed. The allocator sheds it itself.
//! A look allocates nothing and frees nothing, whatever it finds: files are held open and read
//! into the stack, and what is wrong is a plain value. To look for groups anew does allocate:
//! that is [`Gauge::find`], called while no lock is held.
//!
//! The clock alone says when to look: a descriptor that the kernel writes to cannot be waited for
//! together with a word that other threads change. No lock: one thread has it. Cost of a look:
//! three or four reads a group and one of the machine's list, some tens of µs.

use std::path::Path;
use std::time::{Duration, Instant};

use super::clock::{Due, PAUSE_BLIND};
use super::plan::{plan_for, PartStats};
use super::policy::Policy;
use super::pressure::Pressure;
use super::sensor::{Lazy, Sensor};
use super::{Class, Error};
use crate::units::Bytes;
use crate::volatile::Priority;

/// Memory that an allocator has and nobody uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    /// What is marked volatile, and so page cache to the kernel, which takes it by itself. What
    /// it took meanwhile is not to be counted: it would pass for files.
    pub marked: Bytes,
    /// What is in memory and not marked.
    pub unmarked: Bytes,
    /// What was marked, was written since, and did not go meanwhile, in use or not: to the kernel
    /// it stays page cache until reclaim comes past it.
    pub rewritten: Bytes,
}

/// What a look found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// How short memory is; none where no limit could be read.
    pub pressure: Option<Pressure>,
    /// How much room there is to be.
    pub margin: Bytes,
    /// So much is to go, marked or not.
    pub short: Bytes,
    /// So much of what is marked is to go, for the files beside it. What marked memory gives up
    /// for [`short`](Reading::short) counts.
    pub crowded: Bytes,
    /// When the next look is due.
    pub pause: Duration,
    /// Whether [`Gauge::find`] is due: the groups were found some seconds ago, or one cannot be
    /// read, as when it was removed. Look again after it.
    pub is_stale: bool,
}

/// Says how much of an allocator's free memory is to go back to the system, and when to ask again.
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
/// # Ok::<(), glebe::reclaim::Error>(())
/// ```
#[derive(Debug)]
pub struct Gauge {
    policy: Policy,
    sensor: Sensor,
    short_at: Option<Instant>,
}

impl Gauge {
    /// A gauge of the groups above this process, and of the machine. Of the machine alone where the
    /// list of groups cannot be read, until it can be. Allocates.
    ///
    /// # Errors
    /// [`Error::Blind`].
    pub fn new(policy: Policy) -> Result<Self, Error> {
        Self::below(Path::new("/"), policy)
    }

    /// As on a machine whose files lie below `root`. For tests.
    #[doc(hidden)]
    pub fn below(root: &Path, policy: Policy) -> Result<Self, Error> {
        let mut sensor = Sensor::unopened(root, &[]);
        let _ = sensor.find();
        // Says so now if it is blind.
        sensor.look(Lazy::default())?;
        Ok(Self { policy, sensor, short_at: None })
    }

    /// How much of what is free is to go. Allocates nothing and frees nothing; may change `errno`.
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

    /// Since the last look the allocator took so much memory from the system, and gave so much back
    /// that was not marked. Neither is what others' usage rises by: for its own needs a program
    /// has what it freed.
    pub fn exchanged(&mut self, taken: Bytes, given: Bytes) {
        self.sensor.took(taken);
        self.sensor.gave_up(given);
    }

    /// Looks for the groups above this process, and opens what is not open. Allocates.
    ///
    /// # Errors
    /// [`Error::Os`]: the list of groups, or a group's file, cannot be read. The groups that were
    /// found before stay.
    pub fn find(&mut self) -> Result<(), Error> {
        self.sensor.find()
    }

    /// Closes every file, for a thread that shares its descriptors with the program. Looks are
    /// blind until [`Gauge::find`]; what is known of the past stays known.
    pub fn close(&mut self) {
        self.sensor.close();
    }

    /// The group with the least room, or the machine; what is wrong with the groups, where the
    /// machine decides for that. Allocates.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn limit(&self) -> Result<String, String> {
        self.sensor.limit()
    }
}

/// What is free as one part: the kernel takes what is marked; the rest is plain memory.
fn part(free: Free) -> PartStats {
    let mut part = PartStats { is_charged: true, is_lazy: true, ..PartStats::default() };
    part.sheddable[Class::Volatile(Priority::NORMAL).place()] = free.marked;
    part.sheddable[Class::Waste.place()] = free.unmarked;
    part
}

#[cfg(test)]
mod tests;
