//! This module has counters, latency histograms, and macros that make a part's `Stats`, texts and
//! glossary from one table.
//!
//! Each counter has `LANES` lanes on separate cache lines. A thread adds to one lane and a reader
//! sums all lanes, so a sum is exact only while no thread adds.

mod openmetrics;

use std::cell::Cell;
use std::fmt::Write;

use crate::internal::sync::{prefetch, MappedWord as Word, Ordering};

pub use openmetrics::{families, openmetrics, openmetrics_of, seconds, Set};

#[doc(hidden)]
#[macro_export]
macro_rules! listed {
    ($stats:ty) => {
        impl $stats {
            /// Returns each number with its name, unit and meaning.
            #[must_use]
            pub fn lines(&self) -> Vec<$crate::internal::stats::Line> {
                $crate::internal::stats::lines(&self.rows())
            }

            /// Returns the name, unit and meaning of each number, one per line.
            #[must_use]
            pub fn describe() -> String {
                $crate::internal::stats::describe(&Self::default().rows())
            }
        }
    };
}

pub use crate::listed;

#[doc(hidden)]
#[macro_export]
macro_rules! shown {
    ($stats:ty) => {
        impl std::fmt::Display for $stats {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&$crate::internal::stats::text(&self.rows()))
            }
        }
    };
}

pub use crate::shown;

#[doc(hidden)]
#[macro_export]
macro_rules! texts {
    ($stats:ty, $page:expr, $prefix:literal $(, $label:literal)?) => {
        impl $stats {
            /// Returns one JSON object. Each name ends in its unit unless it is a count.
            #[must_use]
            pub fn to_json(&self) -> String {
                $crate::internal::stats::json(&self.rows())
            }

            /// Returns OpenMetrics 1.0 text, with pages as bytes and times as seconds.
            #[must_use]
            pub fn to_openmetrics(&self) -> String {
                let set = $crate::internal::stats::Set { labels: Vec::new(), rows: self.rows() };
                $crate::internal::stats::openmetrics($prefix, $page, &[set])
            }
            $(
                /// Returns the statistics of several owners as one OpenMetrics text. The label
                #[doc = concat!("`", $label, "`")]
                /// holds the owner's name. Names must differ.
                #[must_use]
                pub fn openmetrics_of(all: &[(&str, &Self)]) -> String {
                    let all = all.iter().map(|(name, stats)| (*name, stats.rows()));
                    $crate::internal::stats::openmetrics_of($prefix, $page, $label, all)
                }
            )?
        }
    };
}

pub use crate::texts;

/// Defines `Stats`, `Counts` and `Counter`. Each row ends with its meaning. `labels` become fields
/// that the texts of `Stats` omit.
#[doc(hidden)]
#[macro_export]
macro_rules! statistics {
    (
        labels { $($label:ident: $label_type:ty, $label_what:literal;)* }
        counters { $($variant:ident $name:ident $unit:ident $what:literal;)* }
        gauges { $($gauge:ident $gauge_name:literal $gauge_what:literal;)* }
        $(bytes { $($bytes:ident $bytes_what:literal;)* })?
        durations { $($field:ident $field_name:literal $family:literal $field_what:literal;)* }
    ) => {
        #[derive(Clone, Copy, Debug)]
        pub enum Counter { $($variant,)* }

        #[derive(Debug)]
        pub struct Counts($crate::internal::stats::Counters<{ [$(Counter::$variant),*].len() }>);

        impl Counts {
            pub fn new() -> Self {
                Self($crate::internal::stats::Counters::new())
            }

            #[inline]
            pub fn add(&self, counter: Counter, n: u64) {
                self.0.add(counter as usize, n);
            }

            /// Returns a `Stats` without gauges and durations.
            pub fn sum(&self) -> Stats {
                Stats { $($name: self.0.sum(Counter::$variant as usize),)* ..Stats::default() }
            }
        }

        /// The statistics at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $(#[doc = $label_what] pub $label: $label_type,)*
            $(#[doc = $what] pub $name: u64,)*
            $(#[doc = $gauge_what] pub $gauge: $crate::units::Pages,)*
            $($(#[doc = $bytes_what] pub $bytes: $crate::units::Bytes,)*)?
            $(#[doc = concat!($field_what, ": how long each took, in nanoseconds")]
              pub $field: $crate::internal::stats::Latency,)*
        }

        impl Stats {
            fn rows(&self) -> Vec<$crate::internal::stats::Row<'_>> {
                use $crate::internal::stats::{Row, Unit, Value};
                let row = |name, value, what| Row { name, value, what };
                vec![
                    $(row(stringify!($name), Value::Counter(Unit::$unit, self.$name), $what),)*
                    $(row(
                        $gauge_name, Value::Gauge(Unit::Pages, self.$gauge.get()), $gauge_what
                    ),)*
                    $($(row(
                        stringify!($bytes),
                        Value::Gauge(Unit::Bytes, self.$bytes.get()),
                        $bytes_what
                    ),)*)?
                    $(row($field_name, Value::Durations($family, &self.$field), $field_what),)*
                ]
            }
        }

        $crate::internal::stats::listed!(Stats);
    };
}

pub use crate::statistics;

/// Lanes of each counter, a power of two. Threads with the same lane slow each other.
#[doc(hidden)]
pub const LANES: usize = 16;

#[doc(hidden)]
#[inline]
#[must_use]
pub fn lane() -> usize {
    static NEXT: Word = Word::new(0);
    thread_local!(static LANE: Cell<usize> = const { Cell::new(usize::MAX) });
    LANE.with(|lane| {
        if lane.get() == usize::MAX {
            lane.set(NEXT.fetch_add(1, Ordering::Relaxed) as usize % LANES);
        }
        lane.get()
    })
}

#[derive(Debug)]
#[repr(align(128))]
struct Lane<const N: usize>([Word; N]);

#[derive(Debug)]
pub struct Counters<const N: usize> {
    lanes: [Lane<N>; LANES],
}

impl<const N: usize> Counters<N> {
    pub fn new() -> Self {
        let lane = |_| Lane(std::array::from_fn(|_| Word::new(0)));
        Self { lanes: std::array::from_fn(lane) }
    }

    #[inline]
    pub fn add(&self, counter: usize, n: u64) {
        self.lanes[lane()].0[counter].fetch_add(n, Ordering::Relaxed);
    }

    /// Adds without a locked instruction, so only one thread at a time may add to `counter`.
    #[inline]
    pub fn add_alone(&self, counter: usize, n: u64) {
        let word = &self.lanes[0].0[counter];
        word.store(word.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    #[inline]
    pub fn here(&self, counter: usize) -> u64 {
        self.lanes[lane()].0[counter].load(Ordering::Relaxed)
    }

    pub fn sum(&self, counter: usize) -> u64 {
        self.lanes.iter().map(|lane| lane.0[counter].load(Ordering::Relaxed)).sum()
    }
}

/// Buckets per power of two.
const PARTS: u64 = 8;
const USUAL_NANOS: u64 = 512;
const BUCKETS: usize = (u64::BITS as u64 * PARTS) as usize;

#[derive(Debug)]
#[repr(C)]
pub struct Histogram {
    totals: Totals,
    buckets: [Word; BUCKETS],
}

#[derive(Debug)]
#[repr(align(16))]
struct Totals {
    max: Word,
    sum: Word,
}

const _: () = assert!(size_of::<Totals>() == 16);

impl Histogram {
    pub fn new() -> Self {
        let totals = Totals { max: Word::new(0), sum: Word::new(0) };
        Self { totals, buckets: std::array::from_fn(|_| Word::new(0)) }
    }

    #[inline]
    pub fn prefetch(&self) {
        const USUAL: [usize; 2] = [bucket_of(USUAL_NANOS), bucket_of(2 * USUAL_NANOS)];
        USUAL.into_iter().for_each(|bucket| prefetch(&self.buckets[bucket]));
    }

    #[inline]
    pub fn record(&self, nanos: u64) {
        let Totals { max, sum } = &self.totals;
        self.buckets[bucket_of(nanos)].fetch_add(1, Ordering::Relaxed);
        // New maxima are rare: the load avoids most atomic updates.
        if nanos > max.load(Ordering::Relaxed) {
            max.fetch_max(nanos, Ordering::Relaxed);
        }
        sum.fetch_add(nanos, Ordering::Relaxed);
    }

    pub fn snapshot(&self) -> Latency {
        let buckets = self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect();
        let Totals { max, sum } = &self.totals;
        let (max, sum) = (max.load(Ordering::Relaxed), sum.load(Ordering::Relaxed));
        Latency { buckets, max, sum }
    }
}

#[inline]
const fn bucket_of(nanos: u64) -> usize {
    if nanos < PARTS {
        return nanos as usize;
    }
    let power = nanos.ilog2();
    let part = (nanos >> (power - PARTS.ilog2())) - PARTS;
    ((power - PARTS.ilog2() + 1) as u64 * PARTS + part) as usize
}

fn bucket_end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PARTS {
        return bucket;
    }
    let shift = bucket / PARTS - 1;
    let start = u128::from(PARTS + bucket % PARTS) << shift;
    u64::try_from(start + (1 << shift) - 1).unwrap_or(u64::MAX)
}

/// Recorded durations, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    buckets: Vec<u64>,
    max: u64,
    sum: u64,
}

impl Latency {
    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the longest duration.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the sum in nanoseconds, which matches [`Latency::count`] only if no thread recorded
    /// during the snapshot.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    fn shorter_than(&self, power: u32) -> u64 {
        let end = bucket_of(1 << power).min(self.buckets.len());
        self.buckets[..end].iter().sum()
    }

    /// Returns the quantile `q` (0 to 1) in nanoseconds, at most an eighth too long.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Count,
    Pages,
    Bytes,
    Nanos,
}

#[derive(Debug)]
pub enum Value<'a> {
    Counter(Unit, u64),
    Gauge(Unit, u64),
    /// The OpenMetrics name, and the durations.
    Durations(&'static str, &'a Latency),
}

#[derive(Debug)]
pub struct Row<'a> {
    pub name: &'static str,
    pub value: Value<'a>,
    pub what: &'static str,
}

/// One number of a part's statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Name, ending in the unit except for a count.
    pub name: String,
    /// Unit: `count`, `pages`, `bytes` or `ns`.
    pub unit: &'static str,
    /// The number.
    pub value: u64,
    /// Meaning.
    pub what: String,
}

const QUANTILES: [(&str, f64, &str); 4] = [
    ("p50", 0.5, "half took no longer"),
    ("p90", 0.9, "9 of 10 took no longer"),
    ("p99", 0.99, "99 of 100 took no longer"),
    ("p999", 0.999, "999 of 1000 took no longer"),
];

pub fn lines(rows: &[Row]) -> Vec<Line> {
    let mut out = Vec::new();
    for Row { name, value, what } in rows {
        match value {
            Value::Counter(unit, value) | Value::Gauge(unit, value) => {
                let unit = match unit {
                    Unit::Count => "count",
                    Unit::Pages => "pages",
                    Unit::Bytes => "bytes",
                    Unit::Nanos => "ns",
                };
                let (name, what) = ((*name).to_owned(), (*what).to_owned());
                out.push(Line { name, unit, value: *value, what });
            }
            Value::Durations(_, latency) => {
                let mut line = |end: &str, unit, value, tells| {
                    let (name, what) = (format!("{name}_{end}"), format!("{what}: {tells}"));
                    out.push(Line { name, unit, value, what });
                };
                line("count", "count", latency.count(), "how many");
                line("sum_ns", "ns", latency.sum(), "all together");
                for (end, share, tells) in QUANTILES {
                    line(&format!("{end}_ns"), "ns", latency.quantile(share), tells);
                }
                line("max_ns", "ns", latency.max(), "the longest");
            }
        }
    }
    out
}

pub fn text(rows: &[Row]) -> String {
    let mut out = String::new();
    for Line { name, value, what, .. } in lines(rows) {
        let _ = writeln!(out, "{name:<24} {value:>14}  {what}");
    }
    out
}

pub fn json(rows: &[Row]) -> String {
    let lines = lines(rows);
    let fields: Vec<_> =
        lines.iter().map(|Line { name, value, .. }| format!("\"{name}\": {value}")).collect();
    format!("{{ {} }}", fields.join(", "))
}

pub fn describe(rows: &[Row]) -> String {
    let mut out = String::new();
    for Line { name, unit, what, .. } in lines(rows) {
        let _ = writeln!(out, "{name:<24} {unit:<6} {what}");
    }
    out
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
        assert_eq!((latency.count(), latency.max(), latency.sum()), (1000, 1000, 500_500));
        assert_eq!((latency.shorter_than(3), latency.shorter_than(9)), (7, 511));
        assert_eq!(Latency::default().shorter_than(63), 0);
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
