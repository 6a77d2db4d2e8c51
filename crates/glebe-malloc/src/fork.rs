//! What a fork means for the heap: no claim is under way across it, the child has no keeper and
//! none of mimalloc's locks is held there, and memory that two processes share is dropped and not
//! marked.
//!
//! The step before a fork takes mimalloc's locks and the right to claim slices; those after it give
//! these up. Who holds one of the locks may want the right: so the step has all or waits with none.
//! Where the forking thread itself holds one, in a handler, it goes on after a while. The kernel
//! does not mark a page that a child still maps, nor does it when the child is gone: so while this
//! process may have a child that shares its memory, and in the child once, what would be marked is
//! dropped. Memory that a grandchild has, or a child of its parent, may be marked in vain, and so
//! goes into swap or back near a limit. Processes made by clone(2) run no step: see
//! [`Right`](crate::pages::right::Right). Source: pthread_atfork(3), waitid(2).

use std::mem;
use std::time::{Duration, Instant};

use glebe::sys::atfork::{self, Step};
use glebe::sys::children;

use crate::pages::space::Space;
use crate::sync::{wait, AtomicU32, FutexWord, Ordering};
use crate::{engine, heap, keeper};

static STEP: Step = Step { prepare, parent, child };
/// 1: the fork under way has mimalloc's locks. One fork at a time comes here.
static IS_LOCKED: AtomicU32 = AtomicU32::new(0);
/// How long a fork waits for the locks, and between two looks.
const PATIENCE: Duration = Duration::from_millis(50);
const NAP: Duration = Duration::from_micros(50);

/// Has the steps run around forks from now on; whether they do. At the first object: so they run
/// within those of nearly all others, and see every fork. Allocates, the first time.
pub(crate) fn begin() -> bool {
    atfork::add(&STEP).is_ok()
}

/// Whether no other process shares the memory that is free now. To be asked before it is marked.
pub(crate) fn is_alone(space: &Space) -> bool {
    // Before the look, so that a fork meanwhile stays noted.
    let is_alone = space.shared.swap(0, Ordering::Relaxed) == 0;
    if !is_alone && children::exist() {
        space.shared.store(1, Ordering::Relaxed);
    }
    // What is free already was shared: from the next time on.
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
        // No sleep of the C library's, in which the thread could be cancelled.
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
