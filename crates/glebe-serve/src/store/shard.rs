//! [`Shard`]: a part of the items: its index, 20 bytes an entry, and the log of the small ones.
//!
//! ```text
//! place   64  of a small item its spot; of a large one its number (46) and pages - 1 (18);
//!             0: no entry
//! hash    63  of the key, by a seed that nobody knows: its upper half decides where the entry is;
//!             in the lowest bit, whether the item has an end
//! access  32  when it was last read, in seconds (25), the clock (2), FLUSHED, TOKEN, STALE,
//!             FETCHED, LARGE
//! ```
//!
//! Open addressing: an entry stands at the place of its hash or behind it, with none empty between.
//! What goes is filled from behind. Grows by half at seven eighths. Keys are in the items: a reader
//! compares them. Who stores one anew need not: two keys share all of a hash once in some 10^12
//! keys stored, and then the older item is lost. Lock: the caller's.
//!
//! Choice of who goes: CLOCK with a count, raised by each read and lowered as the hand passes.
//! Small items stand in the order of the log, large ones in that of their hashes.

use super::log::Log;

/// The item is in the page cache.
pub(super) const LARGE: u32 = 1;
/// It was read since it was stored.
pub(super) const FETCHED: u32 = 2;
/// It is marked stale.
pub(super) const STALE: u32 = 4;
/// A client was told to make it anew.
pub(super) const TOKEN: u32 = 8;
/// It went with all others, and is to be found so.
pub(super) const FLUSHED: u32 = 16;
/// Of a hash.
const HAS_END: u64 = 1;
const CLOCK_AT: u32 = 5;
const CLOCK_MAX: u32 = 3;
const TIME_AT: u32 = 7;
const PAGES_BITS: u32 = 18;
const FIRST_ENTRIES: usize = 16;
/// Pages that went before their counts are halved.
const GONE_MAX: u64 = 1 << 20;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub(super) struct Entry {
    pub(super) place: u64,
    pub(super) hash: u64,
    pub(super) access: u32,
}

const _: () = assert!(size_of::<Entry>() == 20);

impl Entry {
    /// Of an item that is stored now. A large one, which the hand may be about to meet, has its
    /// first round.
    pub(super) fn new(place: u64, hash: u64, bits: u32, now: u32) -> Self {
        let clock = u32::from(bits & LARGE != 0);
        Self { place, hash, access: now << TIME_AT | clock << CLOCK_AT | bits }
    }

    /// Whether its item has an end.
    pub(super) fn set_end(&mut self, has_end: bool) {
        self.hash = self.hash & !HAS_END | u64::from(has_end);
    }

    /// Whether the item is there until somebody takes it away.
    pub(super) fn is_for_good(self) -> bool {
        self.hash & HAS_END == 0 && self.access & FLUSHED == 0
    }

    /// The place of a large item.
    pub(super) fn large(number: u64, pages: u64) -> u64 {
        number << PAGES_BITS | (pages - 1)
    }

    pub(super) fn is_large(self) -> bool {
        self.access & LARGE != 0
    }

    /// Of a large item, its number and pages.
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

    /// Seconds since it was last read or stored, if that is less than a year ago.
    pub(super) fn idle(self, now: u32) -> u32 {
        now.wrapping_sub(self.last_access()) & (u32::MAX >> TIME_AT)
    }

    /// It is read now.
    pub(super) fn touch(&mut self, now: u32) {
        let clock = (self.access >> CLOCK_AT & CLOCK_MAX).min(CLOCK_MAX - 1) + 1;
        let bits = self.access & ((1 << CLOCK_AT) - 1) | FETCHED;
        self.access = now << TIME_AT | clock << CLOCK_AT | bits;
    }

    /// Whether it is spared this time.
    pub(super) fn is_spared(&mut self) -> bool {
        let clock = self.access >> CLOCK_AT & CLOCK_MAX;
        if clock > 0 {
            self.access -= 1 << CLOCK_AT;
        }
        clock > 0
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) log: Log,
    entries: Box<[Entry]>,
    len: usize,
    /// Pages of large items.
    large: u64,
    /// Pages that went for others, of the log and of large items; both are halved now and then.
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

    /// Where the first entry of this hash is, if there is one; `from` the last that was found.
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

    /// Where the entry of this place is.
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

    /// Puts an entry in place of one of the same hash, which is returned.
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
        // From behind a gap, so that those of one hash keep their order.
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
            // Whether the gap is between its home and where it stands.
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

    /// Whether a large item is to go rather than small ones: either goes in proportion to its
    /// bytes.
    pub(super) fn is_turn_of_large(&mut self, page: u64) -> bool {
        let small = self.log.live_bytes().div_ceil(page);
        let [small_gone, large_gone] = &mut self.gone;
        if *small_gone + *large_gone > GONE_MAX {
            (*small_gone, *large_gone) = (*small_gone / 2, *large_gone / 2);
        }
        *large_gone * small <= *small_gone * self.large
    }

    /// Small items of so many pages went.
    pub(super) fn add_gone(&mut self, pages: u64) {
        self.gone[0] += pages;
    }

    /// Removes the large item whose turn it is to go. O(entries) at worst.
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

    /// The next entry for the crawler; `None` at the end of a round.
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

    /// Shows where entries stand: those whose hashes have an upper half of at least `from`, in so
    /// many places. Returns the least upper half of the others; `None` if there are none.
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
        // Entries stand at their homes or behind them, with no gap between.
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

    /// Marks all.
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
        /// Few hashes, so that they crowd and wrap around the end.
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
        /// However far each piece goes, and though the index grows between two, each entry that
        /// was there is shown once.
        #[test]
        fn a_walk_shows_each_entry_once(
            hashes in prop::collection::vec(any::<u64>(), 1..300),
            pieces in prop::collection::vec((1_usize..40, 0_u64..60), 1..20),
        ) {
            let (mut shard, mut next, mut shown) = (Shard::new(Log::new(0, 4096)), 0, Vec::new());
            for (nth, hash) in hashes.iter().enumerate() {
                // Half of them crowd at the end of the index, and go on at its start.
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
