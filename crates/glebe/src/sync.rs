//! Atomics and locks, from the standard library or, under `--cfg loom`, from the model checker.
//!
//! Nothing else in the crate names `std::sync::atomic` or `std::sync::Mutex`. What is computed once
//! for the whole process is a `First`: a forked child waits for nobody's `OnceLock`.

mod first;
mod list;
#[cfg(loom)]
mod model;

pub(crate) use first::First;
pub(crate) use list::List;

#[cfg(loom)]
pub(crate) use loom::sync::{
    atomic::{fence, Ordering},
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
#[cfg(loom)]
pub(crate) use model::{AtomicU64, AtomicU64 as MappedWord};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    atomic::{fence, AtomicU64, AtomicU64 as MappedWord, Ordering},
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

/// In mapped memory or in a `static`, where the model checker's own types cannot be: so is
/// `MappedWord`, but in models.
pub(crate) use std::sync::atomic::{AtomicPtr as MappedPtr, AtomicU8 as MappedByte};

/// A word that the kernel compares for a thread that waits for it.
pub use std::sync::atomic::AtomicU32 as FutexWord;

/// A lock in a `static`, where the model checker's own type cannot be.
pub(crate) use std::sync::{Mutex as StaticMutex, MutexGuard as StaticMutexGuard};

/// Locks `mutex`; a panic in an earlier holder is no reason to stop, since no critical section
/// of this crate runs a caller's code.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// As [`lock`], with others who only read.
#[inline]
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// As [`lock`], alone.
#[inline]
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// As [`write`], if that needs no waiting.
#[inline]
pub(crate) fn try_write<T>(lock: &RwLock<T>) -> Option<RwLockWriteGuard<'_, T>> {
    lock.try_write().ok()
}

/// Waits for another thread where no lock can be waited for: call [`Backoff::wait`] until it is
/// over. The first turns spin, some microseconds in all; each later one sleeps, up to a
/// millisecond.
///
/// Nothing here yields: sched_yield(2) of a real-time thread lets no ordinary one run on its
/// processor, which may be the one that is waited for.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    turns: u32,
}

impl Backoff {
    /// Turns that spin, each twice as long as the one before.
    #[cfg(not(loom))]
    const SPINS: u32 = 8;
    /// The first sleep is a millisecond divided by two to this power; the next is twice as long.
    #[cfg(not(loom))]
    const HALVINGS: u32 = 6;

    /// Waits a little, longer than the last time.
    #[cold]
    pub(crate) fn wait(&mut self) {
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

/// Starts to fetch the cache line of `word`, without waiting for it.
#[inline]
pub(crate) fn prefetch<T>(word: &T) {
    prefetch_at(std::ptr::from_ref(word).cast());
}

/// Starts to fetch the cache line at an address, which need not be valid.
#[inline]
#[allow(unsafe_code)]
pub(crate) fn prefetch_at(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint: it reads nothing and cannot fault.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Between an exchange of one word and a load of another, all sequentially consistent, where no
/// two threads may each miss what the other exchanged. The orderings say so already; the model
/// checker knows it of fences alone.
#[inline]
pub(crate) fn after_exchange() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
