//! What a fork means for the heap: no claim is under way across it, the child has no keeper, and
//! memory that two processes share is dropped and not marked.
//!
//! The step before a fork takes the right to claim slices; those after it give that up. The kernel
//! does not mark a page that a child still maps, nor does it when the child is gone: so while this
//! process may have a child that shares its memory, and in the child once, what would be marked is
//! dropped. Memory that a grandchild has, or a child of its parent, may be marked in vain, and so
//! goes into swap or back near a limit. Processes made by clone(2) run no step: see
//! [`Right`](crate::pages::right::Right). Source: pthread_atfork(3), waitid(2).

use glebe::sys::atfork::{self, Step};
use glebe::sys::children;

use crate::sync::{AtomicU32, Ordering};
use crate::{heap, keeper};

static STEP: Step = Step { prepare, parent, child };
/// 1: there was a fork, and nobody saw that its child is gone.
static SHARED: AtomicU32 = AtomicU32::new(0);

/// Has the steps run around forks from now on; whether they do. At the first object: so they run
/// within those of nearly all others, and see every fork. Allocates, the first time.
pub(crate) fn begin() -> bool {
    atfork::add(&STEP).is_ok()
}

/// Whether no other process shares the memory that is free now. To be asked before it is marked.
pub(crate) fn is_alone() -> bool {
    let is_alone = SHARED.load(Ordering::Relaxed) == 0;
    if !is_alone && !children::exist() {
        // What is free already was shared: from the next time on.
        SHARED.store(0, Ordering::Relaxed);
    }
    is_alone
}

fn prepare() {
    if let Some(space) = heap::space() {
        std::mem::forget(space.hold());
    }
}

fn parent() {
    after();
}

fn child() {
    keeper::is_gone();
    after();
}

fn after() {
    SHARED.store(1, Ordering::Relaxed);
    if let Some(space) = heap::space() {
        space.right().end();
    }
}
