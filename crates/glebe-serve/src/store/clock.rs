//! [`Clock`] counts seconds. [`Clock::tick`] updates it.
//!
//! Clients send times as seconds from now up to 30 days, and as dates beyond.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The clock starts at 2, because a time of 0 means never and a time of 1 must be past.
const FIRST: u32 = 2;
const DAYS_30: i64 = 60 * 60 * 24 * 30;

/// A store's clock.
#[derive(Debug)]
pub struct Clock {
    begin: Instant,
    /// Date of time 0, in seconds since 1970.
    zero: i64,
    now: AtomicU32,
    /// Seconds that tests added to the clock.
    skipped: AtomicI64,
    /// True while a test stops the clock.
    stands: AtomicBool,
}

impl Clock {
    pub(super) fn new() -> Self {
        let date = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |date| date.as_secs());
        Self {
            begin: Instant::now(),
            zero: date as i64 - i64::from(FIRST),
            now: AtomicU32::new(FIRST),
            skipped: AtomicI64::new(0),
            stands: AtomicBool::new(false),
        }
    }

    /// Updates the time.
    pub fn tick(&self) {
        if !self.stands.load(Ordering::Relaxed) {
            let now = self.begin.elapsed().as_secs() as i64 + i64::from(FIRST);
            let now = (now + self.skipped.load(Ordering::Relaxed)).max(1);
            self.now.store(now.min(i64::from(u32::MAX)) as u32, Ordering::Relaxed);
        }
    }

    /// Returns the time in seconds.
    #[must_use]
    pub fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    /// Returns the date in seconds since 1970.
    #[must_use]
    pub fn date(&self) -> i64 {
        self.zero + i64::from(self.now())
    }

    /// Converts a time to a date in seconds since 1970; 0 stays 0.
    #[must_use]
    pub fn date_of(&self, time: u32) -> i64 {
        if time == 0 {
            0
        } else {
            self.zero + i64::from(time)
        }
    }

    /// Returns the seconds since the start.
    #[must_use]
    pub fn uptime(&self) -> u32 {
        self.now().saturating_sub(FIRST)
    }

    /// Converts a client's time to a time of this clock. 0 means never.
    #[must_use]
    pub fn time(&self, sent: i64) -> u32 {
        let time = match sent {
            0 => return 0,
            ..0 => 1,
            1..=DAYS_30 => i64::from(self.now()) + sent,
            _ => sent - self.zero,
        };
        time.clamp(1, i64::from(u32::MAX)) as u32
    }

    /// For tests: `p` stops the clock, `r` restarts it, a number moves it by seconds.
    pub fn debug(&self, how: &[u8]) {
        match how {
            b"p" => self.stands.store(true, Ordering::Relaxed),
            b"r" => self.stands.store(false, Ordering::Relaxed),
            _ => {
                let moved = std::str::from_utf8(how).ok().and_then(|how| how.parse().ok());
                self.skipped.fetch_add(moved.unwrap_or(0_i64), Ordering::Relaxed);
            }
        }
        let stood = self.stands.swap(false, Ordering::Relaxed);
        self.tick();
        self.stands.store(stood, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_from_now_or_dates() {
        let clock = Clock::new();
        let now = clock.now();
        assert_eq!(clock.time(0), 0);
        assert_eq!(clock.time(-1), 1);
        assert_eq!(clock.time(DAYS_30), now + DAYS_30 as u32);
        assert_eq!(clock.time(DAYS_30 + 1), 1);
        assert_eq!(clock.time(clock.date() + 7), now + 7);
        assert_eq!(clock.time(i64::MAX), u32::MAX);
        clock.debug(b"40");
        assert_eq!(clock.now(), now + 40);
    }
}
