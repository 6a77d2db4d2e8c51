//! [`ObjectPool`] sheds free pages, or its oldest objects if [`AtLimit`] permits, for a reclaimer.
//! Freeing pages in batches saves system calls.

use crate::error::Error;
use crate::options::{AtLimit, Budget};
use crate::policy::compact::compact;
use crate::ObjectPool;
use glebe_os::internal::sys::processes::claim::Holder;
use glebe_os::units::{Bytes, Pages};

const BATCH: u64 = 32;

impl ObjectPool {
    /// Returns false if another reclaimer holds the pool.
    #[doc(hidden)]
    pub fn claim(&self, holder: Holder) -> Result<bool, Error> {
        self.alive()?;
        Ok(self.claim.take(holder))
    }

    #[doc(hidden)]
    pub fn release(&self, holder: Holder) {
        self.claim.release(holder);
    }

    /// Estimates the bytes that the pool can shed without removing an object.
    #[doc(hidden)]
    pub fn waste(&self) -> Bytes {
        let kept = self.objects.memory.pages.kept();
        Pages::new(kept + self.objects.memory.freeable()).bytes(self.page)
    }

    /// Estimates the bytes that the pool can shed only by removing objects.
    #[doc(hidden)]
    pub fn evictable(&self) -> Bytes {
        let memory = &self.objects.memory;
        let used = memory.pages.used().saturating_sub(memory.freeable());
        match self.evictor.at_limit() {
            AtLimit::Refuse => Bytes::ZERO,
            AtLimit::EvictOldest => Pages::new(used).bytes(self.page),
        }
    }

    /// Tries to shed `most` bytes of the waste.
    #[doc(hidden)]
    pub fn shed_waste(&self, most: Bytes) -> Bytes {
        self.shed(most, |missing| {
            compact(&self.objects, Budget::Pages(missing))
                .is_ok_and(|done| done.freed > Pages::ZERO)
        })
    }

    /// Tries to shed `most` bytes by evicting the oldest objects.
    #[doc(hidden)]
    pub fn shed_objects(&self, most: Bytes) -> Bytes {
        self.shed(most, |_| self.evictor.evict_oldest(&self.objects))
    }

    /// `step` frees some of the missing pages, or returns false.
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
                    // The kernel refused, or other threads took the pages.
                    break;
                }
                continue;
            }
            has_more = step(Pages::new(missing - kept));
        }
        Pages::new(before.saturating_sub(present()).min(most)).bytes(self.page)
    }
}
