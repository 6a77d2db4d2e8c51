//! The promise of pages that lay idle in the pool before others were added for a mapping.
//!
//! When a counter of persistent pages is lowered, the kernel first frees pages that nobody was
//! promised, the last that came first, and only then makes pages in use surplus. It compares the
//! pools of all nodes, and frees pages of the node whose counter is lowered. So the idle pages
//! would stay, and as many of the added pages would go, on one node or on several. While the idle
//! pages are promised they count as used.
//!
//! When a promise ends, the kernel frees idle pages of nodes that have surplus pages. As many of
//! the surplus pages stay in the pool when they are freed. So a promise lasts as long as surplus
//! pages of this process beside it ([`Kept`]), unless none of the idle pages lies on their node.
//! Nothing is known of surplus pages of other processes. Counts are huge pages. Lock: one of the
//! process, for a moment. Source: mm/hugetlb.c (`set_max_huge_pages`,
//! `return_unused_surplus_pages`).

use std::io::ErrorKind;

use super::Builder;
use crate::contig::Error;
use crate::mapping::Mapping;
use crate::sync::{StaticMutex, StaticMutexGuard};
use crate::sys::fork::ForkGuard;

/// Attempts to promise what others take at the same moment.
const ATTEMPTS: u32 = 4;

/// What is kept for all holders of this process.
struct All {
    holders: usize,
    /// Mappings that nobody touches.
    promised: Vec<Mapping>,
}

static ALL: StaticMutex<All> = StaticMutex::new(All { holders: 0, promised: Vec::new() });

fn all() -> StaticMutexGuard<'static, All> {
    ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A share in the promises of this process, which end with the last share.
#[derive(Debug)]
pub(in crate::contig) struct Kept(ForkGuard);

impl Kept {
    fn new(promised: Vec<Mapping>) -> Self {
        let mut all = all();
        all.holders += 1;
        all.promised.extend(promised);
        Self(ForkGuard::new())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A forked child has neither the mappings nor, perhaps, the lock.
        if self.0.is_child() {
            return;
        }
        let mut all = all();
        all.holders -= 1;
        let ended = if all.holders == 0 { std::mem::take(&mut all.promised) } else { Vec::new() };
        drop(all);
        drop(ended);
    }
}

impl Builder<'_> {
    /// Promises all that lies idle in the pool, on every node, to mappings that nobody touches.
    ///
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) where others are always quicker.
    pub fn promise_idle(&mut self) -> Result<(), Error> {
        for attempt in 1.. {
            let idle = self.machine_pool()?.counts()?.available();
            if idle == 0 {
                break;
            }
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
        Ok(if are_here { self.machine_pool()?.counts()?.available() } else { 0 })
    }

    /// Ends the promise, or has the process keep it as long as what is returned lives.
    pub fn kept_idle(&mut self) -> Result<Option<Kept>, Error> {
        let are_here = self.pool.counts()?.free > 0;
        let promised = std::mem::take(&mut self.idle);
        Ok(are_here.then(|| Kept::new(promised)))
    }
}
