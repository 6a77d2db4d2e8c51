//! [`Backoff`] decides how long a segment rests after a recall.
//!
//! A segment costs the daemon's zeroing, the mount, and the writers' refill. It pays if it was lent
//! for [`PAYS`] times as long, so that at most 1 % of the time is cost. A recall sooner than that
//! doubles the next rest, up to the longest one. A lending that paid halves it, down to the least
//! rest.
//!
//! The refill counts as 1 s for each GiB, so a segment of 256 MiB pays after about half a minute.
//! If recalls always come at once and the longest rest is 10 minutes, it costs 0.05 % of the time.

use std::time::Duration;

use glebe_os::units::Bytes;

/// A segment pays if it was lent for this many times its cost.
const PAYS: u32 = 100;
/// Writers' rate in the cost of a refill: bytes in a second.
const REFILL: f64 = (1_u64 << 30) as f64;

/// The rests of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    least: Duration,
    most: Duration,
    rest: Duration,
}

/// Returns how long a segment must be lent to pay. `given` is how long its lease and mount took.
#[must_use]
pub(crate) fn pays_after(segment: Bytes, given: Duration) -> Duration {
    let refill = Duration::from_secs_f64(segment.get() as f64 / REFILL);
    (given.saturating_add(refill)).saturating_mul(PAYS)
}

impl Backoff {
    /// The segment rests from `least` to `most`.
    #[must_use]
    pub fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, rest: least }
    }

    /// Returns how long the segment rests. It was lent for `lent`, and pays after `pays`.
    pub fn recalled(&mut self, lent: Duration, pays: Duration) -> Duration {
        self.rest = if lent < pays {
            self.rest.saturating_mul(2).min(self.most)
        } else {
            (self.rest / 2).max(self.least)
        };
        self.rest
    }

    /// Returns how long the segment rests after an end that no recall caused.
    #[must_use]
    pub fn least(&self) -> Duration {
        self.least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn early_recalls_double_the_rest_and_long_lendings_halve_it() {
        let mut backoff = Backoff::new(seconds(15), seconds(600));
        let pays = seconds(30);
        assert_eq!(backoff.recalled(seconds(30), pays), seconds(15), "it paid");
        let rests: Vec<u64> =
            (0..7).map(|_| backoff.recalled(seconds(29), pays).as_secs()).collect();
        assert_eq!(rests, [30, 60, 120, 240, 480, 600, 600]);
        let rests: Vec<u64> =
            (0..7).map(|_| backoff.recalled(seconds(31), pays).as_secs()).collect();
        assert_eq!(rests, [300, 150, 75, 37, 18, 15, 15]);
        assert_eq!(backoff.least(), seconds(15));
    }

    #[test]
    fn the_cost_is_the_refill_and_what_was_measured() {
        assert_eq!(pays_after(Bytes::mib(256), Duration::ZERO), seconds(25));
        assert_eq!(pays_after(Bytes::mib(256), Duration::from_millis(50)), seconds(30));
        assert_eq!(pays_after(Bytes::gib(1), Duration::ZERO), seconds(100));
    }
}
