//! [`Pins`] counts the readers of zspages, so that slots are not reused while they are read.
//!
//! Several zspages share a counter, so a slot may wait although its own zspage has no reader.
//!
//! A *reader* loads an object's entry, pins its zspage, and loads the entry again. If both loads
//! are equal, the bytes stay until the unpin. A thread that frees a slot exchanges the entry, then
//! loads the pins. These accesses are sequentially consistent, so the reader sees the new entry, or
//! the other thread sees the pin.
//!
//! A slot is reused only after a load of zero pins, which synchronizes with the last unpin. So all
//! reads happen before the reuse.

use glebe_os::internal::sync::{after_exchange, AtomicU64, Ordering};

/// Enough that readers seldom share a cache line.
const COUNTERS: usize = if cfg!(loom) { 2 } else { 1024 };

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
        // Zspages with adjacent numbers, often read in turn, get counters in different cache lines.
        let spread = zspage.wrapping_mul(0x9e37_79b1) >> 16;
        &self.counters[spread as usize % COUNTERS]
    }

    /// The caller loads the entry afterwards.
    #[inline]
    pub(crate) fn pin(&self, zspage: u32) {
        self.counter(zspage).fetch_add(1, Ordering::SeqCst);
        after_exchange();
    }

    #[inline]
    pub(crate) fn unpin(&self, zspage: u32) {
        self.counter(zspage).fetch_sub(1, Ordering::Release);
    }

    /// The caller has exchanged the entry.
    #[inline]
    pub(crate) fn is_pinned(&self, zspage: u32) -> bool {
        after_exchange();
        self.counter(zspage).load(Ordering::SeqCst) != 0
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        size_of_val(&*self.counters) as u64
    }
}
