//! [`Events`]: what has happened to items, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count of each class of items: those that share pages, and large ones.
#[derive(Debug, Default)]
pub struct ByClass([AtomicU64; 2]);

impl ByClass {
    pub(super) fn count(&self, is_large: bool) {
        self.0[usize::from(is_large)].fetch_add(1, Ordering::Relaxed);
    }

    /// The count of a class: 0, or 1 for large items.
    #[must_use]
    pub fn of(&self, class: usize) -> u64 {
        self.0[class].load(Ordering::Relaxed)
    }

    /// The count of all items.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.of(0) + self.of(1)
    }

    fn reset(&self) {
        self.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Events {
    /// Went for others.
    pub evicted: ByClass,
    /// Of them, those that nobody had read.
    pub evicted_unfetched: ByClass,
    /// Lost in a recall, and found so.
    pub recalled: ByClass,
    /// Gave their place up because they were over or dropped.
    pub reclaimed: ByClass,
    /// Of those whose time was over, those that nobody had read.
    pub expired_unfetched: ByClass,
    /// Puts that found no room.
    pub no_memory: ByClass,
    /// Were asked for when their time was over.
    pub get_expired: AtomicU64,
    /// Were asked for after all were dropped.
    pub get_flushed: AtomicU64,
    /// Were stored.
    pub stored: AtomicU64,
    /// Puts of items that were too large.
    pub too_large: AtomicU64,
}

impl Events {
    /// Forgets what has been counted.
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
