//! Messages of one size copied out of random places: the shape of the table that was shown for
//! `MAP_CONTIG`, by what a processor does. Unit: megabytes (10^6) a second of CPU time.
//!
//! There the messages went over a network card that translates addresses itself; here it is the
//! processor's translation that long pages spare. Sizes are powers of two from [`SIZE_MIN`] to
//! [`SIZE_MAX`]; places are multiples of a cache line; the target is one buffer of ordinary memory,
//! the same for every contestant.

use std::fmt::Write as _;
use std::hint::black_box;

use crate::clock::Stopwatch;
use crate::reserve::keyed::{mix, Random};

/// Smallest message.
pub(crate) const SIZE_MIN: u64 = 2;
/// Largest message.
pub(crate) const SIZE_MAX: u64 = 8 << 20;
const LINE: u64 = 64;

/// How much is copied for one sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    /// Messages at most.
    pub(crate) messages: u64,
    /// Bytes at most, but for one message.
    pub(crate) bytes: u64,
}

/// The sizes, smallest first.
pub(crate) fn sizes() -> impl Iterator<Item = u64> {
    (SIZE_MIN.ilog2()..=SIZE_MAX.ilog2()).map(|log| 1 << log)
}

/// Copies messages of `size` from random places of `from` into `to`.
pub(crate) fn copy(from: &[u8], to: &mut [u8], size: u64, amount: Amount, seed: u64) -> f64 {
    let count = (amount.bytes / size).clamp(1, amount.messages);
    let places = (from.len() as u64).saturating_sub(size) / LINE + 1;
    // Other places for each size: those of the last are in the caches.
    let mut random = Random::new(mix(seed ^ size << 32));
    let len = size as usize;
    let watch = Stopwatch::start();
    for _ in 0..count {
        let at = (random.below(places) * LINE) as usize;
        to[..len].copy_from_slice(&from[at..at + len]);
        black_box(&mut *to);
    }
    (count * size) as f64 / watch.elapsed().cpu_us
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    /// Bytes of a message.
    pub(crate) size: u64,
    /// Of ordinary memory, MB/s.
    pub(crate) before: f64,
    /// Of the library's, MB/s.
    pub(crate) after: f64,
}

/// The two columns and how much the second is more, in percent.
pub(crate) fn table(columns: [&str; 2], lines: &[Line]) -> String {
    let [before, after] = columns;
    let mut text = format!("{:>9}  {before:>14}  {after:>14}  {:>8}\n", "bytes", "gain");
    for line in lines {
        let gain = (line.after / line.before - 1.0) * 100.0;
        let _ = writeln!(
            text,
            "{:>9}  {:>14.1}  {:>14.1}  {gain:>+7.1}%",
            line.size, line.before, line.after
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_of_the_talk() {
        let sizes: Vec<u64> = sizes().collect();
        assert_eq!((sizes.len(), sizes[0], sizes[22]), (23, 2, 8 << 20));
    }

    #[test]
    fn messages_are_copied_from_inside_whatever_the_length() {
        let amount = Amount { messages: 50, bytes: 1 << 16 };
        let from: Vec<u8> = (0..1 << 12).map(|at: u32| (at / 64 * 3 + at % 64) as u8).collect();
        let mut to = vec![0; 1 << 12];
        for size in [2, 64, 4095, 4096] {
            assert!(copy(&from, &mut to, size, amount, 7) > 0.0);
            let mut lines = from.windows(size as usize).step_by(LINE as usize);
            assert!(lines.any(|line| line == &to[..size as usize]), "{size}");
        }
        assert_eq!(to, from, "the largest has one place");
    }

    #[test]
    fn the_gain_is_of_the_second_column() {
        let line = Line { size: 64, before: 100.0, after: 128.0 };
        let table = table(["memalign", "glebe"], &[line]);
        assert!(table.lines().next().is_some_and(|head| head.ends_with("gain")), "{table}");
        assert!(table.lines().nth(1).is_some_and(|line| line.ends_with("+28.0%")), "{table}");
    }
}
