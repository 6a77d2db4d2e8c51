//! [`ObjectPool`] sheds free pages, or its oldest objects if [`AtLimit`] permits, for a reclaimer.
//! Freeing pages in batches saves system calls.
#![allow(missing_docs, clippy::missing_errors_doc)]

use crate::error::Error;
use crate::options::{AtLimit, Budget};
use crate::policy::compact::compact;
use crate::ObjectPool;
use glebe_os::internal::sys::processes::claim::Holder;
use glebe_os::units::{Bytes, Pages};

const BATCH: u64 = 32;

/// Returns false if another reclaimer holds the pool.
pub fn claim(pool: &ObjectPool, holder: Holder) -> Result<bool, Error> {
    pool.alive()?;
    Ok(pool.claim.take(holder))
}

pub fn release(pool: &ObjectPool, holder: Holder) {
    pool.claim.release(holder);
}

/// Estimates the bytes that the pool can shed without removing an object.
pub fn waste(pool: &ObjectPool) -> Bytes {
    let kept = pool.objects.memory.pages.kept();
    Pages::new(kept + pool.objects.memory.freeable()).bytes(pool.page)
}

/// Estimates the bytes that the pool can shed only by removing objects.
pub fn evictable(pool: &ObjectPool) -> Bytes {
    let memory = &pool.objects.memory;
    let used = memory.pages.used().saturating_sub(memory.freeable());
    match pool.evictor.at_limit() {
        AtLimit::Refuse => Bytes::ZERO,
        AtLimit::EvictOldest => Pages::new(used).bytes(pool.page),
    }
}

pub fn shed_waste(pool: &ObjectPool, most: Bytes) -> Bytes {
    shed(pool, most, |missing| {
        compact(&pool.objects, Budget::Pages(missing)).is_ok_and(|done| done.freed > Pages::ZERO)
    })
}

pub fn shed_objects(pool: &ObjectPool, most: Bytes) -> Bytes {
    shed(pool, most, |_| pool.evictor.evict_oldest(&pool.objects))
}

/// `step` frees some of the missing pages, or returns false.
fn shed(pool: &ObjectPool, most: Bytes, step: impl Fn(Pages) -> bool) -> Bytes {
    let (pages, account) = (&pool.objects.memory.pages, &pool.objects.memory.account);
    if pool.alive().is_err() {
        return Bytes::ZERO;
    }
    let most = most.pages_up(pool.page).get();
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
    Pages::new(before.saturating_sub(present()).min(most)).bytes(pool.page)
}
