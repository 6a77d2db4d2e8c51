//! [`Numbers`] are the statistics of a reserve that `glebe top` shows; [`Rates`] are changes
//! between two looks.

use std::time::Duration;

use glebe::page_size;
use glebe::units::{Bytes, Pages};
use serde_json::Value;

/// Names of the statistics, in the order of [`Numbers`].
const NAMES: [&str; 13] = [
    "total_pages",
    "held_pages",
    "live_pages",
    "free_pages",
    "allocs",
    "alloc_sum_ns",
    "loaded",
    "missed",
    "recalled",
    "evicted",
    "alloc_p50_ns",
    "alloc_p99_ns",
    "alloc_max_ns",
];

/// A process of another user may give any numbers, so sums saturate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbers {
    /// Lengths in pages.
    pub total: u64,
    pub held: u64,
    pub cached: u64,
    pub free: u64,
    pub given: u64,
    pub given_ns: u64,
    pub hits: u64,
    pub misses: u64,
    /// Pages that first class took from caches.
    pub recalled: u64,
    pub evicted: u64,
    /// Times in nanoseconds to give a block.
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

impl Numbers {
    /// Returns `None` if the text is not JSON, or of a version without one of the numbers.
    pub fn from_json(text: &str) -> Option<Self> {
        let all: Value = serde_json::from_str(text).ok()?;
        let mut of = NAMES.iter().map(|name| all[*name].as_u64());
        let mut next = || of.next().flatten();
        Some(Self {
            total: next()?,
            held: next()?,
            cached: next()?,
            free: next()?,
            given: next()?,
            given_ns: next()?,
            hits: next()?,
            misses: next()?,
            recalled: next()?,
            evicted: next()?,
            p50: next()?,
            p99: next()?,
            max: next()?,
        })
    }

    /// Returns hits in percent; `None` before the first get.
    pub fn hit_ratio(&self) -> Option<f64> {
        let gets = self.hits.saturating_add(self.misses);
        (gets > 0).then(|| 100.0 * self.hits as f64 / gets as f64)
    }
}

pub fn bytes(pages: u64) -> Bytes {
    Pages::new(pages).checked_bytes(page_size()).unwrap_or(Bytes::new(u64::MAX))
}

/// Changes in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    pub given: f64,
    /// Pages that left caches.
    pub taken: f64,
    /// Hits of the gets between the looks, in percent.
    pub hits: Option<f64>,
    /// Mean nanoseconds to give a block between the looks.
    pub wait: Option<u64>,
}

impl Rates {
    pub fn between(before: &Numbers, now: &Numbers, time: Duration) -> Self {
        let seconds = time.as_secs_f64().max(1e-3);
        let more = |of: fn(&Numbers) -> u64| of(now).saturating_sub(of(before));
        let of_gets = Numbers { hits: more(|it| it.hits), misses: more(|it| it.misses), ..*now };
        let given = more(|it| it.given);
        let taken = more(|it| it.recalled).saturating_add(more(|it| it.evicted));
        Self {
            given: given as f64 / seconds,
            taken: taken as f64 / seconds,
            hits: of_gets.hit_ratio(),
            wait: more(|it| it.given_ns).checked_div(given),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let before =
            Numbers { given: 10, given_ns: 1000, hits: 90, misses: 10, ..Numbers::default() };
        let now = Numbers {
            given: 14,
            given_ns: 9000,
            hits: 93,
            misses: 11,
            recalled: 8,
            evicted: 2,
            ..before
        };
        let rates = Rates::between(&before, &now, Duration::from_secs(2));
        assert_eq!(rates, Rates { given: 2.0, taken: 5.0, hits: Some(75.0), wait: Some(2000) });
        let same = Rates::between(&now, &now, Duration::from_secs(2));
        assert_eq!(same, Rates { given: 0.0, taken: 0.0, hits: None, wait: None });
        // The process has ended, and another has its number.
        assert_eq!(Rates::between(&now, &before, Duration::ZERO), Rates { ..same });
    }

    #[test]
    fn numbers_of_strangers_are_no_danger() {
        let all: Vec<String> =
            NAMES.iter().map(|name| format!("\"{name}\": {}", u64::MAX)).collect();
        let numbers = Numbers::from_json(&format!("{{{}}}", all.join(", "))).unwrap();
        assert_eq!(bytes(numbers.total), Bytes::new(u64::MAX));
        assert!(numbers.hit_ratio().is_some_and(|ratio| ratio <= 101.0));
        assert!(Numbers::from_json("{\"total_pages\": 7}").is_none());
        assert!(Numbers::from_json("no JSON").is_none());
    }
}
