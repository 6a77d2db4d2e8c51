//! Statistics: counters that threads do not fight over, latency histograms, and one table a part
//! from which the structure, its text, its JSON, its OpenMetrics text and its glossary are made.
//!
//! A counter is spread over lanes, one cache line group each; a thread adds to its own lane and a
//! reader sums them, so a sum is exact only while nobody adds. Times are nanoseconds, but seconds
//! in OpenMetrics.

mod openmetrics;

use std::cell::Cell;
use std::fmt::Write;

use crate::sync::{prefetch, MappedWord as Word, Ordering};

pub(crate) use openmetrics::{families, openmetrics, openmetrics_of, Set};

/// The lists of numbers of a part's `Stats`, which has `rows`.
macro_rules! listed {
    ($stats:ty) => {
        impl $stats {
            /// Each number that text and JSON show, in their order.
            #[must_use]
            pub fn lines(&self) -> Vec<$crate::stats::Line> {
                $crate::stats::lines(&self.rows())
            }

            /// Name, unit and meaning of each number in text and JSON, one a line.
            #[must_use]
            pub fn describe() -> String {
                $crate::stats::describe(&Self::default().rows())
            }
        }
    };
}

pub(crate) use listed;

/// Shows a part's `Stats`, which has `rows`, as aligned text.
macro_rules! shown {
    ($stats:ty) => {
        impl std::fmt::Display for $stats {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&$crate::stats::text(&self.rows()))
            }
        }
    };
}

pub(crate) use shown;

/// JSON and OpenMetrics of a part's `Stats`, which has `rows`. In OpenMetrics names begin with
/// `prefix`, and `page` is the size of a page. Where one text has the statistics of several owners,
/// each series has the label `label`, whose value is the name of its owner.
macro_rules! texts {
    ($stats:ty, $page:expr, $prefix:literal $(, $label:literal)?) => {
        impl $stats {
            /// One JSON object; names end in their unit where it is not a count.
            #[must_use]
            pub fn to_json(&self) -> String {
                $crate::stats::json(&self.rows())
            }

            /// OpenMetrics 1.0 text; pages of memory are bytes there, and times are seconds.
            #[must_use]
            pub fn to_openmetrics(&self) -> String {
                let set = $crate::stats::Set { labels: Vec::new(), rows: self.rows() };
                $crate::stats::openmetrics($prefix, $page, &[set])
            }
            $(
                /// As `to_openmetrics`, of several in one text: the label
                #[doc = concat!("`", $label, "`")]
                /// holds the name that stands beside each. Names must differ: a series may not come
                /// twice.
                #[must_use]
                pub fn openmetrics_of(all: &[(&str, &Self)]) -> String {
                    let all = all.iter().map(|(name, stats)| (*name, stats.rows()));
                    $crate::stats::openmetrics_of($prefix, $page, $label, all)
                }
            )?
        }
    };
}

pub(crate) use texts;

/// A part's `Stats` and the `Counts` behind them, from one table: counters by their place and
/// name, gauges of pages and durations by their field and name, gauges of `bytes` by their field,
/// each with its meaning. `labels` are fields that no number shows.
macro_rules! statistics {
    (
        labels { $($label:ident: $label_type:ty, $label_what:literal;)* }
        counters { $($variant:ident $name:ident $unit:ident $what:literal;)* }
        gauges { $($gauge:ident $gauge_name:literal $gauge_what:literal;)* }
        $(bytes { $($bytes:ident $bytes_what:literal;)* })?
        durations { $($field:ident $field_name:literal $family:literal $field_what:literal;)* }
    ) => {
        /// A counter's place.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Counter { $($variant,)* }

        /// The counters of one owner.
        #[derive(Debug)]
        pub(crate) struct Counts($crate::stats::Counters<{ [$(Counter::$variant),*].len() }>);

        impl Counts {
            pub(crate) fn new() -> Self {
                Self($crate::stats::Counters::new())
            }

            #[inline]
            pub(crate) fn add(&self, counter: Counter, n: u64) {
                self.0.add(counter as usize, n);
            }

            /// The counters, summed; the caller adds the rest.
            pub(crate) fn sum(&self) -> Stats {
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
              pub $field: $crate::stats::Latency,)*
        }

        impl Stats {
            fn rows(&self) -> Vec<$crate::stats::Row<'_>> {
                use $crate::stats::{Row, Unit, Value};
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

        $crate::stats::listed!(Stats);
    };
}

pub(crate) use statistics;

/// Lanes of every striped counter: a power of two, more than threads usually run at once.
#[doc(hidden)]
pub const LANES: usize = 16;

/// The calling thread's lane, below [`LANES`]: threads that run at once are spread over them.
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

    /// As [`Counters::add`], without a locked instruction: only for a counter that no two threads
    /// add to at once.
    #[inline]
    pub(crate) fn add_alone(&self, counter: usize, n: u64) {
        let word = &self.lanes[0].0[counter];
        word.store(word.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    /// Returns the count of this thread's lane, which other threads may share.
    #[inline]
    pub(crate) fn here(&self, counter: usize) -> u64 {
        self.lanes[lane()].0[counter].load(Ordering::Relaxed)
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
///
/// `max` and `sum` share a cache line; the count is the sum of the buckets.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Histogram {
    totals: Totals,
    buckets: [Word; BUCKETS],
}

/// Aligned to its size, and so on one cache line.
#[derive(Debug)]
#[repr(align(16))]
struct Totals {
    max: Word,
    sum: Word,
}

const _: () = assert!(size_of::<Totals>() == 16);

impl Histogram {
    pub(crate) fn new() -> Self {
        let totals = Totals { max: Word::new(0), sum: Word::new(0) };
        Self { totals, buckets: std::array::from_fn(|_| Word::new(0)) }
    }

    /// Starts to fetch the buckets of durations that are usual where that is worth a thought.
    #[inline]
    pub(crate) fn prefetch(&self) {
        const USUAL: [usize; 2] = [bucket_of(USUAL_NANOS), bucket_of(2 * USUAL_NANOS)];
        USUAL.into_iter().for_each(|bucket| prefetch(&self.buckets[bucket]));
    }

    /// Adds one duration.
    #[inline]
    pub(crate) fn record(&self, nanos: u64) {
        let Totals { max, sum } = &self.totals;
        self.buckets[bucket_of(nanos)].fetch_add(1, Ordering::Relaxed);
        // Seldom a new maximum: looking first pays for the sum.
        if nanos > max.load(Ordering::Relaxed) {
            max.fetch_max(nanos, Ordering::Relaxed);
        }
        sum.fetch_add(nanos, Ordering::Relaxed);
    }

    /// What has been recorded so far.
    pub(crate) fn snapshot(&self) -> Latency {
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
    sum: u64,
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

    /// All together; exact, and beside [`Latency::count`] only while nobody records.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// How many were shorter than `2^power` nanoseconds; exact.
    fn shorter_than(&self, power: u32) -> u64 {
        let end = bucket_of(1 << power).min(self.buckets.len());
        self.buckets[..end].iter().sum()
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

/// What a single value is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Events or things that are no memory.
    Count,
    /// Base pages.
    Pages,
    /// Bytes of memory.
    Bytes,
    /// Nanoseconds, summed.
    Nanos,
}

/// What a row of a statistics table holds.
#[derive(Debug)]
pub(crate) enum Value<'a> {
    /// Only grows.
    Counter(Unit, u64),
    /// Goes up and down.
    Gauge(Unit, u64),
    /// Durations, and their name in OpenMetrics.
    Durations(&'static str, &'a Latency),
}

/// One row of a statistics table: its name, which ends in its unit where that is not plain, its
/// value and what it means.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) name: &'static str,
    pub(crate) value: Value<'a>,
    pub(crate) what: &'static str,
}

/// One number of a statistics table, as text and JSON show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its name, which ends in its unit where that is not plain.
    pub name: String,
    /// What it is counted in.
    pub unit: &'static str,
    /// The number.
    pub value: u64,
    /// What it means.
    pub what: String,
}

/// Part of the name, share of all, and what such a quantile tells.
const QUANTILES: [(&str, f64, &str); 4] = [
    ("p50", 0.5, "half took no longer"),
    ("p90", 0.9, "9 of 10 took no longer"),
    ("p99", 0.99, "99 of 100 took no longer"),
    ("p999", 0.999, "999 of 1000 took no longer"),
];

/// The rows as single numbers.
pub(crate) fn lines(rows: &[Row]) -> Vec<Line> {
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

/// The rows as aligned text.
pub(crate) fn text(rows: &[Row]) -> String {
    let mut out = String::new();
    for Line { name, value, what, .. } in lines(rows) {
        let _ = writeln!(out, "{name:<24} {value:>14}  {what}");
    }
    out
}

/// The rows as one JSON object.
pub(crate) fn json(rows: &[Row]) -> String {
    let lines = lines(rows);
    let fields: Vec<_> =
        lines.iter().map(|Line { name, value, .. }| format!("\"{name}\": {value}")).collect();
    format!("{{ {} }}", fields.join(", "))
}

/// Name, unit and meaning of every number, without the values.
pub(crate) fn describe(rows: &[Row]) -> String {
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
