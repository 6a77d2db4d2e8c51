//! [`Counters`] has totals of slices (64 KiB) that changed state, and of calls. Current numbers of
//! slices are differences of totals.
//!
//! A read during changes may combine old and new totals. The totals of slices share a cache line.

use crate::sync::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Totals of slices that changed state.
        #[derive(Debug, Default)]
        #[repr(align(64))]
        pub struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        /// Values of [`Counters`], in slices.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counted {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Returns the current values.
            #[must_use]
            pub fn get(&self) -> Counted {
                Counted { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Any state to Live.
    taken,
    /// Live to Hot.
    freed,
    /// Gone to Live.
    cold,
    /// Volatile to Live.
    thawed,
    /// Hot to Volatile.
    marked,
    /// Hot to Gone, by the heap.
    dropped_hot,
    /// Volatile to Gone, by the heap.
    dropped_volatile,
    /// Volatile to Gone: taken by the kernel, or swapped out.
    lost,
    /// System calls on claimed slices.
    calls,
    /// Calls that the kernel refused.
    refused,
}

#[cfg(not(loom))]
#[inline]
pub(crate) fn add(counter: &AtomicU64, slices: usize) {
    if slices > 0 {
        counter.fetch_add(slices as u64, Ordering::Relaxed);
    }
}

impl Counters {
    /// Returns the values. A thread that later adds to `freed` or `cold` sees the caller's writes,
    /// and the caller sees what threads wrote before earlier additions.
    #[must_use]
    pub fn settle(&self) -> Counted {
        self.freed.fetch_add(0, Ordering::AcqRel);
        self.cold.fetch_add(0, Ordering::AcqRel);
        self.get()
    }
}

impl Counted {
    /// Returns the number of slices in use.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.taken.saturating_sub(self.freed)
    }

    /// Returns the number of unmarked free slices.
    #[must_use]
    pub fn hot(&self) -> u64 {
        let reused = self.taken.saturating_sub(self.cold).saturating_sub(self.thawed);
        self.freed.saturating_sub(reused + self.marked + self.dropped_hot)
    }

    /// Returns the number of marked free slices; the kernel may have taken some.
    #[must_use]
    pub fn volatile(&self) -> u64 {
        self.marked.saturating_sub(self.thawed + self.dropped_volatile + self.lost)
    }

    /// Returns the number of slices with memory, as far as known.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.live() + self.hot() + self.volatile()
    }
}
