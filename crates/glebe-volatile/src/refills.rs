//! [`Refills`] tells caches whether they may fill up again after they lost memory.
//!
//! Without a ban, caches would use the shed memory again at once. A ban expires, because the thread
//! that would lift it may have ended. No lock.
//!
//! ```text
//! until   milliseconds since the value was made   0 = allowed
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use glebe_os::internal::sync::{MappedWord, Ordering};

/// The permission for caches to fill up, granted at first. Clones share one value.
///
/// ```
/// use std::time::Duration;
/// use glebe_volatile::Refills;
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
    /// Creates a separate value that allows refills.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Word { made: Instant::now(), until: MappedWord::new(0) }))
    }

    /// Returns true if a cache may keep computed contents.
    #[must_use]
    #[inline]
    pub fn are_allowed(&self) -> bool {
        match self.0.until.load(Ordering::Relaxed) {
            0 => true,
            until => self.0.now() >= until,
        }
    }

    /// Forbids refills for `time` from now on, in place of an earlier ban.
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
