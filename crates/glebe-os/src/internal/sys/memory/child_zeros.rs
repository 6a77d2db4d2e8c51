//! [`ChildZeros`] makes forked children find zeros, not a hole, in memory that they do not inherit.
//!
//! A touch of a hole raises SIGSEGV, which a program cannot avoid if its language hides addresses.
//! Every fork locks the list of ranges, and the child maps zeros at each range before other code
//! runs. Children of a raw clone(2) keep the holes.
#![allow(unsafe_code)]

use std::sync::PoisonError;

use crate::error::OsError;
use crate::internal::sync::{StaticMutex, StaticMutexGuard};
use crate::internal::sys::memory::mmap;
use crate::internal::sys::processes::atfork;
use crate::units::Bytes;

type List = Vec<(usize, Bytes)>;

static LIST: StaticMutex<List> = StaticMutex::new(Vec::new());

/// The guard of the list's lock during a fork.
struct Held(Option<StaticMutexGuard<'static, List>>);

// SAFETY: the forking thread makes and drops the guard; forks run one at a time.
unsafe impl Send for Held {}

static HELD: StaticMutex<Held> = StaticMutex::new(Held(None));

#[derive(Debug)]
pub struct ChildZeros {
    addr: usize,
    len: Bytes,
}

impl ChildZeros {
    pub fn new(addr: usize, len: Bytes) -> Result<Self, OsError> {
        static STEP: atfork::Step = atfork::Step { prepare, parent, child };
        atfork::add(&STEP)?;
        list().push((addr, len));
        Ok(Self { addr, len })
    }

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
        // A child that ran no fork handlers may have inherited a held lock.
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
