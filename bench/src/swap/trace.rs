//! The order of touches, and the misses of an exact LRU.

use std::num::NonZeroUsize;

use lru::LruCache;
use serde::{Deserialize, Serialize};

use crate::reserve::keyed::Random;

const THETA: f64 = 0.99;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Pattern {
    /// Zipf's law, with frequent pages at random places.
    Zipf,
    Sequential,
}

impl Pattern {
    pub(super) fn touches(self, pages: u64, count: usize) -> Vec<u32> {
        match self {
            Self::Sequential => (0..pages as u32).cycle().take(count).collect(),
            Self::Zipf => zipf(pages, count),
        }
    }
}

fn zipf(pages: u64, count: usize) -> Vec<u32> {
    let mut random = Random::new(7);
    let mut sum = 0.0;
    let weight = |rank: u64| {
        sum += 1.0 / (rank as f64).powf(THETA);
        sum
    };
    let sums: Vec<f64> = (1..=pages).map(weight).collect();
    let order = shuffled(pages, &mut random);
    let pick = |_| {
        let at = random.below(1 << 53) as f64 / (1_u64 << 53) as f64 * sum;
        order[sums.partition_point(|sum| *sum <= at).min(order.len() - 1)]
    };
    (0..count).map(pick).collect()
}

pub(super) fn shuffled(count: u64, random: &mut Random) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

/// Returns the misses of `touches` in an LRU of `budget` pages, filled by `before`.
pub(super) fn lru_misses(budget: u64, before: impl Iterator<Item = u32>, touches: &[u32]) -> u64 {
    let mut lru = LruCache::new(NonZeroUsize::new(budget as usize).unwrap_or(NonZeroUsize::MIN));
    let mut miss = |page: u32| u64::from(lru.put(page, ()).is_none());
    before.for_each(|page| {
        miss(page);
    });
    touches.iter().map(|page| miss(*page)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_pages_are_asked_for_most_and_all_are_once() {
        let touches = Pattern::Zipf.touches(100, 100_000);
        let mut counts = vec![0; 100];
        touches.iter().for_each(|page| counts[*page as usize] += 1);
        counts.sort_unstable();
        // The harmonic number of 100 is about 5.2.
        assert!((18_000..21_000).contains(&counts[99]) && counts[0] > 100, "{counts:?}");
    }

    #[test]
    fn misses_by_hand() {
        let before = || [1, 2, 3].into_iter();
        // The LRU holds pages 2 and 3. Page 3 hits, page 4 evicts 2, page 3 hits, page 2 evicts 4.
        assert_eq!(lru_misses(2, before(), &[3, 4, 3, 2]), 2);
        let round = Pattern::Sequential.touches(3, 9);
        assert_eq!((lru_misses(2, before(), &round), lru_misses(3, before(), &round)), (9, 3));
    }
}
