//! Atomics and locks of the standard library or, under `--cfg loom`, of the model checker.
//!
//! In this crate, only this module and tests name `std::sync::atomic` and `std::sync::Mutex`.
//! `First` replaces `OnceLock::get_or_init`, which may make a forked child wait for ever.

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

/// Atomics for mapped memory and statics, which cannot hold loom's types.
pub use std::sync::atomic::{AtomicPtr as MappedPtr, AtomicU8 as MappedByte};

pub use std::sync::atomic::AtomicU32 as FutexWord;

/// A lock for statics, which cannot hold loom's type.
pub use std::sync::{Mutex as StaticMutex, MutexGuard as StaticMutexGuard};

/// Locks the mutex, even after a panic under the lock.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Returns `None` if another thread has the lock.
#[inline]
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[inline]
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[inline]
pub fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[inline]
pub fn try_write<T>(lock: &RwLock<T>) -> Option<RwLockWriteGuard<'_, T>> {
    match lock.try_write() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Waits for another thread without a lock: spins for some microseconds, then sleeps up to a
/// millisecond at a time.
///
/// `wait` never calls sched_yield(2), because a real-time thread that yields lets no ordinary
/// thread run on its processor.
#[derive(Debug, Default)]
pub struct Backoff {
    turns: u32,
}

impl Backoff {
    #[cfg(not(loom))]
    const SPINS: u32 = 8;
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

#[inline]
#[allow(unsafe_code)]
pub fn prefetch_at(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch cannot fault.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Orders a sequentially consistent exchange before a load of another word, so that two threads
/// cannot both miss the other's exchange. Only loom needs the fence, because its `SeqCst` is
/// weaker.
#[inline]
pub fn after_exchange() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
