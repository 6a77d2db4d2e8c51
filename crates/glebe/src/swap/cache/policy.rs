//! [`Unsaved`] counts the compressed bytes that only ordinary memory holds, and refuses charges
//! above a limit.

use glebe_os::internal::sync::{lock, Mutex};
use glebe_os::units::Bytes;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WritePolicy {
    pub(super) write_back: Bytes,
    pub(super) put_back: Bytes,
}

#[derive(Debug)]
pub(super) struct Unsaved {
    state: Mutex<UnsavedState>,
    has_file: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct UnsavedState {
    pub(super) policy: WritePolicy,
    pub(super) charged: u64,
    has_file: bool,
}

impl UnsavedState {
    pub(super) fn limit(self) -> u64 {
        let write_back = if self.has_file { self.policy.write_back.get() } else { 0 };
        write_back.saturating_add(self.policy.put_back.get())
    }

    fn fits(self, len: usize) -> bool {
        self.charged.saturating_add(len as u64) <= self.limit()
    }

    /// Returns true if writing other pages can make room for `len` bytes.
    pub(super) fn can_wait(self, len: usize) -> bool {
        self.has_file && len as u64 <= self.policy.write_back.get()
    }

    pub(super) fn to_write(self) -> u64 {
        self.charged.saturating_sub(self.policy.put_back.get())
    }
}

impl Unsaved {
    pub(super) fn new(has_file: bool) -> Self {
        let state = UnsavedState { policy: WritePolicy::default(), charged: 0, has_file };
        Self { state: Mutex::new(state), has_file }
    }

    pub(super) fn has_file(&self) -> bool {
        self.has_file
    }

    pub(super) fn get(&self) -> UnsavedState {
        *lock(&self.state)
    }

    pub(super) fn charge(&self, len: usize) -> bool {
        let mut state = lock(&self.state);
        let fits = state.fits(len);
        if fits {
            state.charged += len as u64;
        }
        fits
    }

    pub(super) fn has_room(&self, len: usize) -> bool {
        self.get().fits(len)
    }

    pub(super) fn release(&self, len: usize) {
        lock(&self.state).charged -= len as u64;
    }

    pub(super) fn set(&self, policy: WritePolicy) {
        lock(&self.state).policy = policy;
    }
}
