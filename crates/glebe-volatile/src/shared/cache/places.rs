//! [`Places`] computes offsets of words and entries in a cache's data.
//!
//! ```text
//! header    words:  0 magic | 1 version | 2 entry's length | 3 seed | .. 15 unused
//! sets      per slot:  hash of its key, never 0 | state (`state`)
//! entries   from a granule on, per slot:  checksum | value | key
//! ```
//!
//! Unit: bytes. All offsets follow from the data's length, the granule and the entry's length. The
//! opener checks these numbers and reads them only once.

use std::ops::Range;

use super::super::layout::WORD;
use glebe_os::units::Bytes;

/// Slots of a set, whose words share two cache lines.
pub(super) const WAYS: u64 = 8;
const SLOT: u64 = 2 * WORD;
const SET: u64 = WAYS * SLOT;
const HEADER: u64 = SET;
pub(super) const HEAD: u64 = WORD;

#[derive(Clone, Copy, Debug)]
pub(super) enum Head {
    Magic,
    Version,
    Entry,
    Seed,
}

impl Head {
    pub(super) fn at(self) -> u64 {
        self as u64 * WORD
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    granule: u64,
    entry: u64,
    sets: u64,
    entries_at: u64,
}

impl Places {
    pub(super) fn new(len: Bytes, granule: Bytes, entry: u64) -> Option<Self> {
        let (len, granule) = (len.get(), granule.get());
        if entry == 0 || entry % granule != 0 || entry > u32::MAX.into() {
            return None;
        }
        let of_sets = |sets: u64| (HEADER + sets * SET).next_multiple_of(granule);
        let entries = WAYS * entry;
        // Rounding up to a granule may cost one set.
        let most = len.saturating_sub(HEADER) / (entries + SET);
        let fits = |sets: &u64| of_sets(*sets) + sets * entries <= len;
        let sets = [most, most.saturating_sub(1)].into_iter().find(fits)?;
        (sets > 0).then(|| Self { granule, entry, sets, entries_at: of_sets(sets) })
    }

    pub(super) fn entry(&self) -> Bytes {
        Bytes::new(self.entry)
    }

    pub(super) fn slots(&self) -> u64 {
        self.sets * WAYS
    }

    pub(super) fn index_len(&self) -> u64 {
        self.entries_at
    }

    pub(super) fn set_of(&self, hash: u64) -> Range<u64> {
        let set = ((u128::from(hash) * u128::from(self.sets)) >> u64::BITS) as u64;
        set * WAYS..(set + 1) * WAYS
    }

    pub(super) fn hash_at(&self, slot: u64) -> u64 {
        HEADER + slot * SLOT
    }

    pub(super) fn state_at(&self, slot: u64) -> u64 {
        self.hash_at(slot) + WORD
    }

    pub(super) fn range(&self, slot: u64, len: u64) -> Range<Bytes> {
        let start = self.entries_at + slot * self.entry;
        Bytes::new(start)..Bytes::new(start + len.next_multiple_of(self.granule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_end_in_the_data() {
        for granule in [1 << 12, 1 << 16, 1 << 21] {
            for granules in [1, 8, 9, 10, 17, 33, 34, 1000, 5001] {
                for entry in [granule, 4 * granule] {
                    let len = Bytes::new(granules * granule);
                    let Some(places) = Places::new(len, Bytes::new(granule), entry) else {
                        assert!(granules * granule < 8 * entry + granule, "{granules}");
                        continue;
                    };
                    let last = places.slots() - 1;
                    assert!(places.state_at(last) + WORD <= places.index_len());
                    assert_eq!(places.range(0, 1).start.get(), places.index_len());
                    assert!(places.range(last, entry).end <= len);
                    assert_eq!(places.set_of(u64::MAX).end, places.slots());
                    assert!(places.set_of(0).contains(&0));
                }
            }
        }
        let places = |entry| Places::new(Bytes::gib(100), Bytes::new(1 << 12), entry);
        assert!([0, 1, 1 << 32, u64::MAX].into_iter().all(|entry| places(entry).is_none()));
    }
}
