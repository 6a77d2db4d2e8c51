//! [`Due`]: when to look next, so that usage cannot pass the margin unseen. Pure.

use std::time::Duration;

use super::policy::Policy;
use super::pressure::Pressure;
use crate::units::Bytes;

/// Usage is taken to rise no faster than this in a second, where it was not seen to.
const SPEED: u64 = 512 << 20;
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Where a threshold tells in time.
const PAUSE_TOLD: Duration = Duration::from_millis(250);
/// Few files are less than this part of the limit, as a shift.
const FEW_FILES_SHIFT: u32 = 4;
/// While memory is, or just was, short.
const PAUSE_SHORT: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// After a look that could not tell.
pub(super) const PAUSE_BLIND: Duration = Duration::from_secs(1);
/// So long after it was short.
const ALERT: Duration = Duration::from_secs(1);
/// There is room in plenty with so many margins to be had.
pub(super) const CALM_MARGINS: u64 = 2;

/// What the next look depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due<'a> {
    pub(super) policy: &'a Policy,
    pub(super) pressure: &'a Pressure,
    pub(super) marked: Bytes,
    /// How long ago memory was short, if it ever was.
    pub(super) since_short: Option<Duration>,
    /// Whether the kernel tells when usage rises from where it is.
    pub(super) tells_above: bool,
    /// Whether this look came before its time, by a notice of the kernel's.
    pub(super) was_told: bool,
}

impl Due<'_> {
    /// How long nothing can happen that matters: until the margin would be used up at the speed
    /// that usage is taken to rise with.
    pub(super) fn pause(&self) -> Duration {
        let Self { policy, pressure, marked, .. } = *self;
        let still = policy.still_margin(pressure.limit).get();
        let is_alert = self.since_short.is_some_and(|since| since < ALERT);
        let least = if is_alert { PAUSE_SHORT } else { PAUSE_MIN };
        let speed = pressure.rise_a_second.get().saturating_mul(2).max(SPEED);
        // The kernel takes marked memory itself.
        let room = pressure.room().get().saturating_add(marked.get());
        let mut pause = time_for(room.saturating_sub(still), speed);
        // Of page cache it tells as well, so it says nothing where there is much.
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

/// How long so many bytes last.
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
        // The margin is 64 MiB.
        assert_eq!(pause(Bytes::ZERO, |_| ()), PAUSE_MAX);
        assert_eq!(pause(Bytes::mib(960 - 256), |_| ()), Duration::from_millis(500));
        assert_eq!(pause(Bytes::mib(940), |_| ()), PAUSE_MIN, "near");
        let since = |since| pause(Bytes::mib(990), |due| due.since_short = since);
        assert_eq!(since(None), PAUSE_MIN, "within the margin");
        assert_eq!(since(Some(Duration::ZERO)), PAUSE_SHORT);
        assert_eq!(since(Some(ALERT)), PAUSE_MIN);
    }

    #[test]
    fn notices_make_it_wait_longer_and_look_again_soon() {
        let used = Bytes::mib(960 - 64);
        assert_eq!(pause(used, |_| ()), Duration::from_millis(125));
        assert_eq!(pause(used, |due| due.tells_above = true), PAUSE_TOLD);
        assert_eq!(pause(used, |due| due.was_told = true), PAUSE_MIN);
        // Marked memory is kept within what is free, which no threshold tells.
        let marked = |due: &mut Due<'_>| {
            due.tells_above = true;
            due.marked = Bytes::mib(1);
        };
        assert_eq!(pause(used, marked), Duration::from_millis(125));
    }
}
