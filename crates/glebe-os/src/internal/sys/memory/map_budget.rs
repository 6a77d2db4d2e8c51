//! [`Budget`] limits how many mappings a part of glebe may use.
//!
//! Beyond `vm.max_map_count` every mmap of the process fails. So each part with many mappings stops
//! at a share of that limit.

use crate::internal::sync::{MappedWord, Ordering};
use crate::internal::sys::memory::map_count::max_map_count;

/// Used if the limit cannot be read.
const MAP_COUNT_DEFAULT: u64 = 65530;

#[derive(Debug)]
pub struct Budget {
    used: MappedWord,
    limit: MappedWord,
    /// Denominator of the part's share.
    share: u64,
    read: fn() -> u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted {
    pub used: u64,
    pub limit: u64,
}

impl Budget {
    pub const fn one_in(share: u64) -> Self {
        Self::new(share, || max_map_count().unwrap_or(MAP_COUNT_DEFAULT))
    }

    const fn new(share: u64, read: fn() -> u64) -> Self {
        Self { used: MappedWord::new(0), limit: MappedWord::new(0), share, read }
    }

    #[cfg(test)]
    fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn share(&'static self) -> Counted {
        Counted { budget: self, mappings: 0 }
    }

    fn add(&self, mappings: u64) -> Result<(), Exhausted> {
        // If `add` fails, the limit is read again, because the administrator may have raised it.
        let add = |limit| {
            let fits = |used: u64| used.checked_add(mappings).filter(|sum| *sum <= limit);
            let order = Ordering::Relaxed;
            self.used.fetch_update(order, order, fits).map_err(|used| Exhausted { used, limit })
        };
        if add(self.limit.load(Ordering::Relaxed)).is_ok() {
            return Ok(());
        }
        let limit = (self.read)() / self.share;
        self.limit.store(limit, Ordering::Relaxed);
        add(limit).map(drop)
    }
}

#[derive(Debug)]
pub struct Counted {
    budget: &'static Budget,
    mappings: u64,
}

impl Counted {
    pub fn set(&mut self, mappings: u64) -> Result<(), Exhausted> {
        if mappings > self.mappings {
            self.budget.add(mappings - self.mappings)?;
        } else {
            self.budget.used.fetch_sub(self.mappings - mappings, Ordering::Relaxed);
        }
        self.mappings = mappings;
        Ok(())
    }

    /// Sets the count even above the budget, because a split by munmap must not fail.
    pub fn set_beyond(&mut self, mappings: u64) {
        if self.set(mappings).is_err() {
            self.budget.used.fetch_add(mappings - self.mappings, Ordering::Relaxed);
            self.mappings = mappings;
        }
    }

    pub fn get(&self) -> u64 {
        self.mappings
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.mappings, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_refused_beyond_the_share_and_given_back() {
        static SMALL: Budget = Budget::new(8, || 47);
        let (mut one, mut other) = (SMALL.share(), SMALL.share());
        one.set(3).unwrap();
        other.set(2).unwrap();
        assert_eq!(other.set(3), Err(Exhausted { used: 5, limit: 5 }));
        assert_eq!(one.set(u64::MAX), Err(Exhausted { used: 5, limit: 5 }));
        assert_eq!(SMALL.used(), 5);
        one.set(2).unwrap();
        other.set(3).unwrap();
        drop(one);
        assert_eq!(SMALL.used(), 3);
        other.set_beyond(9);
        assert_eq!(SMALL.used(), 9);
        assert_eq!(SMALL.share().set(1), Err(Exhausted { used: 9, limit: 5 }));
        other.set(9).unwrap();
        other.set(0).unwrap();
        assert_eq!(SMALL.used(), 0);
    }

    #[test]
    fn a_raised_limit_is_seen_by_whoever_would_be_refused() {
        static READS: MappedWord = MappedWord::new(0);
        static GROWING: Budget = Budget::new(8, || 8 * (READS.fetch_add(1, Ordering::Relaxed) + 1));
        let mut one = GROWING.share();
        one.set(1).unwrap();
        one.set(2).unwrap();
        assert_eq!(READS.load(Ordering::Relaxed), 2);
        assert_eq!(one.set(9), Err(Exhausted { used: 2, limit: 3 }));
    }

    #[test]
    fn the_process_has_the_kernels_limit() {
        static QUARTER: Budget = Budget::one_in(4);
        let limit = max_map_count().unwrap() / 4;
        let mut one = QUARTER.share();
        one.set(1).unwrap();
        let refused = QUARTER.share().set(u64::MAX / 2).unwrap_err();
        assert_eq!((refused.limit, refused.used, one.get()), (limit, 1, 1));
    }
}
