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
//! A pointer of the list leads to a slot that was whole before it was stored and is never freed.
//! Descriptors that a slot has are open.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::ptr;

use crate::error::OsError;
use crate::sync::{MappedPtr, MappedWord, Ordering};
use crate::sys::{atfork, file};

struct Slot {
    /// One more than the descriptor; zero is none.
    descriptor: MappedWord,
    next: MappedPtr<Slot>,
}

static FIRST: MappedPtr<Slot> = MappedPtr::new(ptr::null_mut());

fn slots() -> impl Iterator<Item = &'static Slot> {
    let mut at = FIRST.load(Ordering::Acquire).cast_const();
    std::iter::from_fn(move || {
        // SAFETY: null, or a slot that lives for ever.
        let slot = unsafe { at.as_ref() }?;
        at = slot.next.load(Ordering::Relaxed).cast_const();
        Some(slot)
    })
}

/// A descriptor that is the parent's alone; no longer noted when this is dropped, which is before
/// it is closed.
pub(super) struct Parents(&'static Slot);

impl std::fmt::Debug for Parents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parents")
    }
}

impl Parents {
    /// Notes `descriptor`.
    ///
    /// # Errors
    /// As [`atfork::add`].
    pub fn note(descriptor: RawFd) -> Result<Self, OsError> {
        static STEP: atfork::Step = atfork::Step { prepare: || {}, parent: || {}, child };
        atfork::add(&STEP)?;
        let word = u64::from(descriptor.unsigned_abs()) + 1;
        let (set, seen) = (Ordering::AcqRel, Ordering::Relaxed);
        let taken = |slot: &&Slot| slot.descriptor.compare_exchange(0, word, set, seen).is_ok();
        if let Some(slot) = slots().find(taken) {
            return Ok(Self(slot));
        }
        let mut next = FIRST.load(Ordering::Acquire);
        let (descriptor, slot_next) = (MappedWord::new(word), MappedPtr::new(next));
        let slot: &'static Slot = Box::leak(Box::new(Slot { descriptor, next: slot_next }));
        let at = ptr::from_ref(slot).cast_mut();
        while let Err(now) = FIRST.compare_exchange(next, at, set, Ordering::Acquire) {
            slot.next.store(now, Ordering::Relaxed);
            next = now;
        }
        Ok(Self(slot))
    }
}

impl Drop for Parents {
    fn drop(&mut self) {
        self.0.descriptor.store(0, Ordering::Release);
    }
}

/// Puts `/dev/null` in the place of each; where there is none, the descriptors stay.
fn child() {
    let taken = || slots().filter(|slot| slot.descriptor.load(Ordering::Acquire) != 0);
    if taken().next().is_none() {
        return;
    }
    let Ok(null) = file::open(Path::new("/dev/null"), OpenOptions::new().read(true)) else {
        return;
    };
    for slot in taken() {
        let descriptor = slot.descriptor.load(Ordering::Acquire) - 1;
        // SAFETY: both are open. Where it fails the file stays with the child.
        unsafe { libc::dup3(null.as_raw_fd(), descriptor as RawFd, libc::O_CLOEXEC) };
        slot.descriptor.store(0, Ordering::Release);
    }
}
