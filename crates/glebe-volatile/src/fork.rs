//! The fork step ([`atfork`]) makes regions follow fork(2). It holds all locks during the fork, so
//! the child finds none taken by a thread that it lacks, and its regions notice lost pages.
//!
//! Lock order: the list of regions; then for each region its lock and its log of unmarks. No call
//! on a region creates or drops a region, or forks, so the step cannot deadlock. A child's region
//! that cannot notice losses is *unarmed*: its marked pages count as lost. A raw clone(2) runs no
//! step.
//!
//! # Safety
//! `HELD` has each guard and the `Arc` of its lock. The forking thread makes and drops the guards,
//! and forks run one at a time.
#![allow(unsafe_code)]

use std::mem::transmute;
use std::sync::{Arc, PoisonError, Weak};

use super::state::{Locked, RegionState};
use super::unmarks::Log;
use glebe_os::error::OsError;
use glebe_os::internal::sync::{
    write, MappedWord, MutexGuard, Ordering, RwLockWriteGuard, StaticMutex, StaticMutexGuard,
};
use glebe_os::internal::sys::processes::atfork;

type List = Vec<Weak<Locked>>;

static LIST: StaticMutex<List> = StaticMutex::new(Vec::new());

static IS_WAITING: MappedWord = MappedWord::new(0);

#[derive(Debug)]
pub struct ListedRegion(*const Locked);

// SAFETY: the pointer is compared and never followed.
unsafe impl Send for ListedRegion {}
// SAFETY: as above.
unsafe impl Sync for ListedRegion {}

/// Adds the fork step of regions; otherwise the first region's build adds it. Call this before you
/// add an own step ([`atfork::add`]) with locks that you hold during calls on regions: the step
/// added last takes its locks first.
///
/// # Errors
/// As [`atfork::add`].
pub fn follow_forks() -> Result<(), OsError> {
    static STEP: atfork::Step = atfork::Step { prepare, parent, child };
    static IS_ADDED: MappedWord = MappedWord::new(0);
    if IS_ADDED.load(Ordering::Acquire) == 0 || atfork::is_without_steps() {
        atfork::add(&STEP)?;
        IS_ADDED.store(1, Ordering::Release);
    }
    Ok(())
}

pub(super) fn enter(region: &Arc<Locked>) -> ListedRegion {
    LIST.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(region));
    ListedRegion(Arc::as_ptr(region))
}

impl Drop for ListedRegion {
    fn drop(&mut self) {
        // `LIST` may stay locked in a child without fork steps.
        if !atfork::is_without_steps() {
            let mut list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
            list.retain(|listed| listed.as_ptr() != self.0);
        }
    }
}

struct HeldRegion {
    log: MutexGuard<'static, Log>,
    state: RwLockWriteGuard<'static, RegionState>,
    locked: Arc<Locked>,
}

struct Held {
    regions: Vec<HeldRegion>,
    list: Option<StaticMutexGuard<'static, List>>,
}

// SAFETY: the forking thread makes and drops the guards.
unsafe impl Send for Held {}

static HELD: StaticMutex<Held> = StaticMutex::new(Held { regions: Vec::new(), list: None });

/// Waits for a forking thread, because the locks are unfair and busy threads could delay a fork
/// forever.
#[inline]
pub(super) fn give_way() {
    if IS_WAITING.load(Ordering::Relaxed) != 0 {
        drop(LIST.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn prepare() {
    let list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
    IS_WAITING.store(1, Ordering::Relaxed);
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    for locked in list.iter().filter_map(Weak::upgrade) {
        // SAFETY: `locked` keeps the locks alive, and the guards are dropped before it.
        let (state, log) = unsafe {
            let state: RwLockWriteGuard<'static, RegionState> = transmute(write(&locked.state));
            let log: MutexGuard<'static, Log> = transmute(locked.calls.hold());
            (state, log)
        };
        held.regions.push(HeldRegion { log, state, locked });
    }
    held.list = Some(list);
    IS_WAITING.store(0, Ordering::Relaxed);
}

fn parent() {
    release(|_| {});
}

fn child() {
    release(|region| {
        region.locked.calls.follow_fork(&mut region.log);
        region.state.follow_fork();
    });
}

fn release(first: impl Fn(&mut HeldRegion)) {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.regions.iter_mut().for_each(first);
    // Unlocks the list last, so no region is dropped before its guards.
    let regions = std::mem::take(&mut held.regions);
    let list = held.list.take();
    drop(held);
    drop(regions);
    drop(list);
}
