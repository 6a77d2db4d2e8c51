//! [`Gate`] shows each allocating call whether work is due, and which addresses are the heap's.
//!
//! ```text
//! word   63 work is due | ... | 28 always set | ... | 3-0 kinds of due work
//! ```
//! While work is due, the word is a negative number, below any size. Otherwise the word is `LARGE`
//! (bit 28), the least size that may need another arena. So one comparison with the size suffices.
//!
//! Each crate with entry points owns its gate as a static, because reaching another crate's static
//! takes three instructions instead of one. Entry points do the work, because they hold no lock of
//! mimalloc or the C library. Hooks only ask for work. Cost: a load and a comparison. No lock.

use std::ops::Range;

use crate::sync::{AtomicU64, Ordering};

/// Bits of due work: `START` starts the heap, `ARENA` hands over an arena after half of the last is
/// used, `THREAD` starts the keeper thread. `CLOSED` keeps work due until [`Gate::open`].
pub(crate) const START: u64 = 1;
pub(crate) const ARENA: u64 = 1 << 1;
pub(crate) const THREAD: u64 = 1 << 2;
const CLOSED: u64 = 1 << 3;
const DUE: u64 = 1 << 63;
/// Least size in bytes for which an entry point makes room in mimalloc.
pub(crate) const LARGE: usize = 256 << 20;

/// The heap's gate, passed to [`start`](crate::heap::start) and
/// [`at_entry`](crate::heap::at_entry).
#[derive(Debug)]
pub struct Gate {
    word: AtomicU64,
    base: AtomicU64,
    bytes: AtomicU64,
}

impl Gate {
    /// Returns the gate of an unstarted heap.
    #[allow(clippy::new_without_default)] // Belongs in a static.
    #[must_use]
    pub const fn new() -> Self {
        let (base, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { word: AtomicU64::new(DUE | LARGE as u64 | START), base, bytes }
    }

    /// Returns true if [`at_entry`](crate::heap::at_entry) must precede an allocation of `size`
    /// bytes.
    #[inline(always)]
    #[must_use]
    pub fn is_due(&self, size: usize) -> bool {
        self.word.load(Ordering::Relaxed) as i64 <= size as i64
    }

    /// Returns true if the address is the heap's.
    #[inline(always)]
    #[must_use]
    pub fn owns(&self, addr: usize) -> bool {
        let (base, bytes) = (self.base.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        (addr as u64).wrapping_sub(base) < bytes
    }

    /// Makes work due at every entry, until [`Gate::open`].
    pub fn close(&self) {
        self.ask(CLOSED);
    }

    /// Ends [`Gate::close`].
    pub fn open(&self) {
        self.take(CLOSED);
    }

    pub(crate) fn ask(&self, due: u64) {
        self.word.fetch_or(DUE | due, Ordering::Relaxed);
    }

    /// Takes the due work among `of`, which the caller must do.
    pub(crate) fn take(&self, of: u64) -> u64 {
        let due = self.word.fetch_and(!of, Ordering::AcqRel) & of;
        let (done, ok, failed) = (LARGE as u64, Ordering::AcqRel, Ordering::Relaxed);
        // Fails if other work is due.
        let _ = self.word.compare_exchange(DUE | done, done, ok, failed);
        due
    }

    /// Sets the heap's addresses, before a second thread allocates.
    pub(crate) fn set_own(&self, addrs: Range<usize>) {
        self.base.store(addrs.start as u64, Ordering::Relaxed);
        self.bytes.store(addrs.len() as u64, Ordering::Relaxed);
    }

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
