//! The table of volatile regions, which a forked child goes on with.
//!
//! A region is inherited by a fork, so its handle is too, unlike those of reserves: there is one
//! table for a line of descent. A step around fork locks all of it, so that no lock is held in a
//! child by a thread that it lacks; it is added behind the library's own, and so locks first. A
//! child made without the C library runs no step, and every call there is refused.
//!
//! Locks, in their order: the table's list of places while one is added; a place's; the region's.
//!
//! # Safety
//! The guards in the static are made and dropped by the forking thread; forks go one after the
//! other.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use glebe::extent::Extent;
use glebe::sys::atfork;
use glebe::volatile::{Error, Region};

use crate::failure::Failure;
use crate::table::{AllHeld, Key, Kind, Shared};

/// A region, and what C has not been told of it.
#[derive(Debug)]
pub(super) struct Volatile {
    pub(super) region: Region,
    /// Runs that an unmark found lost and its caller's array had no room for.
    pub(super) untold: Mutex<Vec<Extent>>,
}

static REGIONS: Shared<Arc<Volatile>> = Shared::new();
static ADDING: Mutex<()> = Mutex::new(());

/// A region's handle has no process: it means the same in every child.
const PROCESS: u32 = 0;

/// Locks a mutex; what it guards is changed by single assignments, so a panic leaves it whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses a child in which locks may be held for ever.
pub(super) fn check_fork() -> Result<(), Failure> {
    if atfork::is_without_steps() {
        return Err(Failure::Forked);
    }
    Ok(())
}

/// The handle of the region that `make` makes.
pub(super) fn insert(make: impl FnOnce() -> Result<Region, Failure>) -> Result<u64, Failure> {
    check_fork()?;
    let region = make()?;
    follow_forks()?;
    let new = Arc::new(Volatile { region, untold: Mutex::default() });
    let adding = lock(&ADDING);
    let key = REGIONS.insert_with("volatile regions", || Ok(new))?;
    drop(adding);
    Ok(key.handle(Kind::Volatile, PROCESS))
}

fn find(handle: u64) -> Result<Key, Failure> {
    check_fork()?;
    match Key::of(handle, Kind::Volatile) {
        Some((key, PROCESS)) => Ok(key),
        _ => Err(unknown(handle)),
    }
}

fn unknown(handle: u64) -> Failure {
    Failure::BadHandle { kind: Kind::Volatile.name(), handle }
}

/// Calls `call` on the region of a handle, which is not unmapped meanwhile.
pub(super) fn with<R>(
    handle: u64,
    call: impl FnOnce(&Volatile) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let key = find(handle)?;
    REGIONS.with(key, |of| call(of)).unwrap_or(Err(unknown(handle)))
}

/// Ends a handle, once the calls under way on it have ended.
pub(super) fn remove(handle: u64) -> Result<Arc<Volatile>, Failure> {
    let key = find(handle)?;
    REGIONS.remove_if(key, || Ok(())).unwrap_or(Err(unknown(handle)))
}

/// What is held over a fork.
#[derive(Debug)]
struct Held {
    _all: AllHeld<'static, Arc<Volatile>>,
    _adding: MutexGuard<'static, ()>,
}

// SAFETY: as the file's head says, the guards stay with the forking thread.
unsafe impl Send for Held {}

static HELD: Mutex<Option<Held>> = Mutex::new(None);

/// Adds the step around fork, once; after the library's, which the first region has added.
fn follow_forks() -> Result<(), Failure> {
    static STEP: atfork::Step = atfork::Step { prepare, parent: release, child: release };
    static IS_ADDED: Mutex<bool> = Mutex::new(false);
    let mut is_added = lock(&IS_ADDED);
    if !*is_added {
        atfork::add(&STEP).map_err(Error::from)?;
        *is_added = true;
    }
    Ok(())
}

fn prepare() {
    let adding = lock(&ADDING);
    *lock(&HELD) = Some(Held { _all: REGIONS.hold_all(), _adding: adding });
}

fn release() {
    let held = lock(&HELD).take();
    drop(held);
}
