//! Where the page cache looks for its next page: a hand that sweeps the reserve, and pages that
//! first class has just given back, which come first.
//!
//! The hand goes from the top downward, since first class takes from the bottom. Each thread
//! takes a chunk of it at a time. A block given back is remembered in one of a few slots; when
//! more come than there are slots, the oldest is forgotten and the hand finds its pages. All of
//! it is hints: a page named here is taken only if its own word allows it.

use crate::stats::{lane, LANES};
use crate::sync::{MappedWord as Word, Ordering};
use std::ops::Range;

/// Pages that a thread takes from the hand at a time.
pub(super) const CHUNK: u64 = 32;
/// In a lane: the chunk was given back, so pages in use in it are left alone.
const ONLY_FREE: u64 = 1 << 63;
const SLOTS: usize = 64;

#[repr(align(128))]
#[derive(Debug)]
struct Padded(Word);

#[derive(Debug)]
pub(super) struct Clock {
    /// The end of the highest page that there is.
    end: Word,
    hand: Padded,
    /// Each thread's place in its chunk; a multiple of [`CHUNK`] when that is used up.
    lanes: Box<[Padded]>,
    /// Ranges of chunks given back: first chunk above, number of chunks below bit 32. 0: none.
    slots: [Word; SLOTS],
    next_slot: Word,
    /// Slots that are not empty, at least.
    filled: Padded,
}

impl Clock {
    pub(super) fn new(pages: usize) -> Self {
        let padded = || Padded(Word::new(0));
        Self {
            end: Word::new(pages as u64),
            hand: padded(),
            lanes: (0..LANES).map(|_| padded()).collect(),
            slots: std::array::from_fn(|_| Word::new(0)),
            next_slot: Word::new(0),
            filled: padded(),
        }
    }

    /// Memory has come or gone: the highest page that there is is the one before `end`, above zero.
    /// What the hand and the lanes say means other pages from now on.
    pub(super) fn set_end(&self, end: u64) {
        self.end.store(end, Ordering::Relaxed);
    }

    /// The next page for this thread to look at, and whether to take it only if it is free.
    #[inline]
    pub(super) fn next(&self) -> (usize, bool) {
        let lane = &self.lanes[lane()].0;
        let mut at = lane.fetch_add(1, Ordering::Relaxed);
        if at % CHUNK == 0 {
            at = self.returned().unwrap_or_else(|| self.hand.0.fetch_add(CHUNK, Ordering::Relaxed));
            lane.store(at + 1, Ordering::Relaxed);
        }
        let only_free = at & ONLY_FREE != 0;
        let end = self.end.load(Ordering::Relaxed);
        ((end - 1 - (at & !ONLY_FREE) % end) as usize, only_free)
    }

    /// Ends this thread's chunk.
    pub(super) fn skip_chunk(&self) {
        self.lanes[lane()].0.store(0, Ordering::Relaxed);
    }

    /// First class has given `run` back.
    pub(super) fn give_back(&self, run: &Range<usize>) {
        let first = run.start as u64 / CHUNK;
        let chunks = (run.end as u64).div_ceil(CHUNK) - first;
        let slot = self.next_slot.fetch_add(1, Ordering::Relaxed) as usize % SLOTS;
        let forgotten = self.slots[slot].swap(first << 32 | chunks, Ordering::Relaxed);
        if forgotten == 0 {
            self.filled.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A chunk that was given back, as a lane has it.
    fn returned(&self) -> Option<u64> {
        if self.filled.0.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.slots.iter().find_map(|slot| {
            let old = slot.load(Ordering::Relaxed);
            let (first, chunks) = (old >> 32, old & u64::from(u32::MAX));
            let left = chunks.checked_sub(1)?;
            let new = if left == 0 { 0 } else { first << 32 | left };
            slot.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).ok()?;
            if new == 0 {
                self.filled.0.fetch_sub(1, Ordering::Relaxed);
            }
            // Beyond the end is what was given back before the memory went.
            let end = self.end.load(Ordering::Relaxed);
            Some(end.checked_sub((first + left + 1) * CHUNK)? | ONLY_FREE)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_comes_first_and_the_rest_from_the_top() {
        let clock = Clock::new(1024);
        assert_eq!(clock.next(), (1023, false));
        clock.give_back(&(64..130));
        clock.skip_chunk();
        let given: Vec<_> = (0..3 * CHUNK).map(|_| clock.next()).collect();
        assert!(given.iter().all(|(_, only_free)| *only_free), "{given:?}");
        let mut pages: Vec<_> = given.iter().map(|(page, _)| *page).collect();
        pages.sort_unstable();
        assert_eq!(pages, (64..160).collect::<Vec<_>>());
        let (page, only_free) = clock.next();
        assert!(!only_free && page < 1024 - CHUNK as usize, "{page}");
    }

    #[test]
    fn what_was_given_back_beyond_the_end_is_forgotten() {
        let clock = Clock::new(1024);
        clock.give_back(&(960..1024));
        clock.give_back(&(64..96));
        clock.set_end(512);
        let pages: Vec<_> = (0..8 * CHUNK).map(|_| clock.next().0).collect();
        assert!(pages.iter().all(|page| *page < 512), "{pages:?}");
        assert!((64..96).all(|page| pages.contains(&page)));
        clock.set_end(1024);
        assert!((0..64 * CHUNK).any(|_| clock.next().0 >= 512));
    }

    #[test]
    fn more_than_the_slots_hold_is_forgotten_and_nothing_else() {
        let clock = Clock::new(8192);
        (0..200).for_each(|n| clock.give_back(&(n * 32..n * 32 + 32)));
        let found = (0..200 * CHUNK).filter(|_| clock.next().1).count() as u64;
        assert_eq!(found, SLOTS as u64 * CHUNK);
    }
}
