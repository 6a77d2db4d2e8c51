//! Steps around every fork(2) of the process, in whatever library's thread it happens.
//!
//! One `pthread_atfork` for all of them. A step is three functions; before the fork the *prepare*
//! ones run, last step first, then in the parent and in the child the others, first step first, so
//! that locks are released in the reverse order. They run on the forking thread. The child has no
//! other thread: its function must not wait for one. It may allocate: an allocator's own handlers
//! were added before, at the first allocation, and so have run.
//!
//! A child made by clone(2) without the C library runs no step: locks may be held there by threads
//! that it lacks. It is known by the word of [`ForkGuard`] ([`is_without_steps`]), and its own
//! forks run no step either. After vfork(2), or clone with `CLONE_VM`, memory is the parent's own,
//! so nothing differs.
//!
//! Lock: one word, held from *prepare* to the end of the other functions, so that forks of several
//! threads go one after the other. A thread that forks in a signal handler while it holds a lock
//! that a step takes waits for itself. Source: pthread_atfork(3).
//!
//! # Safety
//! The functions handed to the C library are of this file, never unloaded, and do not unwind:
//! a panic in a step aborts.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use crate::error::OsError;
use crate::sync::{Backoff, MappedPtr, MappedWord, Ordering};
use crate::sys::fault::point;
use crate::sys::fork::ForkGuard;

/// What is to be done around a fork.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Before it: takes locks, so that none is held by a thread that the child lacks.
    pub prepare: fn(),
    /// After it in the parent, or where it failed: releases them.
    pub parent: fn(),
    /// After it in the child: releases them there.
    pub child: fn(),
}

/// There are a few parts with steps, each with one.
const STEPS_MAX: usize = 8;

static STEPS: [MappedPtr<Step>; STEPS_MAX] = [const { MappedPtr::new(ptr::null_mut()) }; STEPS_MAX];
/// The generation of the process ([`ForkGuard::generation`]) in which the lock is held, or zero.
/// Another generation than the caller's means a thread that did not come along.
static HOLDER: MappedWord = MappedWord::new(0);
/// The generation that the steps know: that of the first [`add`], and of children since.
static KNOWN: MappedWord = MappedWord::new(0);
/// Whether the fork under way runs the steps; guarded by the lock.
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

/// The steps, first one first; those that are missing stand at the end.
fn steps() -> impl DoubleEndedIterator<Item = &'static Step> {
    // SAFETY: what is not null was a `&'static Step` when `add` stored it.
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

/// Adds a step behind those that are there, unless it is one of them. It is never taken away.
///
/// # Errors
/// What pthread_atfork(3) refuses, that there is no room, or that this process
/// [was made without the steps](is_without_steps).
pub fn add(step: &'static Step) -> Result<(), OsError> {
    acquire();
    let added = add_locked(step);
    release();
    added.map_err(|source| OsError::new("pthread_atfork", "steps around fork", source))
}

fn add_locked(step: &'static Step) -> io::Result<()> {
    if KNOWN.load(Ordering::Relaxed) == 0 {
        point("pthread_atfork")?;
        // SAFETY: three functions of this file that live as long as the process.
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

/// Runs `body` while no thread of the process forks through the C library: what it opens and maps
/// is in no child before `body` has seen to it. It adds no step, and is short: forks wait for it.
pub(crate) fn without_forks<T>(body: impl FnOnce() -> T) -> T {
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

/// Whether this process was made, at any remove, from one that had steps, without running them.
/// Two loads.
#[must_use]
#[inline]
pub fn is_without_steps() -> bool {
    let known = KNOWN.load(Ordering::Relaxed);
    known != 0 && ForkGuard::new().generation() != known
}

#[cfg(test)]
mod tests;
