//! What every call of an allocator reads of the heap: whether something is due, and which addresses
//! are the heap's own.
//!
//! It is a static of the crate that has the entries, which a compiler reaches by one instruction; a
//! static of another crate takes three. What is due is zero nearly always. It is done at an entry,
//! outside of mimalloc's and the C library's locks, and never in a hook.
//!
//! Cost: a load and a comparison. No lock.

use std::ops::Range;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// What can be due: nobody started the heap; mimalloc's memory is half used; a keeper would pay.
pub(crate) const START: u32 = 1;
pub(crate) const ARENA: u32 = 1 << 1;
pub(crate) const THREAD: u32 = 1 << 2;

/// The gate of the heap: a static, handed over by [`start`](crate::heap::start) or
/// [`at_entry`](crate::heap::at_entry).
#[derive(Debug)]
pub struct Gate {
    due: AtomicU32,
    base: AtomicU64,
    bytes: AtomicU64,
}

impl Gate {
    /// One whose heap nobody started.
    #[allow(clippy::new_without_default)] // A static's.
    #[must_use]
    pub const fn new() -> Self {
        let (base, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { due: AtomicU32::new(START), base, bytes }
    }

    /// Whether [`at_entry`](crate::heap::at_entry) is to be called. One load.
    #[inline(always)]
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed) != 0
    }

    /// Whether an address is the heap's. Two loads and a comparison.
    #[inline(always)]
    #[must_use]
    pub fn owns(&self, addr: usize) -> bool {
        let (base, bytes) = (self.base.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        (addr as u64).wrapping_sub(base) < bytes
    }

    /// Has something done at the next entry.
    pub(crate) fn ask(&self, due: u32) {
        self.due.fetch_or(due, Ordering::Relaxed);
    }

    /// Takes what is due of these; the caller does it.
    pub(crate) fn take(&self, of: u32) -> u32 {
        self.due.fetch_and(!of, Ordering::AcqRel) & of
    }

    /// Sets the heap's own addresses; before any other thread allocates.
    pub(crate) fn set_own(&self, addrs: Range<usize>) {
        self.base.store(addrs.start as u64, Ordering::Relaxed);
        self.bytes.store(addrs.len() as u64, Ordering::Relaxed);
    }

    /// How many bytes of addresses are the heap's.
    pub(crate) fn own_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
