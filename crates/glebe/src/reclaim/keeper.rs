//! [`Keeper`] holds the parts of a reclaimer, behind its lock.
//!
//! A look reads the pressure, plans and sheds, up to four times while parts free too little.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::apply::{apply, Reclaimed};
use super::class::Class;
use super::clock::{Due, Lateness, CALM_MARGINS};
use super::part::Handle;
use super::plan::{plan, plan_for, PartStats};
use super::policy::Policy;
use super::pressure::{Pressure, Scope};
use super::sensor::{Lazy, Look, Sensor};
use super::watch::{Bell, Watch, Watched};
use super::{Part, ReclaimError};
use crate::volatile::Refills;
use glebe_os::internal::sys::processes::claim::Holder;
use glebe_os::units::Bytes;

const ROUNDS: usize = 4;
const FUTILE_FOR: Duration = Duration::from_secs(60);
#[derive(Debug)]
pub(super) struct Keeper {
    given: Policy,
    policy: Policy,
    lateness: Lateness,
    holder: Holder,
    parts: Vec<Handle>,
    /// In the order of `parts`.
    stats: Vec<PartStats>,
    sensor: Sensor,
    watch: Watch,
    refills: Refills,
    is_withheld: bool,
    short_at: Option<Instant>,
    futile_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) pressure: Pressure,
    pub(super) margin: Bytes,
    pub(super) marked: Bytes,
    pub(super) reclaimed: Reclaimed,
    pub(super) withheld: bool,
    pub(super) was_told: bool,
    pub(super) pause: Duration,
}

impl Keeper {
    pub(super) fn new(
        policy: Policy,
        root: &Path,
        groups: &[PathBuf],
        bell: &Bell,
        refills: Refills,
    ) -> Result<Self, ReclaimError> {
        let mut sensor = Sensor::new(root, groups)?;
        sensor.look(Lazy::default())?;
        let watch = Watch::new(bell, root, sensor.group());
        Ok(Self {
            given: policy,
            policy,
            lateness: Lateness::default(),
            holder: Holder::new(),
            parts: Vec::new(),
            stats: Vec::new(),
            sensor,
            watch,
            refills,
            is_withheld: false,
            short_at: None,
            futile_at: None,
        })
    }

    pub(super) fn add(&mut self, part: Part) -> Result<(), ReclaimError> {
        self.parts.push(part.claimed(self.holder)?);
        // Allocates now, so that a look need not grow `stats`.
        self.stats.reserve(self.parts.len());
        Ok(())
    }

    pub(super) fn watched(&self) -> Watched {
        self.watch.watched(self.sensor.limit())
    }

    pub(super) fn look(&mut self, bell: &Bell, was_told: bool) -> Result<Seen, ReclaimError> {
        let now = Instant::now();
        self.policy = self.given.late_by(self.lateness.look(now));
        let was_told = self.watch.settle(bell) || was_told;
        let mut seen = Seen { was_told, ..Seen::default() };
        let mut look = self.observe(&mut seen.marked)?;
        for _ in 0..ROUNDS {
            let targets = plan(&self.stats, &look.pressure, &self.policy);
            if targets.is_calm() {
                break;
            }
            let mut done = apply(&self.parts, &self.stats, look.pressure.scope, &targets);
            let volatile = seen.marked;
            let before = std::mem::replace(&mut look, self.observe(&mut seen.marked)?);
            done.measured = before.measure.saturating_sub(look.measure);
            self.judge_reserves(&done, now);
            let of_others = done.freed().saturating_sub(volatile.saturating_sub(seen.marked));
            self.sensor.gave_up(of_others);
            seen.reclaimed.add(&done);
            // A missing tenth is not worth another round.
            if done.freed().get() >= done.asked.get() - done.asked.get() / 10 {
                break;
            }
        }
        seen.pressure = look.pressure;
        seen.margin = self.policy.margin_at(&look.pressure);
        self.set_caps(&look.pressure, &mut seen.reclaimed);
        seen.withheld = self.set_refills(&look.pressure, &seen.reclaimed, now);
        let still = self.policy.still_margin(look.pressure.limit);
        let level = look.pressure.limit.saturating_sub(still).saturating_sub(still);
        let level = Some(level).filter(|level| look.pressure.used < *level);
        let group = self.sensor.group();
        let is_new = group.is_some_and(|group| self.watch.arm(bell, group, level, now));
        // A threshold armed just now reports no earlier rise above it, so the pause stays short.
        seen.pause = self.pause(&seen, !is_new, now);
        bell.wake_after(seen.pause)?;
        self.lateness.expect(Instant::now() + seen.pause);
        Ok(seen)
    }

    pub(super) fn shed(&mut self, target: Bytes) -> Result<Reclaimed, ReclaimError> {
        let mut marked = Bytes::ZERO;
        let before = self.observe(&mut marked)?;
        let targets = plan_for(&self.stats, Scope::Machine, target, Bytes::ZERO);
        let mut done = apply(&self.parts, &self.stats, Scope::Machine, &targets);
        done.measured = before.measure.saturating_sub(self.observe(&mut marked)?.measure);
        Ok(done)
    }

    /// Takes nothing from reserves for [`FUTILE_FOR`] if usage fell by less than half of the bytes
    /// that reserves freed. The kernel's pool may keep their huge pages.
    fn judge_reserves(&mut self, done: &Reclaimed, now: Instant) {
        let given = done.freed_of(Class::Reserve);
        if given > Bytes::ZERO && done.measured.get() < given.get() / 2 {
            self.futile_at = Some(now);
        }
    }

    /// Sets `marked` to the marked bytes that the kernel may free.
    fn observe(&mut self, marked: &mut Bytes) -> Result<Look, ReclaimError> {
        let is_futile = self.futile_at.is_some_and(|at| at.elapsed() < FUTILE_FOR);
        let Self { parts, stats, .. } = self;
        stats.clear();
        parts.retain(|part| {
            let mut found = part.stats();
            if let Some(found) = found.as_mut().filter(|_| is_futile) {
                found.sheddable[Class::Reserve.place()] = Bytes::ZERO;
            }
            stats.extend(found);
            found.is_some()
        });
        let lazy = stats.iter().filter(|part| part.is_lazy);
        let volatile = |part: &PartStats| {
            let held = part.sheddable[..crate::volatile::Priority::COUNT].iter();
            held.fold(0_u64, |sum, held| sum.saturating_add(held.get()))
        };
        *marked = Bytes::new(lazy.map(volatile).fold(0, u64::saturating_add));
        let most = parts.iter().map(Handle::lazy_len).fold(Bytes::ZERO, |sum, len| sum + len);
        self.sensor.look(Lazy { marked: *marked, most })
    }

    /// Lets each region's marked memory grow by an equal share of the free bytes beyond the margin,
    /// if the policy limits marked memory.
    fn set_caps(&self, pressure: &Pressure, reclaimed: &mut Reclaimed) {
        let regions = self.parts.iter().filter(|part| part.is_volatile()).count() as u64;
        let share = self.policy.limits_marked(pressure).then(|| {
            let beyond = pressure.free().saturating_sub(self.policy.still_margin(pressure.limit));
            Bytes::new(beyond.get() / regions.max(1))
        });
        for part in &self.parts {
            reclaimed.failed += u64::from(part.limit_marked(share).is_err());
        }
    }

    /// Withholds refills and keeps budgets low during a shortage and for at least `withhold_time`
    /// afterwards. Returns true if withholding begins.
    fn set_refills(&mut self, pressure: &Pressure, done: &Reclaimed, now: Instant) -> bool {
        let margin = self.policy.margin_at(pressure);
        let was_withheld = self.is_withheld;
        let is_short = self.policy.short(pressure) > Bytes::ZERO || done.freed_of_others();
        if is_short {
            self.short_at = Some(now);
            self.refills.withhold(self.policy.withhold_time());
            self.is_withheld = true;
            return !was_withheld;
        }
        let rest = self.short_at.map(|at| now.saturating_duration_since(at));
        let is_over = rest.is_none_or(|rest| rest >= self.policy.withhold_time());
        let is_calm = pressure.room().get() >= margin.get().saturating_mul(CALM_MARGINS);
        if self.is_withheld && is_calm && is_over {
            self.refills.allow();
            self.is_withheld = false;
        } else if self.is_withheld {
            self.refills.withhold(self.policy.withhold_time());
        }
        if !self.is_withheld && is_calm {
            let more = Bytes::new(pressure.room().saturating_sub(margin).get() / 2);
            self.parts.iter().for_each(|part| part.raise(more));
        }
        false
    }

    fn pause(&self, seen: &Seen, is_armed: bool, now: Instant) -> Duration {
        let due = Due {
            policy: &self.policy,
            pressure: &seen.pressure,
            marked: seen.marked,
            since_short: self.short_at.map(|at| now.saturating_duration_since(at)),
            tells_above: is_armed && self.watch.tells_above(seen.pressure.used),
            was_told: seen.was_told,
        };
        due.pause()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.parts.iter().for_each(|part| part.release(self.holder));
        self.refills.allow();
    }
}
