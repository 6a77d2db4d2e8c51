//! [`came_along`] tells if a thread forked this process, because only that thread of the parent
//! continues in the child.
//!
//! A forked child's first thread keeps its number. In a child of clone(2) without the C library no
//! pthread_atfork(3) handler runs, so [`came_along`] returns false.

use std::sync::atomic::{AtomicU64, Ordering};

use glebe::internal::sys::processes::atfork;
use glebe::internal::sys::processes::fork::ForkGuard;

use crate::Result;

static NEXT: AtomicU64 = AtomicU64::new(1);
/// Number of the thread that forked this process; 0 if none did.
static FORKER: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
}

/// Returns the calling thread's number, which is unique in this process and its parents.
pub(crate) fn thread() -> u64 {
    NUMBER.with(|number| *number)
}

/// Makes later forked children set `FORKER`. May wait for a fork under way.
///
/// # Errors
/// The errors of [`atfork::add`].
pub(crate) fn follow() -> Result<()> {
    static STEP: atfork::Step = atfork::Step { prepare: || {}, parent: || {}, child };
    Ok(atfork::add(&STEP)?)
}

fn child() {
    FORKER.store(thread(), Ordering::Relaxed);
}

/// Returns the number of this process, which no parent has.
pub(crate) fn process() -> u64 {
    ForkGuard::new().generation()
}

/// Returns true if this thread of the parent continues in this process.
pub(crate) fn came_along(thread: u64) -> bool {
    !atfork::is_without_steps() && FORKER.load(Ordering::Relaxed) == thread
}
