//! [`Pins`]: who reads a zspage just now, so that no slot of it is used anew meanwhile.
//!
//! A fixed number of counters; a zspage has one of them by its number, shared with others, which
//! costs no more than a slot that waits although nobody reads it. So a pin may be taken of any
//! number, even one that no zspage has: that does no harm.
//!
//! Protocol. A *reader* loads the entry, pins the zspage that it names, and loads the entry again:
//! if it is the same, the bytes stay until the pin goes. Whoever *gives a slot up* exchanges the
//! entry first and then looks at the pins. All four are sequentially consistent, so at least one
//! of the two sees the other. A slot given up while pinned is not used before somebody has seen
//! no pin; that load takes the bytes over from whoever unpinned.
//!
//! Cost: two atomic additions a read; the memory does not grow. No lock.

use crate::sync::{after_exchange, AtomicU64, Ordering};

/// Counters: few enough to be of no weight, many enough that readers seldom share a cache line.
const COUNTERS: usize = if cfg!(loom) { 2 } else { 1024 };

/// See the module.
#[derive(Debug)]
pub(crate) struct Pins {
    counters: Box<[AtomicU64]>,
}

impl Pins {
    pub(crate) fn new() -> Self {
        Self { counters: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect() }
    }

    #[inline]
    fn counter(&self, zspage: u32) -> &AtomicU64 {
        // Neighbours, which are often read one after the other, on different cache lines.
        let spread = zspage.wrapping_mul(0x9e37_79b1) >> 16;
        &self.counters[spread as usize % COUNTERS]
    }

    /// Keeps slots of a zspage from being used anew. The caller loads the entry after it.
    #[inline]
    pub(crate) fn pin(&self, zspage: u32) {
        self.counter(zspage).fetch_add(1, Ordering::SeqCst);
        after_exchange();
    }

    /// Ends a [`Pins::pin`].
    #[inline]
    pub(crate) fn unpin(&self, zspage: u32) {
        self.counter(zspage).fetch_sub(1, Ordering::Release);
    }

    /// Whether somebody may be reading. The caller has exchanged the entry before.
    #[inline]
    pub(crate) fn is_pinned(&self, zspage: u32) -> bool {
        after_exchange();
        self.counter(zspage).load(Ordering::SeqCst) != 0
    }

    /// What the counters take.
    pub(crate) fn held_bytes(&self) -> u64 {
        size_of_val(&*self.counters) as u64
    }
}
