//! Keeps the heap sound across fork(2), by pthread_atfork(3) handlers (*steps*).
//!
//! During a fork, no thread claims a slice (64 KiB). The child starts without the [`keeper`] thread
//! and with mimalloc's locks free. The kernel keeps a marked page that a child has mapped, even
//! after the child's end. So the heap drops free memory instead of marking it, while this process
//! may have a child, and once in each child.
//!
//! Locks: *prepare* takes the right to claim slices, then mimalloc's locks. If a lock is taken,
//! *prepare* gives the right back and tries again, because the lock's holder may wait for the
//! right. If a handler forks within mimalloc, *prepare* goes on without the locks after `PATIENCE`.
//! Children of a raw clone(2) run no steps: see [`Right`](crate::pages::right::Right). Source:
//! waitid(2).

use std::mem;
use std::time::{Duration, Instant};

use glebe::internal::sys::processes::atfork::{self, Step};
use glebe::internal::sys::processes::children;

use crate::pages::space::Space;
use crate::sync::{wait, AtomicU32, FutexWord, Ordering};
use crate::{engine, heap, keeper};

static STEP: Step = Step { prepare, parent, child };
/// 1 if the current fork holds mimalloc's locks.
static IS_LOCKED: AtomicU32 = AtomicU32::new(0);
/// Longest wait for the locks, and the pause between tries.
const PATIENCE: Duration = Duration::from_millis(50);
const NAP: Duration = Duration::from_micros(50);

/// Registers the steps at the heap's first allocation. Libraries that register later run their
/// *prepare* before mimalloc is locked, and so can allocate. Returns true if the steps will run.
/// The first call allocates.
pub(crate) fn begin() -> bool {
    atfork::add(&STEP).is_ok()
}

/// Returns true if no other process shares the free memory. To be called before marking.
pub(crate) fn is_alone(space: &Space) -> bool {
    // A fork after this line sets the flag again.
    let is_alone = space.shared.swap(0, Ordering::Relaxed) == 0;
    if !is_alone && children::exist() {
        space.shared.store(1, Ordering::Relaxed);
    }
    // Returns false once after a fork, because the kernel also keeps marked pages that an ended
    // child had mapped.
    is_alone
}

fn prepare() {
    let begin = Instant::now();
    loop {
        let held = heap::space().map(|space| space.hold());
        let is_locked = engine::try_lock();
        if is_locked || begin.elapsed() > PATIENCE {
            IS_LOCKED.store(is_locked.into(), Ordering::Relaxed);
            mem::forget(held);
            return;
        }
        drop(held);
        // A sleep of the C library would be a cancellation point.
        wait(&FutexWord::new(0), 0, Some(NAP));
    }
}

fn parent() {
    after();
    if IS_LOCKED.swap(0, Ordering::Relaxed) != 0 {
        engine::unlock();
    }
}

fn child() {
    engine::renew_locks();
    keeper::is_gone();
    if let Some(space) = heap::space() {
        space.right().forget_waiters();
    }
    after();
}

fn after() {
    if let Some(space) = heap::space() {
        space.shared.store(1, Ordering::Relaxed);
        space.right().end();
    }
}
