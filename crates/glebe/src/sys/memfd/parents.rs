//! [`Parents`]: a descriptor that a forked child is not to keep, since it would keep the pages of
//! its file when the parent is killed.
//!
//! In the child the number stays taken, by `/dev/null`, so that what was inherited with it cannot
//! close somebody else's descriptor. A child that a raw clone made has the file for as long as it
//! lives.
//!
//! Slots are in a list that only grows, are used again, and are taken without a lock: the child
//! waits for nobody. Cost: two system calls for each fork and one for each such descriptor.
//!
//! # Safety
//! Descriptors that a slot has are open.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

use crate::error::OsError;
use crate::sync::{List, MappedWord, Ordering};
use crate::sys::{atfork, file};

/// One more than the descriptor; zero is none.
type Slot = MappedWord;

static SLOTS: List<Slot> = List::new();

/// A descriptor that is the parent's alone; no longer noted when this is dropped, which is before
/// it is closed.
#[derive(Debug)]
pub(in crate::sys) struct Parents {
    slot: &'static Slot,
    word: u64,
}

impl Parents {
    /// Notes `descriptor`.
    ///
    /// # Errors
    /// As [`atfork::add`].
    pub fn note(descriptor: RawFd) -> Result<Self, OsError> {
        Self::follow_forks()?;
        Ok(Self::note_unforked(descriptor))
    }

    /// Adds the step around fork that the notes need.
    ///
    /// # Errors
    /// As [`atfork::add`].
    pub fn follow_forks() -> Result<(), OsError> {
        static STEP: atfork::Step = atfork::Step { prepare: || {}, parent: || {}, child };
        atfork::add(&STEP)
    }

    /// As [`Parents::note`], of one opened under [`atfork::without_forks`], after
    /// [`Parents::follow_forks`].
    pub fn note_unforked(descriptor: RawFd) -> Self {
        let word = u64::from(descriptor.unsigned_abs()) + 1;
        let (set, seen) = (Ordering::AcqRel, Ordering::Relaxed);
        let taken = |slot: &Slot| slot.compare_exchange(0, word, set, seen).is_ok();
        Self { slot: SLOTS.find_or_add(taken, || MappedWord::new(word)), word }
    }
}

impl Drop for Parents {
    fn drop(&mut self) {
        // Not where a forked child drops its parent's: the child may use the slot for itself.
        let (free, failed) = (Ordering::Release, Ordering::Relaxed);
        let _ = self.slot.compare_exchange(self.word, 0, free, failed);
    }
}

/// Puts `/dev/null` in the place of each; where there is none, the descriptors stay.
fn child() {
    let taken = || SLOTS.iter().filter(|slot| slot.load(Ordering::Acquire) != 0);
    if taken().next().is_none() {
        return;
    }
    let Ok(null) = file::open(Path::new("/dev/null"), OpenOptions::new().read(true)) else {
        return;
    };
    for slot in taken() {
        let descriptor = slot.load(Ordering::Acquire) - 1;
        // SAFETY: both are open. Where it fails the file stays with the child.
        unsafe { libc::dup3(null.as_raw_fd(), descriptor as RawFd, libc::O_CLOEXEC) };
        slot.store(0, Ordering::Release);
    }
}
