//! What every call of an allocator reads of the heap: whether something is due before it, and which
//! addresses are the heap's own.
//!
//! ```text
//! word   63 something is due | ... | 28 always | ... | 3-0 what is due
//! ```
//! As a number with a sign the word is less than any size while something is due. Else it is the
//! least size for which there may be no room. So one comparison answers both.
//!
//! It is a static of the crate that has the entries, which a compiler reaches by one instruction; a
//! static of another crate takes three. What is due is zero nearly always. It is done at an entry,
//! outside of mimalloc's and the C library's locks, and never in a hook.
//!
//! Cost: a load and a comparison. No lock.

use std::ops::Range;

use crate::sync::{AtomicU64, Ordering};

/// What can be due: nobody started the heap; mimalloc's memory is half used; a keeper would pay;
/// the heap is being started.
pub(crate) const START: u64 = 1;
pub(crate) const ARENA: u64 = 1 << 1;
pub(crate) const THREAD: u64 = 1 << 2;
const CLOSED: u64 = 1 << 3;
const DUE: u64 = 1 << 63;
/// The half of its memory that mimalloc has left at least holds what is smaller.
pub(crate) const LARGE: usize = 256 << 20;

/// The gate of the heap: a static, handed over by [`start`](crate::heap::start) or
/// [`at_entry`](crate::heap::at_entry).
#[derive(Debug)]
pub struct Gate {
    word: AtomicU64,
    base: AtomicU64,
    bytes: AtomicU64,
}

impl Gate {
    /// One whose heap nobody started.
    #[allow(clippy::new_without_default)] // A static's.
    #[must_use]
    pub const fn new() -> Self {
        let (base, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { word: AtomicU64::new(DUE | LARGE as u64 | START), base, bytes }
    }

    /// Whether to call [`at_entry`](crate::heap::at_entry) before an object of `size` is
    /// allocated. One load.
    #[inline(always)]
    #[must_use]
    pub fn is_due(&self, size: usize) -> bool {
        self.word.load(Ordering::Relaxed) as i64 <= size as i64
    }

    /// Whether an address is the heap's. Two loads and a comparison.
    #[inline(always)]
    #[must_use]
    pub fn owns(&self, addr: usize) -> bool {
        let (base, bytes) = (self.base.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        (addr as u64).wrapping_sub(base) < bytes
    }

    /// Has every entry find something due until [`Gate::open`].
    pub fn close(&self) {
        self.ask(CLOSED);
    }

    /// Ends what [`Gate::close`] began.
    pub fn open(&self) {
        self.take(CLOSED);
    }

    /// Has something done at the next entry.
    pub(crate) fn ask(&self, due: u64) {
        self.word.fetch_or(DUE | due, Ordering::Relaxed);
    }

    /// Takes what is due of these; the caller does it.
    pub(crate) fn take(&self, of: u64) -> u64 {
        let due = self.word.fetch_and(!of, Ordering::AcqRel) & of;
        let (done, ok, failed) = (LARGE as u64, Ordering::AcqRel, Ordering::Relaxed);
        // Unless more is due by now.
        let _ = self.word.compare_exchange(DUE | done, done, ok, failed);
        due
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_and_what_is_large_is_told_by_one_word() {
        let gate = Gate::new();
        assert!(gate.is_due(0) && gate.is_due(LARGE));
        assert_eq!(gate.take(START), START);
        assert!(!gate.is_due(0) && !gate.is_due(LARGE - 1) && gate.is_due(LARGE));
        gate.ask(ARENA);
        gate.ask(THREAD);
        assert_eq!(gate.take(ARENA), ARENA);
        assert!(gate.is_due(0), "more is due");
        assert_eq!(gate.take(ARENA | THREAD), THREAD);
        assert!(!gate.is_due(0) && gate.is_due(isize::MAX as usize));
        gate.close();
        assert_eq!(gate.take(ARENA | THREAD), 0);
        assert!(gate.is_due(0), "closed");
        gate.open();
        assert!(!gate.is_due(0));
    }
}
