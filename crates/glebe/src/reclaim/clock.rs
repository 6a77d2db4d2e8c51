//! [`Due`] computes when to look next.

use std::time::{Duration, Instant};

use super::policy::Policy;
use super::pressure::Pressure;
use glebe_os::units::Bytes;

/// Least growth of usage to expect, in bytes per second.
const SPEED: u64 = 512 << 20;
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Shortest usual pause while an armed threshold can report a rise.
const PAUSE_TOLD: Duration = Duration::from_millis(250);
/// Page cache counts as small below `limit >> FEW_FILES_SHIFT`.
const FEW_FILES_SHIFT: u32 = 4;
/// Shortest pause within [`ALERT`] of the last shortage.
const PAUSE_SHORT: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_secs(1);
pub(super) const PAUSE_BLIND: Duration = Duration::from_secs(1);
const ALERT: Duration = Duration::from_secs(1);
pub(super) const CALM_MARGINS: u64 = 2;

const REMEMBERED_FOR: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lateness {
    due: Option<Instant>,
    longest: Duration,
    noted: Option<Instant>,
}

impl Lateness {
    pub(super) fn expect(&mut self, due: Instant) {
        self.due = Some(due);
    }

    pub(super) fn look(&mut self, now: Instant) -> Duration {
        let delay = self.due.map_or(Duration::ZERO, |due| now.saturating_duration_since(due));
        let is_old = |noted: Instant| now.saturating_duration_since(noted) > REMEMBERED_FOR;
        if delay >= self.longest || self.noted.is_none_or(is_old) {
            (self.longest, self.noted) = (delay, Some(now));
        }
        self.longest
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Due<'a> {
    pub(super) policy: &'a Policy,
    pub(super) pressure: &'a Pressure,
    pub(super) marked: Bytes,
    pub(super) since_short: Option<Duration>,
    pub(super) tells_above: bool,
    pub(super) was_told: bool,
}

impl Due<'_> {
    /// Returns roughly how long the room beyond the margin lasts at the expected speed.
    pub(super) fn pause(&self) -> Duration {
        let Self { policy, pressure, marked, .. } = *self;
        let still = policy.still_margin(pressure.limit).get();
        let is_alert = self.since_short.is_some_and(|since| since < ALERT);
        let least = if is_alert { PAUSE_SHORT } else { PAUSE_MIN };
        let speed = pressure.rise_a_second.get().saturating_mul(2).max(SPEED);
        // The kernel frees marked memory by itself, so it counts as room.
        let room = pressure.room().get().saturating_add(marked.get());
        let mut pause = time_for(room.saturating_sub(still), speed);
        // A long pause needs few file pages, because growth that replaces file pages does not raise
        // usage to the threshold.
        let has_few_files = pressure.files.get() < pressure.limit.get() >> FEW_FILES_SHIFT;
        if self.tells_above && !is_alert && has_few_files {
            pause = pause.max(PAUSE_TOLD);
        }
        if policy.limits_marked(pressure) && marked > Bytes::ZERO {
            let free = pressure.free().get().saturating_sub(still);
            pause = pause.min(time_for(free, SPEED).max(2 * PAUSE_MIN));
        }
        let margin = policy.margin_at(pressure).get();
        let is_near = pressure.room().get() < margin.saturating_mul(CALM_MARGINS);
        if is_near || self.was_told {
            pause = pause.min(PAUSE_MIN);
        }
        pause.clamp(least, PAUSE_MAX)
    }
}

fn time_for(bytes: u64, a_second: u64) -> Duration {
    let micros = u128::from(bytes) * 1_000_000 / u128::from(a_second.max(1));
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::Scope;

    fn pause(used: Bytes, change: impl FnOnce(&mut Due<'_>)) -> Duration {
        let policy = Policy::default();
        let limit = Bytes::gib(1);
        let pressure = Pressure { scope: Scope::Group, limit, used, ..Pressure::default() };
        let mut due = Due {
            policy: &policy,
            pressure: &pressure,
            marked: Bytes::ZERO,
            since_short: None,
            tells_above: false,
            was_told: false,
        };
        change(&mut due);
        due.pause()
    }

    #[test]
    fn a_look_is_due_before_the_room_beyond_the_margin_can_be_used_up() {
        assert_eq!(pause(Bytes::ZERO, |_| ()), PAUSE_MAX);
        assert_eq!(pause(Bytes::mib(960 - 256), |_| ()), Duration::from_millis(500));
        assert_eq!(pause(Bytes::mib(940), |_| ()), PAUSE_MIN, "near");
        let since = |since| pause(Bytes::mib(990), |due| due.since_short = since);
        assert_eq!(since(None), PAUSE_MIN, "within the margin");
        assert_eq!(since(Some(Duration::ZERO)), PAUSE_SHORT);
        assert_eq!(since(Some(ALERT)), PAUSE_MIN);
    }

    #[test]
    fn the_longest_delay_is_remembered_for_a_while() {
        let (begin, millis) = (Instant::now(), Duration::from_millis);
        let mut lateness = Lateness::default();
        assert_eq!(lateness.look(begin), Duration::ZERO);
        let mut look = |due: Duration, at: Duration| {
            lateness.expect(begin + due);
            lateness.look(begin + at)
        };
        assert_eq!(look(millis(10), millis(60)), millis(50));
        assert_eq!(look(millis(70), millis(71)), millis(50));
        assert_eq!(look(millis(90), millis(80)), millis(50), "a notice came first");
        assert_eq!(look(millis(100), millis(180)), millis(80));
        let later = millis(181) + REMEMBERED_FOR;
        assert_eq!(look(later - millis(3), later), millis(3));
    }

    #[test]
    fn notices_make_it_wait_longer_and_look_again_soon() {
        let used = Bytes::mib(960 - 64);
        assert_eq!(pause(used, |_| ()), Duration::from_millis(125));
        assert_eq!(pause(used, |due| due.tells_above = true), PAUSE_TOLD);
        assert_eq!(pause(used, |due| due.was_told = true), PAUSE_MIN);
        // No threshold reports that marked memory outgrows the free memory.
        let marked = |due: &mut Due<'_>| {
            due.tells_above = true;
            due.marked = Bytes::mib(1);
        };
        assert_eq!(pause(used, marked), Duration::from_millis(125));
    }
}
