//! [`Shard`] is a part of a store: an index of 20 bytes per entry, and the small items' log.
//!
//! ```text
//! place   64  small item: its spot in the log; large item: its number (46), pages - 1 (18);
//!             0: no entry
//! hash    63  the key's hash with a secret seed; the upper half decides the entry's home
//!          1  the item can expire
//! access  32  time of the last read, in seconds (25), CLOCK count (2), FLUSHED, TOKEN, STALE,
//!             FETCHED, LARGE
//! ```
//!
//! The index uses open addressing: an entry is at its home or behind it, with no empty place
//! between. A removal moves later entries up. The index grows by half when seven eighths are full.
//! Readers compare keys, which are in the items. A `set` may replace an entry with an equal hash
//! without comparing keys. If the keys differ, about once in 10^12 stores, the older item is lost.
//! The caller holds the shard's lock.
//!
//! A new entry has the time of its store. The CLOCK hand evicts items whose count is 0: reads raise
//! the count, and the passing hand lowers it. The hand meets small items in log order, large ones
//! in hash order.

use super::log::Log;

/// The item has pages of its own.
pub(super) const LARGE: u32 = 1;
pub(super) const FETCHED: u32 = 2;
pub(super) const STALE: u32 = 4;
/// A client was asked to renew the item.
pub(super) const TOKEN: u32 = 8;
/// `flush_all` dropped the item. The store frees the item when it next finds it.
pub(super) const FLUSHED: u32 = 16;
/// Bit of `hash`: the item can expire.
const HAS_END: u64 = 1;
const CLOCK_AT: u32 = 5;
const CLOCK_MAX: u32 = 3;
const TIME_AT: u32 = 7;
const PAGES_BITS: u32 = 18;
const FIRST_ENTRIES: usize = 16;
const GONE_MAX: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub(super) struct Entry {
    pub(super) place: u64,
    pub(super) hash: u64,
    pub(super) access: u32,
}

const _: () = assert!(size_of::<Entry>() == 20);

impl Entry {
    /// Makes the entry of a new item. A large item starts with a CLOCK count of 1, because the hand
    /// may be close.
    pub(super) fn new(place: u64, hash: u64, bits: u32, now: u32) -> Self {
        let clock = u32::from(bits & LARGE != 0);
        Self { place, hash, access: now << TIME_AT | clock << CLOCK_AT | bits }
    }

    pub(super) fn set_end(&mut self, has_end: bool) {
        self.hash = self.hash & !HAS_END | u64::from(has_end);
    }

    /// Returns true if the item cannot expire and is not flushed.
    pub(super) fn is_for_good(self) -> bool {
        self.hash & HAS_END == 0 && self.access & FLUSHED == 0
    }

    pub(super) fn large(number: u64, pages: u64) -> u64 {
        number << PAGES_BITS | (pages - 1)
    }

    pub(super) fn is_large(self) -> bool {
        self.access & LARGE != 0
    }

    pub(super) fn pages(self) -> (u64, u64) {
        (self.place >> PAGES_BITS, (self.place & ((1 << PAGES_BITS) - 1)) + 1)
    }

    fn large_pages(self) -> u64 {
        if self.is_large() {
            self.pages().1
        } else {
            0
        }
    }

    fn last_access(self) -> u32 {
        self.access >> TIME_AT
    }

    pub(super) fn idle(self, now: u32) -> u32 {
        now.wrapping_sub(self.last_access()) & (u32::MAX >> TIME_AT)
    }

    pub(super) fn touch(&mut self, now: u32) {
        let clock = (self.access >> CLOCK_AT & CLOCK_MAX).min(CLOCK_MAX - 1) + 1;
        let bits = self.access & ((1 << CLOCK_AT) - 1) | FETCHED;
        self.access = now << TIME_AT | clock << CLOCK_AT | bits;
    }

    /// Lowers the CLOCK count by 1. Returns true if it was above 0.
    pub(super) fn is_spared(&mut self) -> bool {
        let clock = self.access >> CLOCK_AT & CLOCK_MAX;
        if clock > 0 {
            self.access -= 1 << CLOCK_AT;
        }
        clock > 0
    }
}

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) log: Log,
    entries: Box<[Entry]>,
    len: usize,
    large: u64,
    /// Evicted pages of small and of large items. If the sum exceeds [`GONE_MAX`], both numbers are
    /// halved.
    gone: [u64; 2],
    hand: usize,
    crawler: usize,
}

impl Shard {
    pub(super) fn new(log: Log) -> Self {
        let entries = vec![Entry::default(); FIRST_ENTRIES].into();
        Self { log, entries, len: 0, large: 0, gone: [0; 2], hand: 0, crawler: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }

    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.entries.len() as u64) >> 32) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() {
            0
        } else {
            at + 1
        }
    }

    /// Returns the index of the first entry with this hash, after `from` if given.
    pub(super) fn find(&self, hash: u64, from: Option<usize>) -> Option<usize> {
        let mut at = from.map_or_else(|| self.home(hash), |from| self.next(from));
        loop {
            let entry = &self.entries[at];
            if entry.place == 0 {
                return None;
            }
            if (entry.hash ^ hash) & !HAS_END == 0 {
                return Some(at);
            }
            at = self.next(at);
        }
    }

    pub(super) fn find_place(&self, hash: u64, place: u64) -> Option<usize> {
        let mut found = self.find(hash, None);
        while let Some(at) = found {
            if self.entries[at].place == place {
                return Some(at);
            }
            found = self.find(hash, Some(at));
        }
        None
    }

    pub(super) fn at(&self, at: usize) -> Entry {
        self.entries[at]
    }

    pub(super) fn at_mut(&mut self, at: usize) -> &mut Entry {
        &mut self.entries[at]
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        if (self.len + 1) * 8 > self.entries.len() * 7 {
            self.grow();
        }
        let mut at = self.home(entry.hash);
        while self.entries[at].place != 0 {
            at = self.next(at);
        }
        self.entries[at] = entry;
        self.len += 1;
        self.large += entry.large_pages();
    }

    /// Replaces an entry with an equal hash. Returns the old one.
    pub(super) fn replace(&mut self, at: usize, entry: Entry) -> Entry {
        debug_assert_eq!((self.entries[at].hash ^ entry.hash) & !HAS_END, 0);
        self.large += entry.large_pages();
        let old = std::mem::replace(&mut self.entries[at], entry);
        self.large -= old.large_pages();
        old
    }

    #[cold]
    fn grow(&mut self) {
        let more = vec![Entry::default(); self.entries.len() * 3 / 2].into();
        let old = std::mem::replace(&mut self.entries, more);
        (self.len, self.large, self.hand, self.crawler) = (0, 0, 0, 0);
        for entry in old.iter().filter(|entry| entry.place != 0) {
            self.insert(*entry);
        }
    }

    pub(super) fn remove(&mut self, at: usize) -> Entry {
        let removed = std::mem::take(&mut self.entries[at]);
        self.len -= 1;
        self.large -= removed.large_pages();
        let (mut gap, mut other) = (at, self.next(at));
        while self.entries[other].place != 0 {
            let home = self.home(self.entries[other].hash);
            // True if the gap is between the entry's home and its place.
            let is_between = match home <= other {
                true => home <= gap && gap < other,
                false => home <= gap || gap < other,
            };
            if is_between {
                self.entries[gap] = std::mem::take(&mut self.entries[other]);
                gap = other;
            }
            other = self.next(other);
        }
        removed
    }

    /// Returns true if a large item must be evicted next. Each kind is evicted in proportion to its
    /// bytes.
    pub(super) fn is_turn_of_large(&mut self, page: u64) -> bool {
        let small = self.log.live_bytes().div_ceil(page);
        let [small_gone, large_gone] = &mut self.gone;
        if *small_gone + *large_gone > GONE_MAX {
            (*small_gone, *large_gone) = (*small_gone / 2, *large_gone / 2);
        }
        *large_gone * small <= *small_gone * self.large
    }

    pub(super) fn add_gone(&mut self, pages: u64) {
        self.gone[0] += pages;
    }

    /// Removes the next large victim. O(entries) at worst.
    pub(super) fn evict_large(&mut self) -> Option<Entry> {
        if self.large == 0 {
            return None;
        }
        loop {
            let hand = self.hand;
            let entry = &mut self.entries[hand];
            if entry.place != 0 && entry.is_large() && !entry.is_spared() {
                self.gone[1] += entry.pages().1;
                return Some(self.remove(hand));
            }
            self.hand = self.next(hand);
        }
    }

    /// Returns the index of the crawler's next entry, or `None` after a round.
    pub(super) fn crawl(&mut self) -> Option<usize> {
        while self.crawler < self.entries.len() {
            let at = self.crawler;
            self.crawler += 1;
            if self.entries[at].place != 0 {
                return Some(at);
            }
        }
        self.crawler = 0;
        None
    }

    /// Calls `show` with the index of each entry whose home is in the next `places`, and whose
    /// upper hash half is at least `from`. Returns the next `from`, or `None` at the end.
    pub(super) fn walk(
        &self,
        from: u64,
        places: usize,
        mut show: impl FnMut(usize),
    ) -> Option<u64> {
        let len = self.entries.len();
        let first = self.home(from << 32);
        let end = (first + places).min(len);
        let until = ((end as u64) << 32).div_ceil(len as u64);
        let mut at = first;
        // No empty place lies between an entry's home and the entry, so the walk ends at the first
        // empty place behind the homes.
        for nth in first..first + len {
            let entry = self.entries[at];
            if entry.place == 0 && nth >= end {
                break;
            }
            if entry.place != 0 && (from..until).contains(&(entry.hash >> 32)) {
                show(at);
            }
            at = self.next(at);
        }
        (end < len).then_some(until)
    }

    /// Sets a bit in all entries, and their CLOCK counts to 0.
    pub(super) fn mark_all(&mut self, bit: u32) {
        for entry in self.entries.iter_mut().filter(|entry| entry.place != 0) {
            entry.access = entry.access & !(CLOCK_MAX << CLOCK_AT) | bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The few hashes make entries crowd together and wrap around.
        #[test]
        fn entries_are_found_as_in_a_map(
            steps in prop::collection::vec((0_u8..3, 0_u64..24), 1..400),
        ) {
            let (mut shard, mut model) = (Shard::new(Log::new(0, 4096)), HashMap::new());
            for (step, n) in steps {
                let (hash, place) = (u64::MAX - (n % 8) * 0x0c00_0000_0000_0000, n + 1);
                let found = shard.find_place(hash, place);
                prop_assert_eq!(found.map(|at| shard.at(at).hash), model.get(&place).copied());
                match (step, found) {
                    (0 | 1, None) => {
                        shard.insert(Entry::new(place, hash, 0, 5));
                        model.insert(place, hash);
                    }
                    (2, Some(at)) => {
                        shard.remove(at);
                        model.remove(&place);
                    }
                    _ => {}
                }
                prop_assert_eq!(shard.len(), model.len());
                for (place, hash) in &model {
                    prop_assert!(shard.find_place(*hash, *place).is_some());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_walk_shows_each_entry_once(
            hashes in prop::collection::vec(any::<u64>(), 1..300),
            pieces in prop::collection::vec((1_usize..40, 0_u64..60), 1..20),
        ) {
            let (mut shard, mut next, mut shown) = (Shard::new(Log::new(0, 4096)), 0, Vec::new());
            for (nth, hash) in hashes.iter().enumerate() {
                // Half of the entries crowd at the end and wrap around.
                let hash = if nth % 2 == 0 { *hash } else { hash | 0xff << 56 };
                shard.insert(Entry::new(nth as u64 + 1, hash, 0, 5));
            }
            let mut from = Some(0);
            for (places, more) in pieces.iter().cycle() {
                let Some(at) = from else { break };
                from = shard.walk(at, *places, |at| shown.push(shard.at(at).place));
                for _ in 0..more * u64::from(next < 500) {
                    next += 1;
                    shard.insert(Entry::new(1000 + next, next << 55, 0, 5));
                }
            }
            shown.retain(|place| *place <= 300);
            shown.sort_unstable();
            prop_assert_eq!(shown, (1..=hashes.len() as u64).collect::<Vec<_>>());
        }
    }

    fn large(number: u64) -> Entry {
        Entry::new(Entry::large(number, 3), number * 0x0260_0000_0000_0000, LARGE, 1)
    }

    #[test]
    fn large_items_that_are_read_stay_longer() {
        let mut shard = Shard::new(Log::new(0, 4096));
        (1..=100).for_each(|n| shard.insert(large(n)));
        for n in (1..=100).step_by(2) {
            let at = shard.find_place(large(n).hash, large(n).place).expect("inserted");
            shard.at_mut(at).touch(2);
        }
        shard.insert(Entry::new(9, 7, 0, 1));
        let number = |entry: Entry| entry.pages().0;
        let gone: Vec<u64> = (0..50).filter_map(|_| shard.evict_large()).map(number).collect();
        assert_eq!(gone.len(), 50);
        assert!(gone.iter().all(|number| number % 2 == 0), "{gone:?}");
        assert_eq!((0..51).filter_map(|_| shard.evict_large()).count(), 50);
        assert_eq!((shard.large, shard.len()), (0, 1));
    }

    #[test]
    fn an_access_keeps_its_parts_apart() {
        let mut entry = Entry::new(Entry::large(7, 1 << 18), 1, LARGE | STALE, (1 << 25) - 1);
        assert_eq!((entry.pages(), entry.last_access()), ((7, 1 << 18), (1 << 25) - 1));
        (0..5).for_each(|_| entry.touch(3));
        assert_eq!((entry.last_access(), entry.access & 31), (3, LARGE | STALE | FETCHED));
        assert_eq!((0..9).filter(|_| entry.is_spared()).count(), 3);
    }
}
