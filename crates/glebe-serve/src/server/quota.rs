//! [`Quota`] limits the lines of a level of the log, because clients cause them.
//!
//! A period begins with its first line and has a length of [`PERIOD`]. The quota counts the lines
//! that no longer fit into a period.

use std::time::{Duration, Instant};

pub(super) const PERIOD: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Quota {
    /// Greatest number of lines in a period.
    most: u64,
    /// Lines asked for in the period.
    asked: u64,
    began: Option<Instant>,
}

impl Quota {
    pub(super) const fn new(most: u64) -> Self {
        Self { most, asked: 0, began: None }
    }

    /// Returns true if a line may be written at `now`. Call [`Quota::end_period`] before.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        self.began.get_or_insert(now);
        self.asked += 1;
        self.asked <= self.most
    }

    /// Ends a period that is over at `now`. Returns the number of lines that were left out of it.
    pub(super) fn end_period(&mut self, now: Instant) -> u64 {
        match self.began {
            Some(began) if now.saturating_duration_since(began) >= PERIOD => self.end(),
            _ => 0,
        }
    }

    /// Ends the period. Returns the number of lines that were left out of it.
    pub(super) fn end(&mut self) -> u64 {
        let left_out = self.asked.saturating_sub(self.most);
        (self.asked, self.began) = (0, None);
        left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_a_number_of_lines_and_counts_the_others() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let mut quota = Quota::new(3);
        let mut admitted = Vec::new();
        for ms in [0, 1, 5_000, 5_000, 9_999, 9_999] {
            assert_eq!(quota.end_period(at(ms)), 0, "it is not over: {ms}");
            admitted.push(quota.take(at(ms)));
        }
        assert_eq!(admitted, [true, true, true, false, false, false]);
        assert_eq!(quota.end_period(at(10_000)), 3);
        assert_eq!(quota.end_period(at(20_000)), 0, "told once");
        // The next period begins with its first line.
        assert!(quota.take(at(25_000)) && quota.take(at(34_000)) && quota.take(at(34_000)));
        assert!(!quota.take(at(34_999)));
        assert_eq!(quota.end_period(at(34_999)), 0);
        assert_eq!(quota.end_period(at(35_000)), 1);
        assert!(quota.take(at(35_000)));
        // A clock that seems to go back ends nothing.
        assert_eq!(quota.end_period(at(0)), 0);
        assert_eq!(quota.end(), 0);
        assert!((0..5).filter(|_| quota.take(at(50_000))).count() == 3 && quota.end() == 2);
    }
}
