//! [`Counters`]: how many slices went which way since the start. What there is now follows.
//!
//! Each is relaxed and only rises, so that a reader beside running threads is off by what happens
//! meanwhile, and never for good. One line of the cache: a free counts once, a reuse once.

use crate::sync::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// See the module.
        #[derive(Debug, Default)]
        #[repr(align(64))]
        pub struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        /// What the [`Counters`] were, in slices.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counted {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// What they are now.
            #[must_use]
            pub fn get(&self) -> Counted {
                Counted { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Any -> Live.
    taken,
    /// Live -> Hot.
    freed,
    /// Gone -> Live.
    cold,
    /// Volatile -> Live.
    thawed,
    /// Hot -> Volatile.
    marked,
    /// Hot -> Gone, by us.
    dropped_hot,
    /// Volatile -> Gone, by us.
    dropped_volatile,
    /// Volatile -> Gone, found taken by the kernel, or put into swap.
    lost,
    /// Calls on claimed slices; no slices.
    calls,
    /// Of them refused.
    refused,
}

/// Counts up; not in order with anything.
#[cfg(not(loom))]
#[inline]
pub(crate) fn add(counter: &AtomicU64, slices: usize) {
    if slices > 0 {
        counter.fetch_add(slices as u64, Ordering::Relaxed);
    }
}

impl Counters {
    /// As [`Counters::get`]: who changes `freed` or `cold` later sees what the caller did before,
    /// and what was done before an earlier change the caller sees.
    #[must_use]
    pub fn settle(&self) -> Counted {
        self.freed.fetch_add(0, Ordering::AcqRel);
        self.cold.fetch_add(0, Ordering::AcqRel);
        self.get()
    }
}

impl Counted {
    /// Slices in use.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.taken.saturating_sub(self.freed)
    }

    /// Free and whole.
    #[must_use]
    pub fn hot(&self) -> u64 {
        let reused = self.taken.saturating_sub(self.cold).saturating_sub(self.thawed);
        self.freed.saturating_sub(reused + self.marked + self.dropped_hot)
    }

    /// Free and marked; the kernel may have taken some.
    #[must_use]
    pub fn volatile(&self) -> u64 {
        self.marked.saturating_sub(self.thawed + self.dropped_volatile + self.lost)
    }

    /// Those with memory, as far as we know.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.live() + self.hot() + self.volatile()
    }
}
