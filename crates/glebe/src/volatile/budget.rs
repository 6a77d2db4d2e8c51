//! [`Budget`]: how many ranges of the caller's memory may be armed at once.
//!
//! A range armed in the middle of a mapping makes three of it, and beyond `vm.max_map_count` every
//! mmap of the process fails, whoever calls: glebe stops at an eighth of that number. Counted over
//! the whole process in one word; no lock. A forked child has the same mappings and the same count.

use crate::sync::{MappedWord, Ordering};
use crate::sys::map_count::max_map_count;

/// The share of the process's mappings that armed ranges may reach, as its denominator.
const SHARE: u64 = 8;
/// The kernel's default, where the number cannot be read.
const MAP_COUNT_DEFAULT: u64 = 65530;

/// Counts armed ranges.
#[derive(Debug)]
pub(crate) struct Budget {
    armed: MappedWord,
    /// Ranges, as last read; zero before.
    limit: MappedWord,
    read: fn() -> u64,
}

static PROCESS: Budget = Budget::new(|| max_map_count().unwrap_or(MAP_COUNT_DEFAULT));

/// The ranges that the process has armed and may arm at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted {
    pub(crate) armed: u64,
    pub(crate) limit: u64,
}

impl Budget {
    const fn new(read: fn() -> u64) -> Self {
        Self { armed: MappedWord::new(0), limit: MappedWord::new(0), read }
    }

    /// That of the process.
    pub(crate) fn of_process() -> &'static Self {
        &PROCESS
    }

    /// Ranges armed now.
    #[cfg(test)]
    fn armed(&self) -> u64 {
        self.armed.load(Ordering::Relaxed)
    }

    /// No range yet, on this budget.
    pub(crate) fn share(&'static self) -> Armed {
        Armed { budget: self, ranges: 0 }
    }

    fn add(&self, ranges: u64) -> Result<(), Exhausted> {
        // The limit is read again only before a refusal: it changes by the administrator's hand.
        let add = |limit| {
            let fits = |armed: u64| armed.checked_add(ranges).filter(|sum| *sum <= limit);
            let order = Ordering::Relaxed;
            self.armed.fetch_update(order, order, fits).map_err(|armed| Exhausted { armed, limit })
        };
        if add(self.limit.load(Ordering::Relaxed)).is_ok() {
            return Ok(());
        }
        let limit = (self.read)() / SHARE;
        self.limit.store(limit, Ordering::Relaxed);
        add(limit).map(drop)
    }
}

/// The armed ranges of one region, counted as long as this lives.
#[derive(Debug)]
pub(crate) struct Armed {
    budget: &'static Budget,
    ranges: u64,
}

impl Armed {
    /// Sets their number; more than before only within the budget.
    pub(crate) fn set(&mut self, ranges: u64) -> Result<(), Exhausted> {
        if ranges > self.ranges {
            self.budget.add(ranges - self.ranges)?;
        } else {
            self.budget.armed.fetch_sub(self.ranges - ranges, Ordering::Relaxed);
        }
        self.ranges = ranges;
        Ok(())
    }

    /// Sets their number, beyond the budget too: for what must not fail, as when the end of the
    /// middle of a range makes two of it.
    pub(crate) fn set_beyond(&mut self, ranges: u64) {
        if self.set(ranges).is_err() {
            self.budget.armed.fetch_add(ranges - self.ranges, Ordering::Relaxed);
            self.ranges = ranges;
        }
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        self.budget.armed.fetch_sub(self.ranges, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_refused_beyond_an_eighth_and_given_back() {
        static SMALL: Budget = Budget::new(|| 47);
        let (mut one, mut other) = (SMALL.share(), SMALL.share());
        one.set(3).unwrap();
        other.set(2).unwrap();
        assert_eq!(other.set(3), Err(Exhausted { armed: 5, limit: 5 }));
        assert_eq!(one.set(u64::MAX), Err(Exhausted { armed: 5, limit: 5 }));
        assert_eq!(SMALL.armed(), 5);
        one.set(2).unwrap();
        other.set(3).unwrap();
        drop(one);
        assert_eq!(SMALL.armed(), 3);
        other.set_beyond(9);
        assert_eq!(SMALL.armed(), 9);
        assert_eq!(SMALL.share().set(1), Err(Exhausted { armed: 9, limit: 5 }));
        other.set(9).unwrap();
        other.set(0).unwrap();
        assert_eq!(SMALL.armed(), 0);
    }

    #[test]
    fn a_raised_limit_is_seen_by_whoever_would_be_refused() {
        static READS: MappedWord = MappedWord::new(0);
        static GROWING: Budget = Budget::new(|| 8 * (READS.fetch_add(1, Ordering::Relaxed) + 1));
        let mut armed = GROWING.share();
        armed.set(1).unwrap();
        armed.set(2).unwrap();
        assert_eq!(READS.load(Ordering::Relaxed), 2);
        assert_eq!(armed.set(9), Err(Exhausted { armed: 2, limit: 3 }));
    }

    #[test]
    fn the_process_has_the_kernels_limit() {
        let limit = max_map_count().unwrap() / SHARE;
        let mut armed = Budget::of_process().share();
        armed.set(1).unwrap();
        let refused = Budget::of_process().share().set(u64::MAX / 2).unwrap_err();
        assert_eq!(refused.limit, limit);
        assert!(refused.armed >= 1);
    }
}
