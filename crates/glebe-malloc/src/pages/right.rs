//! [`Right`]: the right to claim slices, which one thread has at a time, and waiting for its end.
//!
//! ```text
//! holder    process that holds the right (its generation), 0 = nobody
//! rung      how often slices were settled or the right was given up
//! waiters   how many threads look at `rung`
//! ```
//!
//! A thread that waits counts itself, changes `rung` by nothing, looks at what it waits for, and
//! sleeps while `rung` stays. Who ends a call settles the slices, counts `rung` up, and wakes if
//! anyone is counted. Of these two changes one comes first, and the other sees what was done
//! before it: the settled slices, or the count. A holder of
//! another process than the caller's is a thread that a clone(2) left behind: nobody waits for it.
//! Lock: it is one. Taken last of all; its holder neither allocates nor takes another.

use crate::sync::{wait, wake_all, AtomicU64, FutexWord, Ordering};

/// See the module.
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

/// The process: a number that no ancestor of it had; never 0.
#[cfg(not(loom))]
fn own() -> u64 {
    glebe::sys::fork::ForkGuard::new().generation()
}

#[cfg(loom)]
fn own() -> u64 {
    1
}

/// Holds the right until it is dropped.
#[derive(Debug)]
pub struct Held<'a> {
    right: &'a Right,
    /// Whether it was taken from a thread that did not come along into this process: what that
    /// thread had claimed is still `Marking`, and no call on it is under way here.
    pub is_inherited: bool,
}

impl Right {
    /// Held by a thread that did not come along into this process.
    #[cfg(loom)]
    pub(super) fn left_behind() -> Self {
        Self { holder: AtomicU64::new(own() + 1), ..Self::default() }
    }

    /// Takes it, and waits for it while another thread of this process has it.
    pub fn take(&self) -> Held<'_> {
        loop {
            if let Some(held) = self.try_take() {
                return held;
            }
            self.wait_until(|| self.holder.load(Ordering::Relaxed) != own());
        }
    }

    /// Takes it if no thread of this process has it.
    pub fn try_take(&self) -> Option<Held<'_>> {
        let (own, holder) = (own(), self.holder.load(Ordering::Relaxed));
        let (ok, failed) = (Ordering::Acquire, Ordering::Relaxed);
        let is_taken =
            holder != own && self.holder.compare_exchange(holder, own, ok, failed).is_ok();
        // Made only where it was taken: it is given up where it is dropped.
        is_taken.then(|| Held { right: self, is_inherited: holder != 0 })
    }

    /// Counts nobody as waiting, in a forked child: the threads that waited are not in it.
    pub fn forget_waiters(&self) {
        self.waiters.store(0, Ordering::Relaxed);
    }

    /// Gives up what a fork's first step took, in the parent or in the child.
    pub fn end(&self) {
        drop(Held { right: self, is_inherited: false });
    }

    /// Whether it is held by a thread that did not come along into this process.
    pub fn is_orphaned(&self) -> bool {
        let holder = self.holder.load(Ordering::Relaxed);
        holder != 0 && holder != own()
    }

    /// Tells all who wait that slices were settled.
    pub fn ring(&self) {
        self.rung.fetch_add(1, Ordering::AcqRel);
        if self.waiters.load(Ordering::Relaxed) != 0 {
            wake_all(&self.rung);
        }
    }

    /// Waits until `is_over`, which is so at the latest when the right is given up.
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
