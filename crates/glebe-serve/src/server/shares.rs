//! [`Shares`] divides the memory of a server between its reserve and the rest.
//!
//! The rest gets an eighth, and a small server gives it more, so that a few values and answers fit.
//! The index, values that are being received and answers that clients do not take lie in it. The
//! index comes first: it is long where items are short, and then values and answers are short too.
//! All shares are in bytes. The program and its tables come on top.

use super::execute::ANSWERS_MAX;
use super::Settings;

/// The rest gets the memory divided by this, and at most [`BESIDE_MAX`].
const BESIDE: u64 = 8;
const BESIDE_MAX: u64 = 256 << 20;
/// A small server has room for so many values of the greatest length, unless they need more than
/// its memory divided by [`MOST`].
const VALUES: u64 = 4;
const MOST: u64 = 4;
/// Waiting answers get the rest divided by this.
const ANSWERS: u64 = 4;
/// Values get at least the rest divided by this, however long the index is.
const VALUES_MIN: u64 = 4;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    /// The length of the reserve.
    pub(super) reserve: u64,
    /// Answers that may wait at each worker.
    pub(super) answers: u64,
    beside: u64,
    answers_of_all: u64,
}

impl Shares {
    /// Divides the memory that the settings name.
    pub(super) fn new(settings: &Settings) -> Self {
        let threads = settings.threads.max(1) as u64;
        // One answer always has room.
        let answer = settings.item_max + 2 * ANSWERS_MAX as u64;
        let least = threads * answer + VALUES * settings.item_max;
        let beside =
            (settings.memory / BESIDE).min(BESIDE_MAX).max(least).min(settings.memory / MOST);
        let answers = (beside / ANSWERS / threads).max(answer);
        let reserve = settings.memory - beside;
        Self { reserve, answers, beside, answers_of_all: answers * threads }
    }

    /// Returns how much of values may be on its way while the index and the heads of the logs take
    /// `own` bytes.
    pub(super) fn values(&self, own: u64) -> u64 {
        let left = self.beside.saturating_sub(self.answers_of_all + own);
        left.max(self.beside / VALUES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shares_are_within_the_memory() {
        for (memory, threads, item_max) in [
            (64 << 20, 4, 1 << 20),
            (64 << 20, 1, 1 << 20),
            (512 << 20, 4, 1 << 20),
            (512 << 20, 16, 2 << 20),
            (64 << 30, 4, 1 << 20),
        ] {
            let shares =
                Shares::new(&Settings { memory, threads, item_max, ..Settings::default() });
            assert!(shares.values(0) >= VALUES * item_max);
            assert!(shares.answers > item_max);
            let answers = shares.answers * threads as u64;
            for own in [0, 1 << 20] {
                let all = shares.reserve + own + answers + shares.values(own);
                assert!(all <= memory, "{all} of {memory}: {shares:?}");
            }
            assert_eq!(shares.values(memory), shares.beside / VALUES_MIN);
            assert!(shares.reserve >= memory / 4 * 3, "{shares:?}");
        }
    }

    #[test]
    fn the_longest_item_fits_into_the_reserve() {
        let shares = Shares::new(&Settings { item_max: 32 << 20, ..Settings::default() });
        assert_eq!(shares.reserve, 48 << 20);
        assert!(shares.answers > 32 << 20);
    }
}
