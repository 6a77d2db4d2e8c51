//! Promises the pool's idle pages to mappings that nobody touches. Otherwise the kernel would keep
//! these pages, and free the pages that were added for a mapping.
//!
//! If a counter of persistent pages is lowered, the kernel first frees pages without a promise,
//! newest first, then makes pages in use surplus. It compares the pools of all nodes, but frees on
//! the lowered node. If a promise ends, the kernel frees idle pages of nodes with surplus pages. So
//! a promise lasts while this process has surplus pages on a node with idle pages ([`Kept`]).
//! Surplus pages of other processes are unknown.
//!
//! Counts are huge pages. Lock: a lock of the process, held briefly while no thread forks. Source:
//! mm/hugetlb.c (`set_max_huge_pages`, `return_unused_surplus_pages`).

use std::io::ErrorKind;
use std::sync::PoisonError;

use super::Builder;
use crate::Error;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sync::StaticMutex;
use glebe_os::internal::sys::processes::atfork;
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::units::Pages;

/// Attempts, since other programs take pages at the same moment.
const ATTEMPTS: u32 = 4;

struct All {
    /// Fork generation of the process: a child begins anew.
    of: u64,
    holders: usize,
    /// Mappings that nobody touches.
    promised: Vec<Mapping>,
}

static ALL: StaticMutex<All> = StaticMutex::new(All { of: 0, holders: 0, promised: Vec::new() });

/// Runs `work` while no thread forks, so no child inherits the lock held.
fn with_all<T>(work: impl FnOnce(&mut All) -> T) -> T {
    atfork::without_forks(|| work(&mut ALL.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// A share in the process's promises, which end with the last share.
#[derive(Debug)]
pub(crate) struct Kept(ForkGuard);

impl Kept {
    fn new(promised: Vec<Mapping>) -> Self {
        let guard = ForkGuard::new();
        with_all(|all| {
            if all.of != guard.generation() {
                // A child does not have the parent's mappings.
                std::mem::forget(std::mem::take(&mut all.promised));
                (all.of, all.holders) = (guard.generation(), 0);
            }
            all.holders += 1;
            all.promised.extend(promised);
        });
        Self(guard)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A child has no share.
        if self.0.is_child() {
            return;
        }
        let ended = with_all(|all| {
            all.holders -= 1;
            if all.holders == 0 {
                std::mem::take(&mut all.promised)
            } else {
                Vec::new()
            }
        });
        drop(ended);
    }
}

impl Builder<'_> {
    /// Promises the idle pages of all nodes to mappings that nobody touches.
    ///
    /// # Errors
    /// An exceeded cgroup limit; [`OutOfMemory`](ErrorKind::OutOfMemory) if other programs were
    /// quicker each time.
    pub fn promise_idle(&mut self) -> Result<(), Error> {
        for attempt in 1.. {
            let idle = self.machine_pool()?.counts()?.available();
            if idle == 0 {
                break;
            }
            self.gate.check(Pages::new(idle).bytes(self.pool.size()))?;
            match self.private(idle) {
                Ok(mapping) => {
                    self.idle.push(mapping);
                    break;
                }
                Err(Error::Os(error))
                    if error.kind() == ErrorKind::OutOfMemory && attempt < ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the idle pages whose promise must outlive this call if pages are added beside them.
    pub fn idle_to_keep(&self) -> Result<u64, Error> {
        let are_here = self.pool.counts()?.free > 0;
        let size = self.pool.size();
        let promised = self.idle.iter().map(|mapping| mapping.len().pages_down(size).get());
        let all = promised.sum::<u64>() + self.machine_pool()?.counts()?.available();
        Ok(if are_here { all } else { 0 })
    }

    /// Ends the promise, or returns a share that keeps it.
    pub fn kept_idle(&mut self) -> Result<Option<Kept>, Error> {
        let are_here = self.pool.counts()?.free > 0;
        let promised = std::mem::take(&mut self.idle);
        Ok(are_here.then(|| Kept::new(promised)))
    }
}
