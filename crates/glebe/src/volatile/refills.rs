//! [`Refills`]: whether caches may fill up again, or memory was just taken from them.
//!
//! A value that whoever watches memory sets and that caches read before they compute what they
//! lost. Without it what was shed would be back at once. A "no" ends by itself, so that a watcher
//! that has ended, or did not come along into a forked child, keeps no cache empty. Cost of a look:
//! one load while refills are allowed, and a look at the clock while they are not. No lock.
//!
//! ```text
//! until   milliseconds since the value was made   0 = allowed
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::{MappedWord, Ordering};

/// Whether caches may fill up again. Clones are the same value; a new one says yes.
///
/// ```
/// use std::time::Duration;
/// use glebe::volatile::Refills;
///
/// let watcher = Refills::new();
/// let cache = watcher.clone();
/// watcher.withhold(Duration::from_secs(60));
/// assert!(!cache.are_allowed());
/// watcher.allow();
/// assert!(cache.are_allowed());
/// ```
#[derive(Clone, Debug)]
pub struct Refills(Arc<Word>);

#[derive(Debug)]
struct Word {
    made: Instant,
    until: MappedWord,
}

impl Refills {
    /// A value of its own, which allows refills.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Word { made: Instant::now(), until: MappedWord::new(0) }))
    }

    /// Whether a cache may compute again what it lost. What a program cannot do without it
    /// computes either way, and does not keep.
    #[must_use]
    #[inline]
    pub fn are_allowed(&self) -> bool {
        match self.0.until.load(Ordering::Relaxed) {
            0 => true,
            until => self.0.now() >= until,
        }
    }

    /// Allows no refill for so long, from now on. A second call replaces the first.
    pub fn withhold(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.0.until.store(self.0.now().saturating_add(millis).max(1), Ordering::Relaxed);
    }

    /// Allows refills at once.
    pub fn allow(&self) {
        self.0.until.store(0, Ordering::Relaxed);
    }
}

impl Word {
    #[cold]
    fn now(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Default for Refills {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_no_is_seen_by_clones_and_ends_by_itself() {
        let (watcher, other) = (Refills::new(), Refills::new());
        let cache = watcher.clone();
        assert!(cache.are_allowed());
        watcher.withhold(Duration::MAX);
        assert!(!cache.are_allowed() && other.are_allowed());
        watcher.allow();
        assert!(cache.are_allowed());
        watcher.withhold(Duration::from_millis(20));
        assert!(!cache.are_allowed());
        std::thread::sleep(Duration::from_millis(40));
        assert!(cache.are_allowed());
    }
}
