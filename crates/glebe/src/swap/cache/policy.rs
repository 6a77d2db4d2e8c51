//! [`Policy`]: how many bytes of an area may be in ordinary memory alone; and [`Unsaved`], which
//! counts them.
//!
//! Invariant: what is charged is at most the two limits together when a page is charged. Bytes are
//! those of blocks, as the codec made them. Lock: one, for an addition.

use crate::sync::{lock, Mutex};
use crate::units::Bytes;

/// How many bytes of stored pages may be in ordinary memory and not in the file, compressed.
/// [`Policy::default`] is write-through: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Policy {
    /// Write-back: bytes that are to be written, when a store finds no room for more. It counts
    /// only where there is a file.
    pub(super) write_back: Bytes,
    /// Put-back: bytes that need not be written, beside those, with a file or without.
    pub(super) put_back: Bytes,
}

/// The bytes of an area that its file does not have.
#[derive(Debug)]
pub(super) struct Unsaved {
    state: Mutex<State>,
    has_file: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) policy: Policy,
    /// Bytes charged.
    pub(super) charged: u64,
    has_file: bool,
}

impl State {
    /// The most that may be charged.
    pub(super) fn limit(self) -> u64 {
        let write_back = if self.has_file { self.policy.write_back.get() } else { 0 };
        write_back.saturating_add(self.policy.put_back.get())
    }

    fn fits(self, len: usize) -> bool {
        self.charged.saturating_add(len as u64) <= self.limit()
    }

    /// Whether there would be room for `len` once others are written.
    pub(super) fn can_wait(self, len: usize) -> bool {
        self.has_file && len as u64 <= self.policy.write_back.get()
    }

    /// Bytes that write-back may write: those of put-back stay.
    pub(super) fn to_write(self) -> u64 {
        self.charged.saturating_sub(self.policy.put_back.get())
    }
}

impl Unsaved {
    pub(super) fn new(has_file: bool) -> Self {
        let state = State { policy: Policy::default(), charged: 0, has_file };
        Self { state: Mutex::new(state), has_file }
    }

    pub(super) fn has_file(&self) -> bool {
        self.has_file
    }

    pub(super) fn get(&self) -> State {
        *lock(&self.state)
    }

    /// Charges `len` bytes if they fit.
    pub(super) fn charge(&self, len: usize) -> bool {
        let mut state = lock(&self.state);
        let fits = state.fits(len);
        if fits {
            state.charged += len as u64;
        }
        fits
    }

    /// Whether `len` bytes would fit now.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.get().fits(len)
    }

    /// Takes `len` bytes off that were charged.
    pub(super) fn release(&self, len: usize) {
        lock(&self.state).charged -= len as u64;
    }

    /// Sets the limits.
    pub(super) fn set(&self, policy: Policy) {
        lock(&self.state).policy = policy;
    }
}
