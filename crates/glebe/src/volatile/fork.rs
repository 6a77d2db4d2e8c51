//! What regions do around fork(2): no lock is held by a thread that the child lacks, and the child
//! can lose and unmark before other code runs in it.
//!
//! The C library's fork runs the step of this file ([`atfork`]). Before: the list of regions is
//! locked, then each region's lock is taken alone, then its log of unmarks. Nobody holds one of
//! these and waits for an earlier one, since no call of a region makes, ends or forks one. After:
//! they are released; in the child each region is armed anew first, with a userfaultfd of its
//! own. A page that was purged before the fork is a hole in the child as well, so it reports as
//! purged there. Where arming fails, the region is *unarmed*: what is marked is lost there.
//!
//! A child that runs no step takes no lock at all ([`atfork::is_without_steps`]): what it does
//! with a region needs the bits of the marked pages only.
//!
//! # Safety
//! The guards in the static are of locks that the entries beside them keep alive; they are made
//! and dropped by the forking thread, and forks go one after the other.
#![allow(unsafe_code)]

use std::mem::transmute;
use std::sync::{Arc, PoisonError, Weak};

use super::state::{Locked, State};
use super::unmarks::Log;
use crate::error::OsError;
use crate::sync::{
    write, MappedWord, MutexGuard, Ordering, RwLockWriteGuard, StaticMutex, StaticMutexGuard,
};
use crate::sys::atfork;

type List = Vec<Weak<Locked>>;

static LIST: StaticMutex<List> = StaticMutex::new(Vec::new());

/// Whether a thread waits for the locks of regions; guarded by the list's lock.
static IS_WAITING: MappedWord = MappedWord::new(0);

/// A region's place in the list; it leaves the list when this is dropped.
#[derive(Debug)]
pub(super) struct Entry(*const Locked);

// SAFETY: the pointer is compared and never followed.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

/// Adds the step around fork(2) that regions need, as the first region does; takes the lock of the
/// steps then and not later. For those who have steps of their own ([`atfork::add`]) and locks
/// that they hold while they call regions: added afterwards, their steps run first before a fork
/// and last after it.
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

/// Lists a region.
pub(super) fn enter(region: &Arc<Locked>) -> Entry {
    LIST.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(region));
    Entry(Arc::as_ptr(region))
}

impl Drop for Entry {
    fn drop(&mut self) {
        // There the list may be locked for ever; and no fork looks at it any more.
        if !atfork::is_without_steps() {
            let mut list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
            list.retain(|listed| listed.as_ptr() != self.0);
        }
    }
}

/// A region whose locks are held over a fork; the guards go first.
struct HeldRegion {
    log: MutexGuard<'static, Log>,
    state: RwLockWriteGuard<'static, State>,
    locked: Arc<Locked>,
}

/// What is held over a fork; the regions' locks go first.
struct Held {
    regions: Vec<HeldRegion>,
    list: Option<StaticMutexGuard<'static, List>>,
}

// SAFETY: as the file's head says, the guards stay with the forking thread.
unsafe impl Send for Held {}

static HELD: StaticMutex<Held> = StaticMutex::new(Held { regions: Vec::new(), list: None });

/// Lets a thread that is about to fork have its turn: the locks are not fair, and threads that mark
/// and unmark without a pause would keep it out for long. Before a region's lock is taken.
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
        // SAFETY: the guards borrow from what `locked` keeps alive and are dropped before it.
        let (state, log) = unsafe {
            let state: RwLockWriteGuard<'static, State> = transmute(write(&locked.state));
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
    // Whatever ends with a region that was dropped meanwhile ends without the locks of this file.
    let regions = std::mem::take(&mut held.regions);
    let list = held.list.take();
    drop(held);
    drop(regions);
    drop(list);
}
