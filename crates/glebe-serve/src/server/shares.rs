//! [`Shares`] divides a server's memory between its reserve and the rest.
//!
//! The rest is an eighth of the memory, at most 256 MiB, but up to a quarter if long items or many
//! threads need more. It holds the index, values that are being received, and answers that clients
//! have not taken. The index takes its part first, because a large index means many short items,
//! whose values need little room. The memory of the program itself is not counted. Units: bytes.

use super::execute::ANSWERS_MAX;
use super::Settings;

/// The memory beside the reserve is all memory divided by this, at most [`BESIDE_MAX`].
const BESIDE: u64 = 8;
const BESIDE_MAX: u64 = 256 << 20;
/// The memory beside the reserve has room for this many values of maximum length, unless it would
/// then exceed all memory divided by [`MOST`].
const VALUES: u64 = 4;
const MOST: u64 = 4;
/// Waiting answers get at least the memory beside the reserve divided by this.
const ANSWERS: u64 = 4;
/// Values get at least the memory beside the reserve divided by this.
const VALUES_MIN: u64 = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    /// Bytes of the reserve.
    pub(super) reserve: u64,
    /// Maximum bytes of waiting answers per worker.
    pub(super) answers: u64,
    beside: u64,
    answers_of_all: u64,
}

impl Shares {
    pub(super) fn new(settings: &Settings) -> Self {
        let threads = settings.threads.max(1) as u64;
        // Bytes for the longest answer.
        let answer = settings.item_max + 2 * ANSWERS_MAX as u64;
        let least = threads * answer + VALUES * settings.item_max;
        let beside =
            (settings.memory / BESIDE).min(BESIDE_MAX).max(least).min(settings.memory / MOST);
        let answers = (beside / ANSWERS / threads).max(answer);
        let reserve = settings.memory - beside;
        Self { reserve, answers, beside, answers_of_all: answers * threads }
    }

    /// Returns the bytes for values that are being received, when the index and the logs' heads
    /// take `own` bytes.
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
