//! The thread that forked this process. An object needs it to know which of its parent's threads
//! are in the child: that one and no other.
//!
//! Threads have numbers, and a forked child's first thread keeps the one that it had. A child that
//! clone(2) made without the C library learns nothing: there nobody counts as its first thread.

use std::sync::atomic::{AtomicU64, Ordering};

use glebe::sys::atfork;
use glebe::sys::fork::ForkGuard;

use crate::Result;

static NEXT: AtomicU64 = AtomicU64::new(1);
/// The number of the thread that forked this process; zero where none did.
static FORKER: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
}

/// The number of the calling thread, which no other thread of this process or of a parent has.
pub(crate) fn thread() -> u64 {
    NUMBER.with(|number| *number)
}

/// Has every fork from now on note the thread that makes it. May wait for a fork under way.
///
/// # Errors
/// As [`atfork::add`].
pub(crate) fn follow() -> Result<()> {
    static STEP: atfork::Step = atfork::Step { prepare: || {}, parent: || {}, child };
    Ok(atfork::add(&STEP)?)
}

fn child() {
    FORKER.store(thread(), Ordering::Relaxed);
}

/// The number of this process: no parent has it.
pub(crate) fn process() -> u64 {
    ForkGuard::new().generation()
}

/// Whether a thread of the parent lives on in this process.
pub(crate) fn came_along(thread: u64) -> bool {
    !atfork::is_without_steps() && FORKER.load(Ordering::Relaxed) == thread
}
