//! What first class asks for over hours: kinds of blocks, how large they are, how long they live.
//!
//! Blocks of a kind come at random, one independent of another (Poisson), and live for times that
//! are exponential about a mean; sizes are as often between 1 and 2 times a size as between 2 and
//! 4 times. A kind has its share of the pages that are to be held on average, and by Little's law
//! its rate. The sequence depends on the seed alone, not on which blocks could be had.
//! Units: base pages, microseconds of virtual time.

use crate::reserve::keyed::{mix, Random};

/// Microseconds in a second.
pub(super) const SECOND_US: u64 = 1_000_000;

/// Pages of the reserve that the sizes of large blocks are meant for; of another, in proportion.
const USUAL_PAGES: u64 = 1 << 18;

/// Blocks of one purpose.
#[derive(Clone, Copy, Debug)]
struct Kind {
    pages_min: u64,
    pages_max: u64,
    /// Whether the sizes follow that of the reserve.
    scaled: bool,
    life_s: f64,
    /// Of the pages held on average, in thousandths.
    share: f64,
    long_lived: bool,
}

impl Kind {
    const fn new(pages: (u64, u64), life_s: f64, share: f64) -> Self {
        let (pages_min, pages_max) = pages;
        let scaled = pages_min > 64;
        Self { pages_min, pages_max, scaled, life_s, share, long_lived: false }
    }
}

/// Short-lived buffers, streams, work sets, cameras and models, and small blocks that stay.
const KINDS: [Kind; 5] = [
    Kind::new((1, 64), 2.0, 2.5),
    Kind::new((65, 511), 120.0, 150.0),
    Kind::new((512, 4096), 300.0, 437.5),
    Kind::new((8192, 32000), 420.0, 400.0),
    Kind { long_lived: true, ..Kind::new((1, 16), 2400.0, 10.0) },
];

/// One block to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) at_us: u64,
    pub(super) pages: u64,
    pub(super) life_us: u64,
    pub(super) long_lived: bool,
}

/// The blocks of one kind, in the order of time, without end.
#[derive(Debug)]
struct Stream {
    kind: Kind,
    random: Random,
    gap_us: f64,
    next: Arrival,
}

/// All blocks, in the order of time, without end.
#[derive(Debug)]
pub(super) struct Workload {
    streams: Vec<Stream>,
}

/// The largest block there is in a reserve of so many pages.
pub(super) fn pages_max(reserve_pages: u64) -> u64 {
    let largest = KINDS.iter().map(|kind| kind.pages_max).max().unwrap_or(1);
    scaled(largest, reserve_pages)
}

fn scaled(pages: u64, reserve_pages: u64) -> u64 {
    (pages * reserve_pages / USUAL_PAGES).max(1)
}

impl Workload {
    /// Blocks that would on average hold `percent` of a reserve of `reserve_pages`, if none failed.
    pub(super) fn new(reserve_pages: u64, percent: u64, seed: u64) -> Self {
        let held = (reserve_pages * percent) as f64 / 100.0;
        let stream = |(nth, mut kind): (usize, Kind)| {
            if kind.scaled {
                kind.pages_min = scaled(kind.pages_min, reserve_pages);
                kind.pages_max = scaled(kind.pages_max, reserve_pages);
            }
            let held = held * kind.share / 1000.0;
            let gap_us = kind.mean_pages() * kind.life_s / held * SECOND_US as f64;
            let random = Random::new(mix(seed) ^ mix(nth as u64));
            let next = Arrival { at_us: 0, pages: 0, life_us: 0, long_lived: kind.long_lived };
            let mut stream = Stream { kind, random, gap_us, next };
            stream.advance();
            stream
        };
        Self { streams: KINDS.into_iter().enumerate().map(stream).collect() }
    }
}

impl Kind {
    /// Of sizes whose logarithm is uniform.
    fn mean_pages(&self) -> f64 {
        let (min, max) = (self.pages_min as f64, self.pages_max as f64 + 1.0);
        (max - min) / (max / min).ln()
    }
}

impl Stream {
    fn advance(&mut self) {
        let life_us = self.exponential(self.kind.life_s * SECOND_US as f64) as u64;
        let at_us = self.next.at_us + self.exponential(self.gap_us) as u64;
        let (min, max) = (self.kind.pages_min as f64, self.kind.pages_max as f64 + 1.0);
        let pages = (min * (max / min).powf(self.unit())) as u64;
        let pages = pages.clamp(self.kind.pages_min, self.kind.pages_max);
        self.next = Arrival { at_us, pages, life_us, ..self.next };
    }

    /// Above 0 and below 1.
    fn unit(&mut self) -> f64 {
        const STEPS: u64 = 1 << 52;
        (self.random.below(STEPS) as f64 + 0.5) / STEPS as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }
}

impl Iterator for Workload {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let stream = self.streams.iter_mut().min_by_key(|stream| stream.next.at_us)?;
        let next = stream.next;
        stream.advance();
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_US: u64 = 3600 * SECOND_US;

    fn hours(seed: u64, hours: u64) -> Vec<Arrival> {
        let all = Workload::new(USUAL_PAGES, 50, seed);
        all.take_while(|one| one.at_us < hours * HOUR_US).collect()
    }

    #[test]
    fn a_seed_gives_one_sequence_in_the_order_of_time() {
        let first = hours(7, 1);
        assert_eq!(first, hours(7, 1));
        assert_ne!(first, hours(8, 1));
        assert!(first.windows(2).all(|two| two[0].at_us <= two[1].at_us));
        let sizes = |pages: std::ops::Range<u64>| {
            first.iter().filter(|one| pages.contains(&one.pages)).count()
        };
        assert!(sizes(1..65) > 10_000 && sizes(512..4097) > 100 && sizes(8192..32001) > 10);
        assert_eq!(sizes(32001..u64::MAX), 0);
    }

    #[test]
    fn the_blocks_would_hold_the_share_that_was_asked_for() {
        let page_us: f64 =
            hours(3, 40).iter().map(|one| one.pages as f64 * one.life_us as f64).sum();
        let held = page_us / (40 * HOUR_US) as f64 / USUAL_PAGES as f64;
        assert!((0.46..0.54).contains(&held), "{held}");
    }

    #[test]
    fn a_small_reserve_is_asked_for_smaller_large_blocks() {
        assert_eq!((pages_max(USUAL_PAGES), pages_max(USUAL_PAGES / 8)), (32000, 4000));
        let all = Workload::new(USUAL_PAGES / 8, 50, 1).take(10_000);
        assert!(all.into_iter().all(|one| one.pages <= 4000));
    }
}
