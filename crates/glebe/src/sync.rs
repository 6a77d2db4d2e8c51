//! Atomics and locks, from the standard library or, under `--cfg loom`, from the model checker.
//!
//! Nothing else in the crate names `std::sync::atomic` or `std::sync::Mutex`.

#[cfg(loom)]
pub(crate) use loom::sync::{
    atomic::{fence, AtomicU64, Ordering},
    Mutex, MutexGuard, RwLock,
};
#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(loom))]
pub(crate) use std::sync::{
    atomic::{fence, AtomicU64, Ordering},
    Mutex, MutexGuard, RwLock,
};
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

/// A word in mapped memory or in a `static`, where the model checker's own type cannot be.
pub(crate) use std::sync::atomic::{AtomicU64 as MappedWord, AtomicU8 as MappedByte};

/// Locks `mutex`; a panic in an earlier holder is no reason to stop, since no critical section
/// of this crate runs a caller's code.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
