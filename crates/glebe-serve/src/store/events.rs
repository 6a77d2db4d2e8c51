//! [`Events`] counts events of items.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of small items, which share pages, and of large items.
#[derive(Debug, Default)]
pub struct ByClass([AtomicU64; 2]);

impl ByClass {
    pub(super) fn count(&self, is_large: bool) {
        self.0[usize::from(is_large)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the count of class 0 (small) or 1 (large).
    #[must_use]
    pub fn of(&self, class: usize) -> u64 {
        self.0[class].load(Ordering::Relaxed)
    }

    /// Returns the sum.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.of(0) + self.of(1)
    }

    fn reset(&self) {
        self.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// Counts of a store.
#[derive(Debug, Default)]
pub struct Events {
    /// Evicted items.
    pub evicted: ByClass,
    /// Evicted items never read.
    pub evicted_unfetched: ByClass,
    /// Items lost in recalls, counted when the store finds them missing.
    pub recalled: ByClass,
    /// Expired and flushed items that were removed.
    pub reclaimed: ByClass,
    /// Removed expired items never read.
    pub expired_unfetched: ByClass,
    /// Items refused for lack of memory.
    pub no_memory: ByClass,
    /// Lookups of expired items.
    pub get_expired: AtomicU64,
    /// Lookups of flushed items.
    pub get_flushed: AtomicU64,
    /// Items stored.
    pub stored: AtomicU64,
    /// Items refused for their length.
    pub too_large: AtomicU64,
}

impl Events {
    pub(super) fn reset(&self) {
        let by_class = [
            &self.evicted,
            &self.evicted_unfetched,
            &self.recalled,
            &self.reclaimed,
            &self.expired_unfetched,
            &self.no_memory,
        ];
        by_class.iter().for_each(|count| count.reset());
        let all = [&self.get_expired, &self.get_flushed, &self.stored, &self.too_large];
        all.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}
