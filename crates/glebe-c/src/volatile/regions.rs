//! The table of volatile regions, which a forked child goes on with.
//!
//! A region is inherited by a fork, so its handle is too, unlike those of reserves: there is one
//! table for a line of descent. A step around fork locks all of it, so that no lock is held in a
//! child by a thread that it lacks; it is added behind the library's own, and so locks first. A
//! child made without the C library runs no step, and every call there is refused.
//!
//! Locks, in their order: that of the steps around fork, which adds a step too; the adopted ranges
//! of `glebe_vrange`; the claims, held also while a place of a table is added; a place's, of this
//! table and then of that of shared regions; the region's. That of the memory of `glebe_vrange`
//! that processes share is taken alone, or in a fork behind the claims.
//!
//! # Safety
//! The guards in the static are made and dropped by the forking thread; forks go one after the
//! other. What a look held is given up in a child before any other thread of the child can exist.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use glebe::stats::LANES;
use glebe::sys::atfork;
use glebe::volatile::{Error, Region};

use super::adopted;
use super::claims::{check_fork, hold_claims, set_inside, Claim, Claims, Inside};
use super::shared;
use crate::abi::glebe_volatile;
use crate::failure::Failure;
use crate::process::each;
use crate::references;
use crate::runs::Untold;
use crate::table::{lock, AllHeld, Kind, Table};

/// A region, and what C has not been told of it.
///
/// Reclaimers have weak handles of regions, and one reference for the length of a look. The end of
/// a region waits for looks; a child gives up the references of those that its parent has.
#[derive(Debug)]
pub(super) struct Volatile {
    /// One reference is this; others are of looks under way.
    pub(super) region: Arc<Region>,
    pub(super) untold: Untold,
    /// Dropped after the region.
    _claim: Option<Claim>,
}

impl Volatile {
    /// Ends the region, once nobody looks at it.
    fn end(self) {
        drop(references::alone(self.region));
    }
}

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
    let new = Arc::new(Volatile { region, untold: Untold::default(), _claim: claim });
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
    shared: shared::Held,
    family: MutexGuard<'static, adopted::Family>,
    _claims: MutexGuard<'static, Claims>,
    _ranges: adopted::Held,
}

// SAFETY: as the file's head says, the guards stay with the forking thread.
unsafe impl Send for Held {}

static HELD: Mutex<Option<Held>> = Mutex::new(None);

fn prepare() {
    set_inside(true);
    let (ranges, claims) = (adopted::hold(), hold_claims());
    let family = adopted::hold_family();
    *lock(&HELD) = Some(Held {
        all: REGIONS.hold_all(),
        shared: shared::hold(),
        family,
        _claims: claims,
        _ranges: ranges,
    });
}

fn release() {
    let held = lock(&HELD).take();
    drop(held);
    set_inside(false);
}

fn release_in_child() {
    if let Some(held) = &*lock(&HELD) {
        // SAFETY: no thread has been started yet, and none of the parent's goes on here. Beside the
        // table's references there are those of calls, of looks, and of the parent's pins alone.
        unsafe {
            let regions = held.all.iter().filter_map(|entry| entry.value());
            regions.for_each(|of| references::forget_others(&of.region));
            let shared = held.shared.iter().filter_map(|entry| entry.value());
            shared.for_each(|of| of.forget_parents());
            held.family.forget_parents();
        }
    }
    release();
}
