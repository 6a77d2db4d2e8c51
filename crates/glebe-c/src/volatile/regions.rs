//! The table of volatile regions, which a forked child keeps using.
//!
//! A handle of a region does not name a process, so a forked child can use it. A fork step locks
//! the whole table, so that no child inherits a lock that another thread holds. The fork step added
//! last locks first, so this step locks before the library's step. A child made without the C
//! library runs no step, so its calls on regions are refused.
//!
//! A thread takes locks in this order: fork steps (also to add a step), adopted ranges, claims
//! (also while a table gets a place), a place of this table, a place of shared regions, the region.
//! Only a fork holds the lock of `family` together with other locks, and takes it after the claims.
//!
//! # Safety
//! The forking thread makes and drops the guards in `HELD`; forks run one at a time. A child gives
//! up the references of the parent's reclaimers before it has another thread.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use glebe::internal::stats::LANES;
use glebe::internal::sys::processes::atfork;
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

/// A region, and the lost runs that were not reported yet.
///
/// Reclaimers have weak references to the region, and strong references during use.
#[derive(Debug)]
pub(super) struct Volatile {
    pub(super) region: Arc<Region>,
    pub(super) untold: Untold,
    /// Dropped last, to keep other regions off the memory.
    _claim: Option<Claim>,
}

impl Volatile {
    /// Waits until no reclaimer uses the region, and ends it.
    fn end(self) {
        drop(references::alone(self.region));
    }
}

/// The process number in a handle is 0, so the handle is valid in every child.
static REGIONS: Table<Arc<Volatile>, LANES> =
    Table::new(Kind { number: 5, name: "volatile region" }, 0);

/// Adds the fork step after the library's step. Refuses a child that ran no fork steps.
///
/// Exported functions that a process may call first must call `follow_forks` before they take a
/// lock. A fork under way during the addition skips the step. The child of such a fork may inherit
/// a locked lock, but refuses calls.
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

/// Returns the handle of a new region. Call [`follow_forks`] before.
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

pub(super) fn with<R>(
    region: glebe_volatile,
    call: impl FnOnce(&Volatile) -> Result<R, Failure>,
) -> Result<R, Failure> {
    check_fork()?;
    let _inside = Inside::enter()?;
    REGIONS.with(region.id, |of| call(of))
}

/// Waits for the calls under way, and ends a region and its handle.
pub(super) fn end(region: glebe_volatile) -> Result<(), Failure> {
    check_fork()?;
    let _inside = Inside::enter()?;
    let mut held = REGIONS.hold(region.id)?;
    // `take` drops the other lanes' clones, so `into_inner` succeeds.
    let ended = held.take().and_then(Arc::into_inner);
    drop(held);
    ended.into_iter().for_each(Volatile::end);
    Ok(())
}

#[derive(Debug)]
struct Held {
    all: AllHeld<'static, Arc<Volatile>>,
    shared: shared::Held,
    family: MutexGuard<'static, adopted::Family>,
    _claims: MutexGuard<'static, Claims>,
    _ranges: adopted::Held,
}

// SAFETY: only the forking thread makes and drops the guards.
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
        // SAFETY: this child has no other thread yet. Besides the table, only calls, reclaimers and
        // pins of the parent have references, and none of these continues here.
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
