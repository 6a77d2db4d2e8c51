//! [`Parents`] closes a descriptor in forked children, which would keep the pages of the file.
//!
//! In the child `/dev/null` takes the descriptor's number, so that the drop of a copied `File`
//! closes no unrelated descriptor. No lock protects the slots, so the child never waits.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

use crate::error::OsError;
use crate::internal::sync::{List, MappedWord, Ordering};
use crate::internal::sys::files::file;
use crate::internal::sys::processes::atfork;

/// The descriptor plus one; zero if free.
type Slot = MappedWord;

static SLOTS: List<Slot> = List::new();

#[derive(Debug)]
pub(in crate::internal::sys) struct Parents {
    slot: &'static Slot,
    word: u64,
}

impl Parents {
    pub fn note(descriptor: RawFd) -> Result<Self, OsError> {
        Self::follow_forks()?;
        Ok(Self::note_unforked(descriptor))
    }

    pub fn follow_forks() -> Result<(), OsError> {
        static STEP: atfork::Step = atfork::Step { prepare: || {}, parent: || {}, child };
        atfork::add(&STEP)
    }

    /// Notes a descriptor opened under [`atfork::without_forks`], after [`Parents::follow_forks`].
    pub fn note_unforked(descriptor: RawFd) -> Self {
        let word = u64::from(descriptor.unsigned_abs()) + 1;
        let (set, seen) = (Ordering::AcqRel, Ordering::Relaxed);
        let taken = |slot: &Slot| slot.compare_exchange(0, word, set, seen).is_ok();
        Self { slot: SLOTS.find_or_add(taken, || MappedWord::new(word)), word }
    }
}

impl Drop for Parents {
    fn drop(&mut self) {
        // In a forked child the slot may already hold another descriptor, which the exchange keeps.
        let (free, failed) = (Ordering::Release, Ordering::Relaxed);
        let _ = self.slot.compare_exchange(self.word, 0, free, failed);
    }
}

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
        // SAFETY: both descriptors are open. On failure the child keeps the file.
        unsafe { libc::dup3(null.as_raw_fd(), descriptor as RawFd, libc::O_CLOEXEC) };
        slot.store(0, Ordering::Release);
    }
}
