//! The table of volatile regions, which a forked child goes on with.
//!
//! A region is inherited by a fork, so its handle is too, unlike those of reserves: there is one
//! table for a line of descent. A step around fork locks all of it, so that no lock is held in a
//! child by a thread that it lacks; it is added behind the library's own, and so locks first. A
//! child made without the C library runs no step, and every call there is refused.
//!
//! Memory of the caller's belongs to one region at most: a [`Claim`] says so.
//!
//! A touch of a lost page inside a call, of a buffer of the caller's, or in somebody's step of a
//! fork runs the program's SIGBUS handler, whose own calls would wait for locks of the same thread.
//! So each thread knows whether it is inside ([`Inside`]), and is refused there.
//!
//! Locks, in their order: that of the steps around fork, which adds a step too; the adopted ranges
//! of `glebe_vrange`; the claims, held also while a place of the table is added; a place's; the
//! region's.
//!
//! # Safety
//! The guards in the static are made and dropped by the forking thread; forks go one after the
//! other.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use glebe::extent::Extent;
use glebe::sys::atfork;
use glebe::volatile::{Error, Region};

use super::vrange;
use crate::failure::Failure;
use crate::table::{AllHeld, Key, Kind, Shared};

/// A region, and what C has not been told of it.
#[derive(Debug)]
pub(super) struct Volatile {
    pub(super) region: Region,
    /// Runs that an unmark found lost and its caller's array had no room for.
    pub(super) untold: Mutex<Vec<Extent>>,
    /// Dropped after the region.
    _claim: Option<Claim>,
}

static REGIONS: Shared<Arc<Volatile>> = Shared::new();
/// First addresses of claims, and the addresses behind their last.
static CLAIMS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// That a range of addresses is one region's, until this is dropped.
#[derive(Debug)]
pub(super) struct Claim(Range<usize>);

impl Claim {
    /// Claims a range, which is not empty, if none of it is claimed.
    pub(super) fn new(range: Range<usize>) -> Result<Self, Failure> {
        let mut claims = lock(&CLAIMS);
        if let Some((&start, &end)) = claims.range(..range.end).next_back() {
            if end > range.start {
                return Err(Failure::Adopted { start, end });
            }
        }
        claims.insert(range.start, range.end);
        Ok(Self(range))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&CLAIMS).remove(&self.0.start);
    }
}

thread_local!(static IS_INSIDE: Cell<bool> = const { Cell::new(false) });

/// That the thread is inside a call on volatile memory, until this is dropped.
pub(super) struct Inside(());

impl Inside {
    /// Refuses a thread that is inside one already, as a signal handler may be.
    pub(super) fn enter() -> Result<Self, Failure> {
        // Of a thread that is ending: it has no value to keep.
        match IS_INSIDE.try_with(|inside| inside.replace(true)) {
            Ok(true) => Err(Failure::Inside),
            _ => Ok(Self(())),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = IS_INSIDE.try_with(|inside| inside.set(false));
    }
}

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

/// Before the first lock of a call that may be the process's first: refuses such a child, and adds
/// the step around fork, behind the library's. A child of a fork that is under way meanwhile has a
/// lock that is held for ever at most where it is refused.
pub(super) fn follow_forks() -> Result<(), Failure> {
    static STEP: atfork::Step = atfork::Step { prepare, parent: release, child: release };
    static IS_ADDED: AtomicBool = AtomicBool::new(false);
    check_fork()?;
    if !IS_ADDED.load(Ordering::Acquire) {
        glebe::volatile::follow_forks().map_err(glebe::volatile::Error::from)?;
        atfork::add(&STEP).map_err(Error::from)?;
        IS_ADDED.store(true, Ordering::Release);
    }
    Ok(())
}

/// The handle of the region that `make` makes, of memory that is claimed or its own. After
/// [`follow_forks`].
pub(super) fn insert(
    claim: Option<Claim>,
    make: impl FnOnce() -> Result<Region, Failure>,
) -> Result<u64, Failure> {
    let _inside = Inside::enter()?;
    let region = make()?;
    let new = Arc::new(Volatile { region, untold: Mutex::default(), _claim: claim });
    let adding = lock(&CLAIMS);
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
    let (key, _inside) = (find(handle)?, Inside::enter()?);
    REGIONS.with(key, |of| call(of)).unwrap_or(Err(unknown(handle)))
}

/// Ends a handle, once the calls under way on it have ended.
pub(super) fn remove(handle: u64) -> Result<Arc<Volatile>, Failure> {
    let (key, _inside) = (find(handle)?, Inside::enter()?);
    REGIONS.remove_if(key, || Ok(())).unwrap_or(Err(unknown(handle)))
}

/// What is held over a fork.
#[derive(Debug)]
struct Held {
    _all: AllHeld<'static, Arc<Volatile>>,
    _claims: MutexGuard<'static, BTreeMap<usize, usize>>,
    _ranges: vrange::Held,
}

// SAFETY: as the file's head says, the guards stay with the forking thread.
unsafe impl Send for Held {}

static HELD: Mutex<Option<Held>> = Mutex::new(None);

fn prepare() {
    // A fork in a handler that interrupted a call waits for itself, as atfork(3) has it.
    let _ = IS_INSIDE.try_with(|inside| inside.set(true));
    let (ranges, claims) = (vrange::hold(), lock(&CLAIMS));
    *lock(&HELD) = Some(Held { _all: REGIONS.hold_all(), _claims: claims, _ranges: ranges });
}

fn release() {
    let held = lock(&HELD).take();
    drop(held);
    let _ = IS_INSIDE.try_with(|inside| inside.set(false));
}
