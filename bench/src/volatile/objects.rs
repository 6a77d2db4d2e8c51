//! [`Objects`] caches numbered objects of one length, built on a miss. [`Keeper`] is volatile
//! memory, memory of fixed size, or memory where an object is lost whole if the kernel takes one of
//! its pages.
//!
//! `WholeObject` is a minimal version of Chromium's `MADV_FREE` backing of discardable memory. All
//! keepers copy objects out. `Fixed` and `WholeObject` replace the least recently used object.

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use glebe::internal::sys::memory::madvise::Advice;
use glebe::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::Cache;
use lru::LruCache;
use serde::{Deserialize, Serialize};

use super::bare::Bare;
use super::Which;
use crate::Outcome;

/// Pages of an object.
pub(super) const OBJECT: usize = 16;
/// Value, ORed with the page's number, that replaces the first word of an unpinned discardable
/// page. If the kernel took the page, the first word is 0 instead.
const COOKIE: u64 = 0xc00c_1e00_0000_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Keeper {
    Volatile(Which),
    /// Ordinary memory, small enough for the memory limit at all times.
    Fixed,
    WholeObject,
}

pub(super) const FIXED: (&str, Keeper) = ("fixed size", Keeper::Fixed);
pub(super) const WHOLE_OBJECTS: (&str, Keeper) = ("whole objects", Keeper::WholeObject);

/// Numbers of repeated lookups whose object was lost, and kept.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Fate {
    pub(super) lost: u64,
    pub(super) kept: u64,
}

enum Store {
    Volatile(Box<Cache<u64, u8>>),
    Slots(Slots),
}

pub(super) struct Objects {
    store: Store,
    fate: Fate,
}

impl Objects {
    /// Makes an empty cache with room, or addresses, for `count` objects.
    pub(super) fn new(keeper: Keeper, count: usize) -> Outcome<Self> {
        let len = at(count, 0);
        let store = match keeper {
            Keeper::Volatile(which) => {
                let options = Cache::<u64, u8>::options().engine(which.engine());
                Store::Volatile(Box::new(options.build(len)?))
            }
            Keeper::Fixed => Store::Slots(Slots::new(count, None)?),
            Keeper::WholeObject => Store::Slots(Slots::new(count, Some(vec![0; count * OBJECT]))?),
        };
        Ok(Self { store, fate: Fate::default() })
    }

    pub(super) fn get(
        &mut self,
        id: u64,
        out: &mut [u8],
        build: impl FnOnce(&mut [u8]),
    ) -> Outcome {
        match &mut self.store {
            Store::Volatile(cache) => {
                let build = |bytes: &mut [u8]| {
                    build(bytes);
                    Ok::<_, Infallible>(())
                };
                out.copy_from_slice(&cache.get_or_build(id, out.len(), build)?);
            }
            Store::Slots(slots) => slots.get(id, out, build, &mut self.fate)?,
        }
        Ok(())
    }

    pub(super) fn fate(&self) -> Fate {
        match &self.store {
            Store::Volatile(cache) => {
                let stats = cache.stats();
                Fate { lost: stats.purges, kept: stats.hits }
            }
            Store::Slots(_) => self.fate,
        }
    }
}

struct Slots {
    memory: Bare,
    /// Words replaced by cookies, if objects are discardable.
    saved: Option<Vec<u64>>,
    count: usize,
    slot_of: LruCache<u64, usize>,
}

impl Slots {
    fn new(count: usize, saved: Option<Vec<u64>>) -> Outcome<Self> {
        let memory = Bare::new(at(count, 0), None)?;
        Ok(Self { memory, saved, count, slot_of: LruCache::unbounded() })
    }

    fn get(
        &mut self,
        id: u64,
        out: &mut [u8],
        build: impl FnOnce(&mut [u8]),
        fate: &mut Fate,
    ) -> Outcome {
        let known = self.slot_of.get(&id).copied();
        let slot = known.unwrap_or_else(|| match self.slot_of.len() {
            used if used < self.count => used,
            _ => self.slot_of.pop_lru().map_or(0, |(_, slot)| slot),
        });
        let is_whole = self.pin(slot)?;
        if known.is_some() && is_whole {
            fate.kept += 1;
            self.memory.read(at(slot, 0), out);
        } else {
            fate.lost += u64::from(known.is_some());
            self.slot_of.put(id, slot);
            build(out);
            self.memory.write(at(slot, 0), out);
        }
        self.unpin(slot)
    }

    /// Keeps the kernel from taking a slot's memory. Returns true if no page was lost.
    fn pin(&mut self, slot: usize) -> Outcome<bool> {
        let Some(saved) = &self.saved else { return Ok(true) };
        let first = slot * OBJECT;
        let is_whole = (first..first + OBJECT).zip(0..).all(|(page, nth)| {
            let (word, cookie) = (self.memory.word(at(slot, nth)), COOKIE | page as u64);
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            word.compare_exchange(cookie, saved[page], order.0, order.1).is_ok()
        });
        if !is_whole {
            self.memory.advise(at(slot, 0), object_len(), Advice::DontNeed)?;
        }
        Ok(is_whole)
    }

    fn unpin(&mut self, slot: usize) -> Outcome {
        let Some(saved) = &mut self.saved else { return Ok(()) };
        for (page, nth) in (slot * OBJECT..(slot + 1) * OBJECT).zip(0..) {
            let cookie = COOKIE | page as u64;
            saved[page] = self.memory.word(at(slot, nth)).swap(cookie, Ordering::AcqRel);
        }
        Ok(self.memory.advise(at(slot, 0), object_len(), Advice::Free)?)
    }
}

pub(super) fn object_len() -> Bytes {
    at(1, 0)
}

fn at(slot: usize, nth: usize) -> Bytes {
    Pages::new((slot * OBJECT + nth) as u64).bytes(page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_keeper_gives_the_object_that_was_asked_for() {
        for keeper in [Keeper::Volatile(Which::Tag), Keeper::Fixed, Keeper::WholeObject] {
            let mut objects = Objects::new(keeper, 8).unwrap();
            let mut out = vec![0; object_len().as_usize()];
            let mut built = 0;
            for id in [1, 2, 1, 200, 2] {
                let build = |bytes: &mut [u8]| {
                    built += 1;
                    bytes.fill(id as u8);
                };
                objects.get(id, &mut out, build).unwrap();
                assert!(out.iter().all(|byte| *byte == id as u8), "{keeper:?}");
            }
            let Fate { kept, lost } = objects.fate();
            assert_eq!((built, kept, lost), (3, 2, 0), "{keeper:?}");
        }
    }
}
