//! [`add`] adds a step that runs around every fork(2) of the process, in any thread.
//!
//! *prepare* functions run before the fork, the last step first. *parent* or *child* functions run
//! after the fork, the first step first, so locks are released in reverse order. All run on the
//! forking thread, the child's only thread, so *child* must not wait for another thread. *child*
//! may allocate, because allocators registered their handlers earlier.
//!
//! clone(2) without the C library runs no steps. Forks of its child run none either, because a step
//! could wait for a lock whose holder the child lacks. Children of vfork(2) and `CLONE_VM` need no
//! steps, because they share the memory.
//!
//! The lock `HOLDER` is held from *prepare* to the end of *parent* or *child*. A signal handler
//! that forks deadlocks if its thread holds a lock that a step takes. Source: pthread_atfork(3).
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use crate::error::OsError;
use crate::internal::sync::{Backoff, MappedPtr, MappedWord, Ordering};
use crate::internal::sys::fault::point;
use crate::internal::sys::processes::fork::ForkGuard;

#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Takes locks before the fork, because another thread's locks would stay locked in the child.
    pub prepare: fn(),
    /// Releases the locks in the parent, even after a failed fork.
    pub parent: fn(),
    /// Releases the child's copies of the locks.
    pub child: fn(),
}

const STEPS_MAX: usize = 8;

static STEPS: [MappedPtr<Step>; STEPS_MAX] = [const { MappedPtr::new(ptr::null_mut()) }; STEPS_MAX];
/// Generation ([`ForkGuard`]) of the process that has the lock, or 0. The lock is free in a process
/// of another generation.
static HOLDER: MappedWord = MappedWord::new(0);
/// Generation of this process, or of an ancestor after a fork without steps; 0 before the first
/// [`add`].
static KNOWN: MappedWord = MappedWord::new(0);
static IS_RUNNING: MappedWord = MappedWord::new(0);

fn acquire() {
    let own = ForkGuard::new().generation();
    let mut backoff = Backoff::default();
    loop {
        let holder = HOLDER.load(Ordering::Relaxed);
        let is_free = holder != own;
        let taken = || HOLDER.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed);
        if is_free && taken().is_ok() {
            return;
        }
        backoff.wait();
    }
}

fn release() {
    HOLDER.store(0, Ordering::Release);
}

fn steps() -> impl DoubleEndedIterator<Item = &'static Step> {
    // SAFETY: `add` stored only `&'static Step`.
    STEPS.iter().filter_map(|slot| unsafe { slot.load(Ordering::Acquire).as_ref() })
}

extern "C" fn prepare() {
    acquire();
    let runs = !is_without_steps();
    IS_RUNNING.store(runs.into(), Ordering::Relaxed);
    if runs {
        steps().rev().for_each(|step| (step.prepare)());
    }
}

extern "C" fn parent() {
    if IS_RUNNING.load(Ordering::Relaxed) != 0 {
        steps().for_each(|step| (step.parent)());
    }
    release();
}

extern "C" fn child() {
    if IS_RUNNING.load(Ordering::Relaxed) != 0 {
        KNOWN.store(ForkGuard::new().generation(), Ordering::Relaxed);
        steps().for_each(|step| (step.child)());
    }
    release();
}

/// Adds `step` as the last one, unless present. Fails if pthread_atfork(3) fails, in a process
/// [without steps](is_without_steps), and beyond `STEPS_MAX` steps.
pub fn add(step: &'static Step) -> Result<(), OsError> {
    acquire();
    let added = add_locked(step);
    release();
    added.map_err(|source| OsError::new("pthread_atfork", "steps around fork", source))
}

fn add_locked(step: &'static Step) -> io::Result<()> {
    if KNOWN.load(Ordering::Relaxed) == 0 {
        point("pthread_atfork")?;
        // SAFETY: the functions live as long as the process.
        let errno = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        KNOWN.store(ForkGuard::new().generation(), Ordering::Relaxed);
    } else if is_without_steps() {
        return Err(io::Error::other("the process was cloned without the C library"));
    }
    if steps().any(|known| ptr::eq(known, step)) {
        return Ok(());
    }
    let free = STEPS.iter().find(|slot| slot.load(Ordering::Relaxed).is_null());
    let slot = free.ok_or_else(|| io::Error::other(format!("{STEPS_MAX} steps already")))?;
    slot.store(ptr::from_ref(step).cast_mut(), Ordering::Release);
    Ok(())
}

/// Runs `body` while no thread forks, so children inherit no unfinished file or mapping. `body`
/// must be short and add no step.
pub fn without_forks<T>(body: impl FnOnce() -> T) -> T {
    struct Held;
    impl Drop for Held {
        fn drop(&mut self) {
            release();
        }
    }
    acquire();
    let _held = Held;
    body()
}

/// Returns true if a raw clone(2), which runs no fork steps, made this process or an ancestor.
#[must_use]
#[inline]
pub fn is_without_steps() -> bool {
    let known = KNOWN.load(Ordering::Relaxed);
    known != 0 && ForkGuard::new().generation() != known
}

#[cfg(test)]
mod tests;
