//! Room at the limit: pages that are kept, then compaction, then the oldest objects.
//!
//! *Oldest* is a zspage's age, counted in zspages made since; a zspage of which something was
//! read since it was last looked at is passed over, and as young as one that is made then, so that
//! it is not met again as the oldest however much one object takes. Candidates are looked at in the
//! order of their numbers, a bounded number of them for each that goes. Whole zspages go, so what
//! goes makes room by itself.

use crate::sync::{AtomicU64, Ordering};
use crate::units::Bytes;
use crate::zpool::codec::Coder;
use crate::zpool::error::Error;
use crate::zpool::objects::Objects;
use crate::zpool::options::AtLimit;
use crate::zpool::policy::compact::compact_for_room;

/// Zspages that are looked at for each that goes.
const SAMPLE: usize = 64;
/// Samples of which other threads evict everything first.
const LOST_MAX: usize = 32;
/// Numbers that are passed over at most, where few zspages are left.
const LOOKED_AT_MAX: u32 = 1 << 12;

/// What goes at the limit, and where the search for it goes on.
#[derive(Debug)]
pub(crate) struct Evictor {
    at_limit: AtLimit,
    /// The zspage at which the search goes on.
    hand: AtomicU64,
}

impl Evictor {
    pub(crate) fn new(at_limit: AtLimit) -> Self {
        Self { at_limit, hand: AtomicU64::new(0) }
    }

    /// Makes room for something; false if nothing can go. `trimmed` is whether this was called
    /// last for the same thing and gave kept pages back, which was not enough.
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

    /// What happens at the limit.
    pub(crate) fn at_limit(&self) -> AtLimit {
        self.at_limit
    }

    /// Removes the objects of one old zspage; whether there was one.
    pub(crate) fn evict_oldest(&self, objects: &Objects) -> bool {
        // Twice round: those that were read have had their second chance then. And some more,
        // since other threads may be faster to evict what was found.
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

    /// Changes the limit. Where the pool holds more, it compacts and, if it may, evicts.
    ///
    /// # Errors
    /// [`Error::LimitBelowHeld`]: it cannot shed enough; the limit stays as it was.
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

    /// Charges the state of codecs, which grew with the threads that code at a time, and sheds
    /// what is too much then. The caller pins nothing.
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

/// Evicts the oldest of the zspages found of which something can go: what is gone but still read,
/// or not yet there, keeps a zspage and cannot.
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
