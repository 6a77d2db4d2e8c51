//! [`Process`]: the tables of the process that called, and what its forked children are told.
//!
//! The tables are made by the first reserve, view or object pool that is created and never freed. A
//! child that creates one of its own gets new tables, so that it never meets a lock that another
//! thread of its parent held at the fork; those of the parent it does not touch. The number in each
//! handle tells whose it is. Finding the tables costs two loads and takes no lock.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;

use glebe::extent::Extent;
use glebe::reserve::{Block, LentObjectPool, Namespace, Promise, Reserve};
use glebe::sys::fork::ForkGuard;
use glebe::vmap::View;

use crate::failure::Failure;
use crate::mapped::Contigs;
use crate::table::{Key, Kind, Owned, Shared, PROCESSES};

/// An object of a reserve, with the handle of that.
#[derive(Clone, Debug)]
pub(crate) struct Of<T> {
    pub(crate) reserve: u64,
    pub(crate) object: T,
}

/// A view of a file of the caller's, and of which pages.
#[derive(Debug)]
pub(crate) struct Viewed {
    pub(crate) view: View,
    pub(crate) extents: Vec<Extent>,
}

#[derive(Debug)]
pub(crate) struct Process {
    guard: ForkGuard,
    /// How many ancestors have tables.
    number: u32,
    pub(crate) reserves: Shared<Reserve>,
    pub(crate) blocks: Owned<Of<Block>>,
    pub(crate) views: Owned<Viewed>,
    pub(crate) promises: Owned<Of<Promise>>,
    pub(crate) pools: Shared<Of<Namespace>>,
    pub(crate) lent_zpools: Shared<Of<LentObjectPool>>,
    pub(crate) zpools: Shared<Arc<glebe::zpool::ObjectPool>>,
    pub(crate) contigs: Contigs,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// The tables last made by this process or an ancestor.
#[allow(unsafe_code)]
fn last() -> Option<&'static Process> {
    // SAFETY: null, or a box that `create` leaked.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

impl Process {
    /// The tables of the calling process, made if there are none.
    pub(crate) fn create() -> Result<&'static Self, Failure> {
        let last = last();
        let number = match last {
            Some(last) if !last.guard.is_child() => return Ok(last),
            Some(last) => last.number + 1,
            None => 0,
        };
        if number >= PROCESSES {
            let what = "generations of processes with reserves or object pools";
            return Err(Failure::TooMany { what, most: PROCESSES });
        }
        let new = Box::leak(Box::new(Self {
            guard: ForkGuard::new(),
            number,
            reserves: Shared::new(),
            blocks: Owned::new(),
            views: Owned::new(),
            promises: Owned::new(),
            pools: Shared::new(),
            lent_zpools: Shared::new(),
            zpools: Shared::new(),
            contigs: Contigs::default(),
        }));
        let old = last.map_or(std::ptr::null_mut(), |last| std::ptr::from_ref(last).cast_mut());
        let (ok, failed) = (Ordering::AcqRel, Ordering::Acquire);
        match CURRENT.compare_exchange(old, new, ok, failed) {
            Ok(_) => Ok(new),
            // Another thread was first; what this one made is empty and small.
            Err(_) => Self::create(),
        }
    }

    /// The tables of the calling process, if it has any.
    pub(crate) fn own() -> Result<Option<&'static Self>, Failure> {
        match last() {
            Some(process) if process.guard.is_child() => Err(Failure::Forked),
            other => Ok(other),
        }
    }

    /// The tables and the key of a handle.
    #[inline]
    pub(crate) fn find(handle: u64, kind: Kind) -> Result<(&'static Self, Key), Failure> {
        let unknown = Failure::BadHandle { kind: kind.name(), handle };
        let Some(process) = last() else { return Err(unknown) };
        if process.guard.is_child() {
            return Err(Failure::Forked);
        }
        match Key::of(handle, kind) {
            Some((key, number)) if number == process.number => Ok((process, key)),
            Some((_, number)) if number < process.number => Err(Failure::Forked),
            _ => Err(unknown),
        }
    }

    pub(crate) fn handle(&self, key: Key, kind: Kind) -> u64 {
        key.handle(kind, self.number)
    }

    /// Calls `call` on the reserve of a handle, with its tables.
    #[inline]
    pub(crate) fn with_reserve<R>(
        handle: u64,
        call: impl FnOnce(&'static Self, &Reserve) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let (process, key) = Self::find(handle, Kind::Reserve)?;
        let answer = process.reserves.with(key, |reserve| call(process, reserve));
        answer.unwrap_or(Err(Failure::BadHandle { kind: Kind::Reserve.name(), handle }))
    }
}
