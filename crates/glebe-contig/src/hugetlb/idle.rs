//! Promises the pool's idle pages to untouched mappings, so that the kernel frees no page added for
//! a mapping.
//!
//! The call that added pages to a node lowers the node's counter of persistent pages again. The
//! kernel then frees as many idle pages of the node as all nodes have unpromised. If all idle pages
//! are promised, pages in use become surplus. When a promise ends, the kernel frees idle pages of
//! nodes with surplus pages. So a promise ([`Kept`]) lasts while this process has surplus pages on
//! a node with idle pages.
//!
//! Counts are huge pages. Lock: `ALL`. Source: mm/hugetlb.c (`set_max_huge_pages`,
//! `return_unused_surplus_pages`).

use std::io::ErrorKind;
use std::sync::PoisonError;

use super::Builder;
use crate::Error;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sync::StaticMutex;
use glebe_os::internal::sys::processes::atfork;
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::units::Pages;

const ATTEMPTS: u32 = 4;

struct All {
    /// Fork generation: a child begins anew.
    of: u64,
    holders: usize,
    promised: Vec<Mapping>,
}

static ALL: StaticMutex<All> = StaticMutex::new(All { of: 0, holders: 0, promised: Vec::new() });

/// No thread forks during `work`, so no child inherits a held lock.
fn with_all<T>(work: impl FnOnce(&mut All) -> T) -> T {
    atfork::without_forks(|| work(&mut ALL.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// A share in the promises, which end with the last share.
#[derive(Debug)]
pub(crate) struct Kept(ForkGuard);

impl Kept {
    fn new(promised: Vec<Mapping>) -> Self {
        let guard = ForkGuard::new();
        with_all(|all| {
            if all.of != guard.generation() {
                // A child lacks the parent's mappings.
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

    /// Returns how many idle pages the caller keeps in the pool: those promised here, and the free
    /// pages of all nodes. Returns 0 if this pool has no free page.
    pub fn idle_to_keep(&self) -> Result<u64, Error> {
        let are_here = self.pool.counts()?.free > 0;
        let size = self.pool.size();
        let promised = self.idle.iter().map(|mapping| mapping.len().pages_down(size).get());
        let all = promised.sum::<u64>() + self.machine_pool()?.counts()?.available();
        Ok(if are_here { all } else { 0 })
    }

    pub fn kept_idle(&mut self) -> Result<Option<Kept>, Error> {
        let are_here = self.pool.counts()?.free > 0;
        let promised = std::mem::take(&mut self.idle);
        Ok(are_here.then(|| Kept::new(promised)))
    }
}
