//! [`Pins`] records which zspages are being read, so that their slots are not reused meanwhile.
//!
//! Zspages share a fixed number of counters, so a slot may wait without a reader. A pin of any
//! number is harmless.
//!
//! A *reader* loads the entry, pins the zspage that it names, and loads the entry again. If both
//! loads are equal, the bytes stay until the unpin. A thread that *gives a slot up* exchanges the
//! entry first, then loads the pins. All four operations are sequentially consistent. So the reader
//! sees the new entry, or the other thread sees the pin.
//!
//! A slot given up while pinned is reused only after a thread loads zero pins. That load
//! synchronizes with the last unpin, so all reads of the slot happen before its reuse.
//!
//! Cost: two atomic additions per read. No lock.

use glebe_os::internal::sync::{after_exchange, AtomicU64, Ordering};

/// Few enough to weigh little, enough that readers seldom share a cache line.
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
        // Neighbours are often read one after another: they get different cache lines.
        let spread = zspage.wrapping_mul(0x9e37_79b1) >> 16;
        &self.counters[spread as usize % COUNTERS]
    }

    /// Keeps slots from being reused. The caller loads the entry afterwards.
    #[inline]
    pub(crate) fn pin(&self, zspage: u32) {
        self.counter(zspage).fetch_add(1, Ordering::SeqCst);
        after_exchange();
    }

    #[inline]
    pub(crate) fn unpin(&self, zspage: u32) {
        self.counter(zspage).fetch_sub(1, Ordering::Release);
    }

    /// Returns true if a thread may be reading. The caller has exchanged the entry.
    #[inline]
    pub(crate) fn is_pinned(&self, zspage: u32) -> bool {
        after_exchange();
        self.counter(zspage).load(Ordering::SeqCst) != 0
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        size_of_val(&*self.counters) as u64
    }
}
