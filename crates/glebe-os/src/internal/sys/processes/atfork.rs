//! Runs steps around every fork(2) of the process, in any thread.
//!
//! *prepare* functions run before the fork, the last step first. *parent* or *child* functions run
//! after it, the first step first, so that locks are released in reverse order. All run on the
//! forking thread, the only thread of the child: a *child* function must not wait for another. It
//! may allocate, because allocators register their handlers earlier, at the first allocation.
//!
//! A child of clone(2) without the C library runs no steps, and neither do its forks. It may
//! inherit locks whose holders it lacks; [`is_without_steps`] detects it. vfork(2), and clone with
//! `CLONE_VM`, share the parent's memory and change nothing.
//!
//! Lock: one word, held from *prepare* to the end of *parent* or *child*: forks run one at a time.
//! A signal handler that forks deadlocks if its thread holds a lock that a step takes.
//! Source: pthread_atfork(3).
//!
//! # Safety
//! The functions given to the C library are never unloaded and do not unwind: a panic in a step
//! aborts.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use crate::error::OsError;
use crate::internal::sync::{Backoff, MappedPtr, MappedWord, Ordering};
use crate::internal::sys::fault::point;
use crate::internal::sys::processes::fork::ForkGuard;

/// Functions to run around a fork.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Runs before the fork: takes locks, so that no thread that the child lacks holds them.
    pub prepare: fn(),
    /// Runs in the parent, even after a failed fork: releases the locks.
    pub parent: fn(),
    /// Runs in the child: releases its copies of the locks.
    pub child: fn(),
}

const STEPS_MAX: usize = 8;

static STEPS: [MappedPtr<Step>; STEPS_MAX] = [const { MappedPtr::new(ptr::null_mut()) }; STEPS_MAX];
/// The generation ([`ForkGuard::generation`]) of the process that holds the lock, or 0. A holder of
/// another generation did not survive a fork, and the lock is free.
static HOLDER: MappedWord = MappedWord::new(0);
/// The generation of the process that has the steps: set by the first [`add`], then in each child.
static KNOWN: MappedWord = MappedWord::new(0);
/// 1 if the current fork runs the steps.
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

/// Adds a last step, for good, unless it is already present.
///
/// # Errors
/// Fails if pthread_atfork(3) does, if all slots are used, or if this process [was made without the
/// steps](is_without_steps).
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

/// Runs `body` while no thread forks through the C library: children inherit no unfinished file or
/// mapping. `body` adds no step, and is short.
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

/// Returns true if a fork that ran no steps made this process or an ancestor. Costs two loads.
#[must_use]
#[inline]
pub fn is_without_steps() -> bool {
    let known = KNOWN.load(Ordering::Relaxed);
    known != 0 && ForkGuard::new().generation() != known
}

#[cfg(test)]
mod tests;
