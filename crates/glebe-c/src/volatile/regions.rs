//! The table of volatile regions, which a forked child goes on with.
//!
//! A region is inherited by a fork, so its handle is too, unlike those of reserves: there is one
//! table for a line of descent. A step around fork locks all of it, so that no lock is held in a
//! child by a thread that it lacks; it is added behind the library's own, and so locks first. A
//! child made without the C library runs no step, and every call there is refused.
//!
//! Locks, in their order: that of the steps around fork, which adds a step too; the adopted ranges
//! of `glebe_vrange`; the claims, held also while a place of the table is added; a place's; the
//! region's.
//!
//! # Safety
//! The guards in the static are made and dropped by the forking thread; forks go one after the
//! other. What a look held is given up in a child before any other thread of the child can exist.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use glebe::extent::Extent;
use glebe::stats::LANES;
use glebe::sys::atfork;
use glebe::volatile::{Error, Region};

use super::adopted;
use super::claims::{check_fork, hold_claims, set_inside, Claim, Claims, Inside};
use crate::abi::glebe_volatile;
use crate::failure::Failure;
use crate::process::each;
use crate::table::{lock, AllHeld, Kind, Table};

/// A region, and what C has not been told of it.
///
/// Reclaimers have weak handles of regions, and one reference for the length of a look. The end of
/// a region waits for looks, since its memory may be the caller's from then on. A child lacks the
/// threads that looked at the fork, and gives their references up.
#[derive(Debug)]
pub(super) struct Volatile {
    /// One reference is this; others are of looks under way.
    pub(super) region: Arc<Region>,
    /// Runs that an unmark found lost and its caller's array had no room for.
    pub(super) untold: Mutex<Vec<Extent>>,
    /// Dropped after the region.
    _claim: Option<Claim>,
}

impl Volatile {
    /// Ends the region, once nobody looks at it.
    fn end(self) {
        let Self { mut region, _claim, .. } = self;
        while let Err(held) = Arc::try_unwrap(region) {
            std::thread::sleep(LOOK);
            region = held;
        }
    }

    /// In a child, which has none of the threads that looked at the region.
    fn forget_looks(&self) {
        for _ in 1..Arc::strong_count(&self.region) {
            // SAFETY: a reference of a thread that this process lacks, which nobody else gives up;
            // one is left, that of `self`. As the file's head says, no other thread makes any.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(&self.region)) };
        }
    }
}

/// A short part of the time that a look takes.
const LOOK: Duration = Duration::from_micros(20);

/// A region's handle has no process: it means the same in every child.
static REGIONS: Table<Arc<Volatile>, LANES> =
    Table::new(Kind { number: 5, name: "volatile region" }, 0);

/// Before the first lock of a call that may be the process's first: refuses such a child, and adds
/// the step around fork, behind the library's. A child of a fork that is under way meanwhile has a
/// lock that is held for ever at most where it is refused.
pub(super) fn follow_forks() -> Result<(), Failure> {
    static STEP: atfork::Step = atfork::Step { prepare, parent: release, child: release_in_child };
    static IS_ADDED: AtomicBool = AtomicBool::new(false);
    check_fork()?;
    if !IS_ADDED.load(Ordering::Acquire) {
        glebe::volatile::follow_forks().map_err(Error::from)?;
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
) -> Result<glebe_volatile, Failure> {
    let _inside = Inside::enter()?;
    let region = Arc::new(make()?);
    let new = Arc::new(Volatile { region, untold: Mutex::default(), _claim: claim });
    let adding = hold_claims();
    let id = REGIONS.insert(|| Ok(each(new)))?;
    drop(adding);
    Ok(glebe_volatile { id })
}

/// Calls `call` on the region of a handle, which is not ended meanwhile.
pub(super) fn with<R>(
    region: glebe_volatile,
    call: impl FnOnce(&Volatile) -> Result<R, Failure>,
) -> Result<R, Failure> {
    check_fork()?;
    let _inside = Inside::enter()?;
    REGIONS.with(region.id, |of| call(of))
}

/// Ends a handle and its region, once the calls under way on it have ended.
pub(super) fn end(region: glebe_volatile) -> Result<(), Failure> {
    check_fork()?;
    let _inside = Inside::enter()?;
    let mut held = REGIONS.hold(region.id)?;
    // The last handle of the place: nobody else has one.
    let ended = held.take().and_then(Arc::into_inner);
    drop(held);
    ended.into_iter().for_each(Volatile::end);
    Ok(())
}

/// What is held over a fork.
#[derive(Debug)]
struct Held {
    all: AllHeld<'static, Arc<Volatile>>,
    _claims: MutexGuard<'static, Claims>,
    _ranges: adopted::Held,
}

// SAFETY: as the file's head says, the guards stay with the forking thread.
unsafe impl Send for Held {}

static HELD: Mutex<Option<Held>> = Mutex::new(None);

fn prepare() {
    set_inside(true);
    let (ranges, claims) = (adopted::hold(), hold_claims());
    *lock(&HELD) = Some(Held { all: REGIONS.hold_all(), _claims: claims, _ranges: ranges });
}

fn release() {
    let held = lock(&HELD).take();
    drop(held);
    set_inside(false);
}

fn release_in_child() {
    if let Some(held) = &*lock(&HELD) {
        held.all.iter().filter_map(|entry| entry.value()).for_each(|of| of.forget_looks());
    }
    release();
}
