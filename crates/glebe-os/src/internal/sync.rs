//! Atomics and locks from the standard library or, under `--cfg loom`, from the model checker.
//!
//! Only this module and tests name `std::sync::atomic` and `std::sync::Mutex`. A value computed
//! once per process is a `First`, because a forked child may wait for ever for a `OnceLock`.

mod first;
mod list;
#[cfg(loom)]
mod model;

use std::sync::TryLockError;

pub use first::First;
pub use list::List;

#[cfg(loom)]
pub use loom::sync::{
    atomic::{fence, Ordering},
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
#[cfg(loom)]
pub use model::{AtomicU64, AtomicU64 as MappedWord};
#[cfg(not(loom))]
pub use std::sync::{
    atomic::{fence, AtomicU64, AtomicU64 as MappedWord, Ordering},
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

/// Atomics for mapped memory and statics, where loom's types cannot be. `MappedWord` is one too,
/// except in models.
pub use std::sync::atomic::{AtomicPtr as MappedPtr, AtomicU8 as MappedByte};

/// A word that the kernel compares for a waiting thread (futex).
pub use std::sync::atomic::AtomicU32 as FutexWord;

/// A lock for statics, where loom's own type cannot be.
pub use std::sync::{Mutex as StaticMutex, MutexGuard as StaticMutexGuard};

/// Locks `mutex` even if a holder panicked: no critical section of this crate runs a caller's code.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Locks for reading, like [`lock`].
#[inline]
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Locks for writing, like [`lock`].
#[inline]
pub fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Locks for writing, or returns `None` if the lock is held.
#[inline]
pub fn try_write<T>(lock: &RwLock<T>) -> Option<RwLockWriteGuard<'_, T>> {
    match lock.try_write() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Waits for another thread where no lock can be used: call [`Backoff::wait`] until the wait is
/// over. The first turns spin, some microseconds in all. Later turns sleep, up to a millisecond
/// each.
///
/// No turn yields: sched_yield(2) of a real-time thread lets no ordinary thread run on its
/// processor, and the awaited thread may need that processor.
#[derive(Debug, Default)]
pub struct Backoff {
    turns: u32,
}

impl Backoff {
    /// Turns that spin, each twice as long as the last.
    #[cfg(not(loom))]
    const SPINS: u32 = 8;
    /// The first sleep is 1 ms / 2^HALVINGS; each next is twice as long.
    #[cfg(not(loom))]
    const HALVINGS: u32 = 6;

    #[cold]
    pub fn wait(&mut self) {
        #[cfg(loom)]
        loom::thread::yield_now();
        #[cfg(not(loom))]
        if self.turns < Self::SPINS {
            (0..1 << self.turns).for_each(|_| std::hint::spin_loop());
        } else {
            let halvings = (Self::SPINS + Self::HALVINGS).saturating_sub(self.turns);
            std::thread::sleep(std::time::Duration::from_millis(1) / (1 << halvings));
        }
        self.turns = self.turns.saturating_add(1);
    }
}

#[inline]
pub fn prefetch<T>(word: &T) {
    prefetch_at(std::ptr::from_ref(word).cast());
}

/// Prefetches the cache line at an address, valid or not.
#[inline]
#[allow(unsafe_code)]
pub fn prefetch_at(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, which reads nothing and cannot fault.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Separates an exchange of one word from a load of another, both sequentially consistent, so that
/// two threads cannot each miss the other's exchange. The orderings ensure this; loom needs a fence
/// to see it.
#[inline]
pub fn after_exchange() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
