//! Statistics: counters that threads do not fight over, latency histograms, and one table a part
//! from which the structure, its text and its JSON are made.
//!
//! A counter is spread over lanes, one cache line group each; a thread adds to its own lane and a
//! reader sums them, so a sum is exact only while nobody adds. Times are nanoseconds.

use std::cell::Cell;
use std::fmt::Write;

use crate::sync::{prefetch, MappedWord as Word, Ordering};

/// Lanes of every striped counter: a power of two, more than threads usually run at once.
pub(crate) const LANES: usize = 16;

/// The calling thread's lane.
#[inline]
pub(crate) fn lane() -> usize {
    static NEXT: Word = Word::new(0);
    thread_local!(static LANE: Cell<usize> = const { Cell::new(usize::MAX) });
    LANE.with(|lane| {
        if lane.get() == usize::MAX {
            lane.set(NEXT.fetch_add(1, Ordering::Relaxed) as usize % LANES);
        }
        lane.get()
    })
}

/// `N` counters of one thread group, on cache lines of their own.
#[derive(Debug)]
#[repr(align(128))]
struct Lane<const N: usize>([Word; N]);

/// `N` counters that only grow, striped over [`LANES`].
#[derive(Debug)]
pub(crate) struct Counters<const N: usize> {
    lanes: [Lane<N>; LANES],
}

impl<const N: usize> Counters<N> {
    pub(crate) fn new() -> Self {
        let lane = |_| Lane(std::array::from_fn(|_| Word::new(0)));
        Self { lanes: std::array::from_fn(lane) }
    }

    #[inline]
    pub(crate) fn add(&self, counter: usize, n: u64) {
        self.lanes[lane()].0[counter].fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self, counter: usize) -> u64 {
        self.lanes.iter().map(|lane| lane.0[counter].load(Ordering::Relaxed)).sum()
    }
}

/// Buckets for each power of two.
const PARTS: u64 = 8;
/// See [`Histogram::prefetch`].
const USUAL_NANOS: u64 = 512;
const BUCKETS: usize = (u64::BITS as u64 * PARTS) as usize;

/// A histogram of durations whose buckets are an eighth of a power of two wide.
#[derive(Debug)]
pub(crate) struct Histogram {
    max: Word,
    buckets: [Word; BUCKETS],
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self { max: Word::new(0), buckets: std::array::from_fn(|_| Word::new(0)) }
    }

    /// Starts to fetch the buckets of durations that are usual where that is worth a thought.
    #[inline]
    pub(crate) fn prefetch(&self) {
        for nanos in [USUAL_NANOS, 2 * USUAL_NANOS] {
            prefetch(&self.buckets[bucket_of(nanos)]);
        }
    }

    /// Adds one duration.
    #[inline]
    pub(crate) fn record(&self, nanos: u64) {
        self.buckets[bucket_of(nanos)].fetch_add(1, Ordering::Relaxed);
        if nanos > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// What has been recorded so far.
    pub(crate) fn snapshot(&self) -> Latency {
        let buckets = self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect();
        Latency { buckets, max: self.max.load(Ordering::Relaxed) }
    }
}

fn bucket_of(nanos: u64) -> usize {
    if nanos < PARTS {
        return nanos as usize;
    }
    let power = nanos.ilog2();
    let part = (nanos >> (power - PARTS.ilog2())) - PARTS;
    (u64::from(power - PARTS.ilog2() + 1) * PARTS + part) as usize
}

/// The largest duration that falls into `bucket`.
fn bucket_end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PARTS {
        return bucket;
    }
    let shift = bucket / PARTS - 1;
    let start = u128::from(PARTS + bucket % PARTS) << shift;
    u64::try_from(start + (1 << shift) - 1).unwrap_or(u64::MAX)
}

/// Durations as they were counted, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    buckets: Vec<u64>,
    max: u64,
}

impl Latency {
    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The longest; exact.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The duration that a share `q` of all, 0 to 1, did not exceed: at most an eighth too large.
    #[must_use]
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = (self.count() as f64 * q.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return bucket_end(bucket).min(self.max);
            }
        }
        self.max
    }
}

/// One line of a statistics table: its name, which ends in its unit where that is not "count",
/// its value and what it means.
pub(crate) type Row = (&'static str, u64, &'static str);

/// The rows as aligned text.
pub(crate) fn text(rows: &[Row]) -> String {
    let mut out = String::new();
    for (name, value, what) in rows {
        let _ = writeln!(out, "{name:<24} {value:>14}  {what}");
    }
    out
}

/// The rows as one JSON object.
pub(crate) fn json(rows: &[Row]) -> String {
    let fields: Vec<_> =
        rows.iter().map(|(name, value, _)| format!("\"{name}\": {value}")).collect();
    format!("{{ {} }}", fields.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_falls_into_the_bucket_that_ends_at_or_after_it() {
        let mut last = 0;
        for nanos in (0..4096).chain([1 << 20, (1 << 20) + 1, u64::MAX / 3, u64::MAX]) {
            let bucket = bucket_of(nanos);
            assert!(bucket >= last && bucket < BUCKETS);
            assert!(bucket_end(bucket) >= nanos, "{nanos}");
            assert!(bucket == 0 || bucket_end(bucket - 1) < nanos, "{nanos}");
            last = bucket;
        }
    }

    #[test]
    fn quantiles_are_near() {
        let histogram = Histogram::new();
        (1..=1000).for_each(|n| histogram.record(n));
        let latency = histogram.snapshot();
        assert_eq!((latency.count(), latency.max()), (1000, 1000));
        let median = latency.quantile(0.5);
        assert!((500..=563).contains(&median), "{median}");
        assert_eq!(latency.quantile(1.0), 1000);
    }

    #[test]
    fn counters_add_up_over_threads() {
        let counters = Counters::<2>::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| counters.add(1, 2)));
            }
        });
        assert_eq!((counters.sum(0), counters.sum(1)), (0, 8000));
    }
}
