//! Promises idle pages of the pool to mappings that nobody touches: else the kernel would keep
//! these, and free pages that were added for a mapping.
//!
//! When a counter of persistent pages is lowered, the kernel first frees pages that nobody was
//! promised, the newest first, and only then makes pages in use surplus. It compares the pools of
//! all nodes, and frees pages of the node whose counter is lowered.
//!
//! When a promise ends, the kernel frees idle pages of nodes that have surplus pages. So a promise
//! lasts as long as surplus pages of this process on a node that has idle ones ([`Kept`]). Nothing
//! is known of surplus pages of other processes. Counts are huge pages. Lock: one of the process,
//! for a moment in which nobody forks. Source: mm/hugetlb.c (`set_max_huge_pages`,
//! `return_unused_surplus_pages`).

use std::io::ErrorKind;
use std::sync::PoisonError;

use super::Builder;
use crate::contig::Error;
use crate::mapping::Mapping;
use crate::sync::StaticMutex;
use crate::sys::atfork;
use crate::sys::fork::ForkGuard;
use crate::units::Pages;

/// Attempts to promise what others take at the same moment.
const ATTEMPTS: u32 = 4;

/// What is kept for all holders of a process.
struct All {
    /// The process, as a guard numbers it: a forked child begins anew.
    of: u64,
    holders: usize,
    /// Mappings that nobody touches.
    promised: Vec<Mapping>,
}

static ALL: StaticMutex<All> = StaticMutex::new(All { of: 0, holders: 0, promised: Vec::new() });

/// Looks at what is kept while nobody forks: so no child has the lock held.
fn with_all<T>(work: impl FnOnce(&mut All) -> T) -> T {
    atfork::without_forks(|| work(&mut ALL.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// A share in the promises of this process, which end with the last share.
#[derive(Debug)]
pub(in crate::contig) struct Kept(ForkGuard);

impl Kept {
    fn new(promised: Vec<Mapping>) -> Self {
        let guard = ForkGuard::new();
        with_all(|all| {
            if all.of != guard.generation() {
                // The parent's mappings are not in this process.
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
        // A forked child has no share.
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
    /// Promises all that lies idle in the pool, on every node, to mappings that nobody touches.
    ///
    /// # Errors
    /// The limit of a cgroup that they do not fit; [`OutOfMemory`](ErrorKind::OutOfMemory) where
    /// others are always quicker.
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

    /// Idle pages whose promise would have to last as long as memory that is added beside them.
    pub fn idle_to_keep(&self) -> Result<u64, Error> {
        let are_here = self.pool.counts()?.free > 0;
        let size = self.pool.size();
        let promised = self.idle.iter().map(|mapping| mapping.len().pages_down(size).get());
        let all = promised.sum::<u64>() + self.machine_pool()?.counts()?.available();
        Ok(if are_here { all } else { 0 })
    }

    /// Ends the promise, or has the process keep it as long as what is returned lives.
    pub fn kept_idle(&mut self) -> Result<Option<Kept>, Error> {
        let are_here = self.pool.counts()?.free > 0;
        let promised = std::mem::take(&mut self.idle);
        Ok(are_here.then(|| Kept::new(promised)))
    }
}
