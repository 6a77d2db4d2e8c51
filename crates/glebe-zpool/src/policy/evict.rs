//! [`Evictor`] makes room at the limit. It gives free pages back to the kernel, then compacts,
//! then (if allowed) evicts the oldest zspage of a sample.
//!
//! The *age* of a zspage is the number of zspages made after it. A sampled zspage that was read
//! since its last sampling becomes as young as a new zspage.

use crate::codec::Coder;
use crate::error::Error;
use crate::objects::Objects;
use crate::options::AtLimit;
use crate::policy::compact::compact_for_room;
use glebe_os::internal::sync::{AtomicU64, Ordering};
use glebe_os::units::Bytes;

const SAMPLE: usize = 64;
/// Samples that may fail because other threads evict all their zspages first.
const LOST_MAX: usize = 32;
const LOOKED_AT_MAX: u32 = 1 << 12;

#[derive(Debug)]
pub(crate) struct Evictor {
    at_limit: AtLimit,
    hand: AtomicU64,
}

impl Evictor {
    pub(crate) fn new(at_limit: AtLimit) -> Self {
        Self { at_limit, hand: AtomicU64::new(0) }
    }

    /// Returns false if nothing was freed. `trimmed` tells the request's next call that this call
    /// only gave free pages back.
    pub(crate) fn make_room(&self, objects: &Objects, trimmed: &mut bool) -> bool {
        let memory = &objects.memory;
        objects.settle();
        *trimmed = !*trimmed && memory.pages.trim_to(&memory.account, 0) > 0;
        if *trimmed {
            return true;
        }
        if memory.freeable() > 0 && compact_for_room(objects) {
            return true;
        }
        self.at_limit == AtLimit::EvictOldest && self.evict_oldest(objects)
    }

    pub(crate) fn at_limit(&self) -> AtLimit {
        self.at_limit
    }

    pub(crate) fn evict_oldest(&self, objects: &Objects) -> bool {
        // Samples all zspages twice, because the first round spares those that were read.
        let (_, end) = objects.memory.zspages.made();
        (0..2 * end as usize / SAMPLE + LOST_MAX).any(|_| self.evict_of_sample(objects))
    }

    fn evict_of_sample(&self, objects: &Objects) -> bool {
        let zspages = &objects.memory.zspages;
        let (made, end) = zspages.made();
        if end == 0 {
            return false;
        }
        let mut at = self.hand.load(Ordering::Relaxed) as u32 % end;
        let (mut found, mut count, mut seen) = ([(0, 0); SAMPLE], 0, 0);
        for _ in 0..end.min(LOOKED_AT_MAX) {
            let about = zspages.about(at);
            if about.exists && about.is_referenced {
                forget(objects, about.class, at, made);
            } else if about.exists {
                found[count] = (zspages.age(at, made), at);
                count += 1;
            }
            seen += usize::from(about.exists);
            at = (at + 1) % end;
            if seen == SAMPLE {
                break;
            }
        }
        self.hand.store(at.into(), Ordering::Relaxed);
        evict_oldest_of(objects, &mut found[..count])
    }

    pub(crate) fn set_limit(&self, objects: &Objects, limit: Bytes) -> Result<(), Error> {
        let account = &objects.memory.account;
        let before = account.limit();
        account.set_limit(limit.get());
        let mut trimmed = false;
        while account.held() > limit.get() {
            if !self.make_room(objects, &mut trimmed) {
                account.set_limit(before);
                return Err(Error::LimitBelowHeld { limit, held: Bytes::new(account.held()) });
            }
        }
        Ok(())
    }

    /// The caller holds no pin.
    #[cold]
    pub(crate) fn charge_codec(&self, objects: &Objects, coder: &Coder) {
        let account = &objects.memory.account;
        let (before, now) = coder.count();
        account.charge_past(now.saturating_sub(before));
        account.release(before.saturating_sub(now));
        let mut trimmed = false;
        while account.held() > account.limit() && self.make_room(objects, &mut trimmed) {}
    }
}

/// Tries zspages from the oldest on, because a zspage may have no object to evict.
fn evict_oldest_of(objects: &Objects, mut found: &mut [(u32, u32)]) -> bool {
    while let Some(nth) = (0..found.len()).max_by_key(|nth| found[*nth].0) {
        let last = found.len() - 1;
        found.swap(nth, last);
        if objects.evict(found[last].1) > 0 {
            return true;
        }
        found = &mut found[..last];
    }
    false
}

fn forget(objects: &Objects, class: u32, zspage: u32, made: u32) {
    if let Some(class) = objects.classes.get(class) {
        let state = class.lock();
        if state.has(&objects.memory, zspage) {
            objects.memory.zspages.forget(zspage, made);
        }
    }
}
