//! [`Sensor`] reads limits and usage.
//!
//! The kernel counts marked memory as inactive page cache, even after a write, until reclaim finds
//! the memory written. So the sensor subtracts these bytes from page cache ([`Lazy`]). Inactive
//! files are *idle* while refaults are rare ([`Refaults`]).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::pressure::{Pressure, Scope};
use super::ReclaimError;
use glebe_os::error::OsError;
use glebe_os::internal::sys::files::unread::Unread;
use glebe_os::internal::sys::machine::cgroup::usage::{Charged, Group, Usage};
use glebe_os::internal::sys::machine::meminfo::{Machine, MemInfo};
use glebe_os::units::Bytes;

const FOUND_FOR: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Sensor {
    root: PathBuf,
    /// Groups to read; if empty, the groups above this process.
    given: Vec<PathBuf>,
    groups: Charged,
    found: Instant,
    machine: MemInfo,
    scope: Scope,
    rise: Rise,
    refaults: Refaults,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lazy {
    pub(super) marked: Bytes,
    /// Bytes that are or may have been marked.
    pub(super) most: Bytes,
}

impl Lazy {
    /// Estimates this process's bytes miscounted as page cache. `no_files` is the miscount of all
    /// processes.
    fn of(self, no_files: Option<Bytes>) -> Bytes {
        no_files.map_or(self.most, |all| all.max(self.marked).min(self.most))
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    pub(super) pressure: Pressure,
    pub(super) measure: Bytes,
    /// Used bytes that are neither page cache nor marked.
    grown: Bytes,
    pub(super) sees_groups: bool,
}

#[derive(Debug)]
pub(super) struct Blind<'a> {
    groups: Option<Unread<'a>>,
    machine: Unread<'a>,
}

impl From<Blind<'_>> for ReclaimError {
    fn from(blind: Blind<'_>) -> Self {
        ReclaimError::Blind {
            groups: blind.groups.map(OsError::from),
            machine: blind.machine.into(),
        }
    }
}

impl Sensor {
    pub(super) fn new(root: &Path, given: &[PathBuf]) -> Result<Self, ReclaimError> {
        let mut sensor = Self::unopened(root, given);
        sensor.find()?;
        Ok(sensor)
    }

    pub(super) fn unopened(root: &Path, given: &[PathBuf]) -> Self {
        Self {
            root: root.to_owned(),
            given: given.to_owned(),
            groups: Charged::default(),
            found: Instant::now(),
            machine: MemInfo::new(root),
            scope: Scope::default(),
            rise: Rise::default(),
            refaults: Refaults::default(),
        }
    }

    /// Finds the groups, or keeps the known ones after an error or without `/proc`. Allocates.
    pub(super) fn find(&mut self) -> Result<(), ReclaimError> {
        self.found = Instant::now();
        self.machine.open();
        let found = match &*self.given {
            [] => Charged::open(&self.root)?,
            given => Some(Charged::of(given)?),
        };
        if let Some(groups) = found {
            self.groups = groups;
        }
        Ok(())
    }

    pub(super) fn is_old(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.found) > FOUND_FOR
    }

    pub(super) fn close(&mut self) {
        self.groups = Charged::default();
        self.machine.close();
    }

    pub(super) fn look(&mut self, lazy: Lazy) -> Result<Look, ReclaimError> {
        let now = Instant::now();
        if self.is_old(now) || self.groups.tightest().is_err() {
            // The look below reports a failure.
            let _ = self.find();
        }
        self.machine.open();
        Ok(self.glance(lazy, now)?)
    }

    /// Reads open files only. Never allocates.
    pub(super) fn glance(&mut self, lazy: Lazy, now: Instant) -> Result<Look, Blind<'_>> {
        let Self { groups, machine, scope, rise, refaults, .. } = self;
        let groups = groups.tightest();
        let machine = match (&groups, machine.look()) {
            (Ok(Some(_)), Err(_)) => None,
            (_, Ok(machine)) => Some(machine),
            (_, Err(hidden)) => match machine.rough() {
                Some(rough) => Some(rough),
                None => return Err(Blind { groups: groups.err(), machine: hidden }),
            },
        };
        let sees_groups = groups.is_ok();
        let group = groups.ok().flatten().map(|(_, usage)| usage);
        let of_group = group.map(|usage| look_at_group(usage, lazy, now, refaults));
        let of_machine = machine.map(|machine| look_at_machine(machine, lazy));
        let mut look = tighter(of_group, of_machine).unwrap_or_default();
        look.sees_groups = sees_groups;
        *scope = look.pressure.scope;
        let Pressure { scope, limit, .. } = look.pressure;
        look.pressure.rise_a_second = rise.at(scope, look.grown, limit, now);
        Ok(look)
    }

    pub(super) fn took(&mut self, taken: Bytes) {
        self.rise.own = Bytes::new(self.rise.own.get().saturating_add(taken.get()));
    }

    /// Lowers the base from which growth is measured, so that the freed bytes hide no growth.
    pub(super) fn gave_up(&mut self, freed: Bytes) {
        self.rise.base = self.rise.base.saturating_sub(freed);
    }

    pub(super) fn limit(&self) -> Result<String, String> {
        let told = match (self.scope, self.groups.tightest()) {
            (Scope::Group, Ok(Some((group, _)))) => group.dir().display().to_string(),
            (_, Ok(_)) => "the machine".to_owned(),
            (_, Err(why)) => return Err(OsError::from(why).to_string()),
        };
        Ok(told)
    }

    pub(super) fn group(&self) -> Option<&Group> {
        self.groups.tightest().ok()?.map(|(group, _)| group)
    }
}

fn tighter(group: Option<Look>, machine: Option<Look>) -> Option<Look> {
    match (group, machine) {
        (Some(one), Some(other)) if other.pressure.room() < one.pressure.room() => Some(other),
        (one, other) => one.or(other),
    }
}

fn look_at_group(usage: Usage, lazy: Lazy, now: Instant, refaults: &mut Refaults) -> Look {
    let Usage { limit, used, inactive_files, active_files, .. } = usage;
    let inactive = inactive_files.saturating_sub(lazy.of(usage.no_files));
    let files = inactive + Bytes::new(active_files.get() / 2);
    let idle_files = if refaults.are_rare(usage.refaults, now) { inactive } else { Bytes::ZERO };
    let files = files.min(used);
    let scope = Scope::Group;
    let pressure = Pressure { scope, limit, used, files, idle_files, rise_a_second: Bytes::ZERO };
    let grown = used.saturating_sub(inactive_files).saturating_sub(active_files);
    Look { pressure, measure: used, grown, sees_groups: true }
}

fn look_at_machine(machine: Machine, lazy: Lazy) -> Look {
    let Machine { total, free, available, no_files } = machine;
    let lazy = lazy.of(no_files);
    let room = available.saturating_sub(lazy);
    let pressure = Pressure {
        scope: Scope::Machine,
        limit: total,
        used: total.saturating_sub(room),
        ..Pressure::default()
    };
    let grown = pressure.used.saturating_sub(lazy);
    let measure = total.saturating_sub(free);
    Look { pressure, measure, grown, sees_groups: true }
}

/// `Rise` measures growth over at least 50 ms, or 5 ms for a large step, because the kernel charges
/// in batches.
#[derive(Debug, Default)]
struct Rise {
    scope: Scope,
    base: Bytes,
    /// Bytes reported as taken, whose first touch is no growth. Each measurement keeps a quarter of
    /// untouched bytes.
    own: Bytes,
    since: Option<Instant>,
    a_second: Bytes,
}

const WINDOW: Duration = Duration::from_millis(50);
const WINDOW_MIN: Duration = Duration::from_millis(5);
/// A large step exceeds `limit >> STEP_SHIFT`.
const STEP_SHIFT: u32 = 6;

impl Rise {
    fn at(&mut self, scope: Scope, used: Bytes, limit: Bytes, now: Instant) -> Bytes {
        let Some(since) = self.since.filter(|_| scope == self.scope) else {
            let (a_second, own) = (Bytes::ZERO, self.own);
            *self = Self { scope, base: used, own, since: Some(now), a_second };
            return Bytes::ZERO;
        };
        let time = now.saturating_duration_since(since);
        let all = used.saturating_sub(self.base);
        let grown = all.saturating_sub(self.own);
        let is_large = grown.get() > limit.get() >> STEP_SHIFT;
        if time >= WINDOW || is_large && time >= WINDOW_MIN {
            let speed = u128::from(grown.get()) * 1_000_000 / time.as_micros().max(1);
            let speed = u64::try_from(speed).unwrap_or(u64::MAX);
            self.a_second = Bytes::new(speed.max(self.a_second.get() / 2));
            (self.base, self.since) = (used, Some(now));
            self.own = Bytes::new(self.own.saturating_sub(all).get() / 4);
        }
        self.a_second
    }
}

/// `Refaults` calls refaults (reads of dropped pages) rare after a time `rest` without any. A
/// refault after that time doubles `rest`, up to [`REST_MAX`].
#[derive(Debug)]
struct Refaults {
    seen: Option<u64>,
    since: Option<Instant>,
    rest: Duration,
}

const REST_MIN: Duration = Duration::from_secs(10);
const REST_MAX: Duration = Duration::from_secs(320);

impl Default for Refaults {
    fn default() -> Self {
        Self { seen: None, since: None, rest: REST_MIN }
    }
}

impl Refaults {
    fn are_rare(&mut self, count: Option<u64>, now: Instant) -> bool {
        let since = self.since.filter(|_| count.is_some() && count == self.seen);
        if let Some(since) = since {
            return now.saturating_duration_since(since) >= self.rest;
        }
        let was_rare =
            self.since.is_some_and(|since| now.saturating_duration_since(since) >= self.rest);
        if was_rare {
            self.rest = (self.rest * 2).min(REST_MAX);
        }
        (self.seen, self.since) = (count, Some(now));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_is_measured_over_a_while_and_fades() {
        let (mut rise, start, limit) = (Rise::default(), Instant::now(), Bytes::gib(1));
        let mut at = |mib, ms| {
            let now = start + Duration::from_millis(ms);
            rise.at(Scope::Group, Bytes::mib(mib), limit, now).get() >> 20
        };
        assert_eq!(at(100, 0), 0);
        assert_eq!(at(101, 10), 0, "too small a step");
        assert_eq!(at(110, 100), 100);
        assert_eq!(at(110, 200), 50);
        assert_eq!(at(90, 300), 25);
        assert_eq!(at(90 + 17, 310), 1700, "a large step counts at once");
        let now = start + Duration::from_secs(1);
        assert_eq!(rise.at(Scope::Machine, Bytes::gib(9), limit, now), Bytes::ZERO);
    }

    #[test]
    fn what_was_taken_is_no_rise_when_it_is_touched_for_a_while() {
        let (start, limit) = (Instant::now(), Bytes::gib(1));
        let mut rise = Rise { own: Bytes::mib(40), ..Rise::default() };
        let mut at = |mib, ms| {
            let now = start + Duration::from_millis(ms);
            rise.at(Scope::Group, Bytes::mib(mib), limit, now).get() >> 20
        };
        assert_eq!((at(100, 0), at(120, 10), at(120, 60)), (0, 0, 0), "20 of 40 MiB");
        assert_eq!(at(135, 160), 100, "5 of the other 20 were left");
        assert_eq!(at(135, 260), 50);
    }

    #[test]
    fn refaults_are_rare_after_a_rest_and_each_wrong_guess_makes_it_longer() {
        let (mut refaults, start) = (Refaults::default(), Instant::now());
        let mut rare = |count, s| refaults.are_rare(count, start + Duration::from_secs(s));
        assert!(!rare(Some(5), 0) && !rare(Some(5), 9) && rare(Some(5), 10));
        assert!(!rare(Some(6), 11) && !rare(Some(6), 30) && rare(Some(6), 31));
        assert!(!rare(Some(7), 32) && !rare(Some(8), 33) && !rare(Some(8), 72));
        assert!(rare(Some(8), 73));
        assert!(!rare(None, 74) && !rare(None, 1000));
    }
}
