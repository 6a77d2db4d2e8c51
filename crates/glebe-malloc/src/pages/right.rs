//! [`Right`] is the right to claim slices, which at most one thread holds.
//!
//! ```text
//! holder    process that holds the right (its generation), 0 = nobody
//! rung      how often slices were settled or the right was given up
//! waiters   how many threads look at `rung`
//! ```
//!
//! Ordering: a waiter adds one to `waiters` and zero to `rung`, checks its condition, and sleeps
//! while `rung` stays. A thread that ends a system call settles the slices, adds one to `rung`, and
//! wakes waiters if `waiters` is not zero. If the waiter's addition to `rung` is the later one, the
//! waiter sees the settled slices; else the other thread sees the waiter.
//!
//! No thread waits for a holder in another process: a raw clone(2) left that holder behind. Lock:
//! taken last; the holder neither allocates nor waits for another lock.

use crate::sync::{wait, wake_all, AtomicU64, FutexWord, Ordering};

/// The right to claim slices.
#[derive(Debug)]
pub struct Right {
    holder: AtomicU64,
    rung: FutexWord,
    waiters: AtomicU64,
}

impl Default for Right {
    fn default() -> Self {
        Self { holder: AtomicU64::new(0), rung: FutexWord::new(0), waiters: AtomicU64::new(0) }
    }
}

/// Returns the process's number, unlike any ancestor's; never 0.
#[cfg(not(loom))]
fn own() -> u64 {
    glebe::internal::sys::processes::fork::ForkGuard::new().generation()
}

#[cfg(loom)]
fn own() -> u64 {
    1
}

/// Holds the right until dropped.
#[derive(Debug)]
pub struct Held<'a> {
    right: &'a Right,
    /// True if the last holder is not in this process. The holder's slices are still `Marking`, but
    /// no system call on them runs.
    pub is_inherited: bool,
}

impl Right {
    #[cfg(loom)]
    pub(super) fn left_behind() -> Self {
        Self { holder: AtomicU64::new(own() + 1), ..Self::default() }
    }

    /// Takes the right. Waits while another thread of this process holds it.
    pub fn take(&self) -> Held<'_> {
        loop {
            if let Some(held) = self.try_take() {
                return held;
            }
            self.wait_until(|| self.holder.load(Ordering::Relaxed) != own());
        }
    }

    /// Takes the right unless a thread of this process holds it.
    pub fn try_take(&self) -> Option<Held<'_>> {
        let (own, holder) = (own(), self.holder.load(Ordering::Relaxed));
        let (ok, failed) = (Ordering::Acquire, Ordering::Relaxed);
        let is_taken =
            holder != own && self.holder.compare_exchange(holder, own, ok, failed).is_ok();
        // Made only on success, because dropping it gives up the right.
        is_taken.then(|| Held { right: self, is_inherited: holder != 0 })
    }

    /// Forgets the waiters in a forked child, which lacks their threads.
    pub fn forget_waiters(&self) {
        self.waiters.store(0, Ordering::Relaxed);
    }

    /// Gives up the right that a fork's *prepare* took, in parent or child.
    pub fn end(&self) {
        drop(Held { right: self, is_inherited: false });
    }

    /// Returns true if the holder is not in this process.
    pub fn is_orphaned(&self) -> bool {
        let holder = self.holder.load(Ordering::Relaxed);
        holder != 0 && holder != own()
    }

    /// Wakes waiters after slices were settled.
    pub fn ring(&self) {
        self.rung.fetch_add(1, Ordering::AcqRel);
        if self.waiters.load(Ordering::Relaxed) != 0 {
            wake_all(&self.rung);
        }
    }

    /// Waits until `is_over` returns true. Checks `is_over` at first and after each `ring`.
    #[cold]
    pub fn wait_until(&self, mut is_over: impl FnMut() -> bool) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        loop {
            let seen = self.rung.fetch_add(0, Ordering::AcqRel);
            if is_over() {
                break;
            }
            wait(&self.rung, seen, None);
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.right.holder.store(0, Ordering::Release);
        self.right.ring();
    }
}
