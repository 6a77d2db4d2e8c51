//! What a pool on memory of its own gives back when a reclaimer asks: first what is free in it,
//! then the oldest objects, if it may evict.
//!
//! Pages leave a batch at a time, so that many cost few calls. What others insert meanwhile counts
//! against what was freed. Allocates nothing.

use crate::sys::claim::Holder;
use crate::units::{Bytes, Pages};
use crate::zpool::error::Error;
use crate::zpool::options::{AtLimit, Budget};
use crate::zpool::policy::compact::compact;
use crate::zpool::ObjectPool;

/// Pages that leave together.
const BATCH: u64 = 32;

impl ObjectPool {
    /// Gives the pool to a reclaimer; false if another has it.
    pub(crate) fn claim(&self, holder: Holder) -> Result<bool, Error> {
        self.alive()?;
        Ok(self.claim.take(holder))
    }

    /// Takes it back.
    pub(crate) fn release(&self, holder: Holder) {
        self.claim.release(holder);
    }

    /// What goes without an object: pages that are kept, and what compaction frees.
    pub(crate) fn waste(&self) -> Bytes {
        let kept = self.objects.memory.pages.kept();
        Pages::new(kept + self.objects.memory.freeable()).bytes(self.page)
    }

    /// What goes with objects: nothing if the pool may evict none.
    pub(crate) fn evictable(&self) -> Bytes {
        let memory = &self.objects.memory;
        let used = memory.pages.used().saturating_sub(memory.freeable());
        match self.evictor.at_limit() {
            AtLimit::Refuse => Bytes::ZERO,
            AtLimit::EvictOldest => Pages::new(used).bytes(self.page),
        }
    }

    /// Frees up to `most` of the waste, rounded up to pages; returns how much.
    pub(crate) fn shed_waste(&self, most: Bytes) -> Bytes {
        self.shed(most, |missing| {
            compact(&self.objects, Budget::Pages(missing))
                .is_ok_and(|done| done.freed > Pages::ZERO)
        })
    }

    /// Frees up to `most` by removing the oldest objects, rounded up to a zspage; returns how much.
    pub(crate) fn shed_objects(&self, most: Bytes) -> Bytes {
        self.shed(most, |_| self.evictor.evict_oldest(&self.objects))
    }

    /// Lets `step` make pages free, of those that are missing, until enough have left or it can
    /// make none.
    fn shed(&self, most: Bytes, step: impl Fn(Pages) -> bool) -> Bytes {
        let (pages, account) = (&self.objects.memory.pages, &self.objects.memory.account);
        if self.alive().is_err() {
            return Bytes::ZERO;
        }
        let most = most.pages_up(self.page).get();
        let present = || pages.used() + pages.kept();
        let before = present();
        let mut has_more = true;
        loop {
            let missing = most.saturating_sub(before.saturating_sub(present()));
            let kept = pages.kept();
            if missing == 0 || kept == 0 && !has_more {
                break;
            }
            if kept >= missing.min(BATCH) || !has_more {
                let gone = pages.trim_to(account, kept.saturating_sub(missing));
                if gone == 0 {
                    // The kernel refuses, or others were faster.
                    break;
                }
                continue;
            }
            has_more = step(Pages::new(missing - kept));
        }
        Pages::new(before.saturating_sub(present()).min(most)).bytes(self.page)
    }
}
