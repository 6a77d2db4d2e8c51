//! [`ChildZeros`]: addresses that a forked child finds zeros at, and not nothing.
//!
//! Memory that a child does not inherit is a hole there, and a touch of a hole is SIGSEGV. That is
//! no answer to a program whose language hides addresses from it. A list, one entry for each
//! range that such a program can reach, is locked over every fork; the child maps zeros at each
//! range before other code runs in it. A range in which something was mapped meanwhile, or that the
//! kernel refuses, stays as it is. A child of a raw clone(2) finds holes. Cost: nothing but the
//! entry; a system call an entry in a child.
//!
//! # Safety
//! The guard in the static is of a lock that lives as long as the process.
#![allow(unsafe_code)]

use std::sync::PoisonError;

use crate::error::OsError;
use crate::sync::{StaticMutex, StaticMutexGuard};
use crate::sys::{atfork, mmap};
use crate::units::Bytes;

type List = Vec<(usize, Bytes)>;

static LIST: StaticMutex<List> = StaticMutex::new(Vec::new());

/// The list's lock, while a fork is under way.
struct Held(Option<StaticMutexGuard<'static, List>>);

// SAFETY: made and dropped by the forking thread; forks go one after the other.
unsafe impl Send for Held {}

static HELD: StaticMutex<Held> = StaticMutex::new(Held(None));

/// A range that forked children find zeros at while this lives. Whole base pages.
#[derive(Debug)]
pub struct ChildZeros {
    addr: usize,
    len: Bytes,
}

impl ChildZeros {
    /// Lists a range that children do not inherit.
    ///
    /// # Errors
    /// As [`atfork::add`].
    pub fn new(addr: usize, len: Bytes) -> Result<Self, OsError> {
        static STEP: atfork::Step = atfork::Step { prepare, parent, child };
        atfork::add(&STEP)?;
        list().push((addr, len));
        Ok(Self { addr, len })
    }

    /// How many ranges are listed.
    #[must_use]
    pub fn count() -> usize {
        if atfork::is_without_steps() {
            return 0;
        }
        list().len()
    }
}

impl Drop for ChildZeros {
    fn drop(&mut self) {
        // In a process without steps the lock may be held for ever.
        if atfork::is_without_steps() {
            return;
        }
        let mut list = list();
        if let Some(at) = list.iter().position(|range| *range == (self.addr, self.len)) {
            list.swap_remove(at);
        }
    }
}

fn list() -> StaticMutexGuard<'static, List> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

fn prepare() {
    let list = list();
    HELD.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(list);
}

fn parent() {
    let list = HELD.lock().unwrap_or_else(PoisonError::into_inner).0.take();
    drop(list);
}

fn child() {
    let list = HELD.lock().unwrap_or_else(PoisonError::into_inner).0.take();
    for (addr, len) in list.iter().flat_map(|list| list.iter()) {
        let _ = mmap::zeros_at(*addr, *len);
    }
}
