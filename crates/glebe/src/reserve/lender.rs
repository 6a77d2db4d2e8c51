//! [`Lender`]: the pages that first class does not hold, as tenants have them: which one is used
//! next, filled, found used, and dropped.
//!
//! The page cache and the pools of objects stand beside each other above this, and share the
//! pages: a claim may evict a page of either. What it held is told to who claims it ([`Claimed`]).
//! The owner of the page is not asked: its entry finds the use over, as after a recall.
//!
//! Choice: CLOCK, one byte a page, set by who finds the page used and cleared by the passing hand.
//! The hand goes from the top downward, since first class takes from the bottom; a thread takes a
//! chunk of it at a time. Pages that first class has just given back come before the hand: a few
//! slots remember where they are; when more come the oldest is forgotten and the hand finds its
//! pages. All of it is hints: a page is taken only if its own word allows it. No lock.
//!
//! The page cache first has the free pages that its thread dropped last: they are in the caches of
//! the processor, and nothing is evicted for them. Values of 1 MiB that replace each other in a
//! reserve of 160 MiB took 7 to 10 percent less time to put than where all came from the hand.
//!
//! Who evicts nothing, and takes free pages alone, then has a hand of his own: it goes back to the
//! top whenever enough was given back, so that free pages above come before those. First class,
//! which takes the lowest, is likely to want the same again, and what is put there would be lost
//! again. One who evicts would pay with a page for each that is left free, so there it is the other
//! way round.

use std::ops::Range;

use super::lent::{Claim, Lent, Meta, NoClaim, NotFilled};
use super::stats::{Counter, Counts};
use super::table::{Table, Tables};
use super::words::PageUse;
use crate::error::OsError;
use crate::stats::{lane, LANES};
use crate::sync::{MappedByte, MappedWord as Word, Ordering};

/// Of the first key word beside a page: the page is one of a zspage, not of the page cache. The
/// rest is a number that [`Lender::number`] gave.
pub(super) const PACKED: u64 = 1 << 63;

/// Pages in use that a claim looks at before it evicts one regardless.
const HOT_MAX: u32 = 64;
/// Pages that a thread takes from the hand at a time.
const CHUNK: u64 = 32;
/// In a lane: the chunk was given back, so pages in use in it are left alone.
const ONLY_FREE: u64 = 1 << 63;
const SLOTS: usize = 64;
/// Pages that a thread dropped last: with its place in a chunk they fill two cache lines.
pub(super) const DROPPED: u64 = 14;
/// The hand for free pages goes to the top once one of so many of all pages was given back: so for
/// each of those it looks at that many again at most.
const TO_TOP: u64 = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Lender {
    lent: Lent,
    clock: Clock,
    /// Whether a page was used since the hand came by.
    hot: Table<MappedByte>,
    /// Zeroed granules to leave alone.
    zero_target: u64,
    /// The next number of [`Lender::number`].
    numbers: Word,
    counts: Counts,
}

/// Which pages a claim looks at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// Those given back, and then those at the hand.
    GivenBack,
    /// Those dropped, and then as above.
    Dropped,
    /// Free ones: those dropped, and then those high up.
    Free,
    /// Those at the hand alone.
    AtHand,
}

/// A page that was claimed, and what was evicted for it.
#[derive(Debug)]
#[must_use]
pub(super) struct Claimed {
    pub(super) claim: Claim,
    /// What the page held, if that was seen.
    pub(super) held: Option<(PageUse, Meta)>,
}

/// Whether a page with these key words is one of a zspage.
#[inline]
pub(super) fn is_packed(meta: &Meta) -> bool {
    meta[0] & PACKED != 0
}

impl Lender {
    pub(super) fn new(
        tables: &mut Tables,
        lent: Lent,
        present: u64,
        zero_target: u64,
    ) -> Result<Self, OsError> {
        let hot = tables.table(lent.pages(), |_| MappedByte::new(0))?;
        let (clock, numbers, counts) = (Clock::new(present), Word::new(1), Counts::new());
        Ok(Self { lent, clock, hot, zero_target, numbers, counts })
    }

    #[inline]
    pub(crate) fn lent(&self) -> &Lent {
        &self.lent
    }

    #[inline]
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Zeroed granules that tenants leave alone.
    pub(super) fn zero_target(&self) -> u64 {
        self.zero_target
    }

    /// A number above zero that no other tenant of this reserve has.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Claims a page: a free one, or one that was not used since the hand last came by. The caller
    /// counts what was evicted.
    #[inline]
    pub(super) fn claim(&self, first: First) -> Option<Claimed> {
        self.claim_where(first, u64::MAX, |_, _| true)
    }

    /// Claims a free page.
    #[inline]
    pub(super) fn claim_free(&self) -> Option<Claimed> {
        self.claim_where(First::Free, u64::MAX, |_, held| held.is_none())
    }

    /// As [`Lender::claim`], a page for which `may` says yes, which is told what the page holds.
    /// Looks at `most` pages at the hand, and before them at as many that were given back or
    /// dropped. Those may be in use again, so they take nothing from the first count.
    #[inline]
    pub(super) fn claim_where(
        &self,
        first: First,
        most: u64,
        may: impl Fn(usize, Option<&Meta>) -> bool,
    ) -> Option<Claimed> {
        let lent = &self.lent;
        let pages = most.min(lent.pages() as u64);
        let full = lent.granule_pages() as u64;
        let (mut warm, mut looked, mut hinted) = (0, 0, 0);
        while looked < pages {
            let first = if hinted < pages { first } else { First::AtHand };
            let (page, only_free) = self.clock.next(first);
            let looked = if only_free { &mut hinted } else { &mut looked };
            let granule = lent.granule(lent.granule_of(page));
            let kept = granule.is_zero() && lent.keeps_zero(self.zero_target);
            if !granule.is_open() || granule.held() == full || kept {
                self.clock.skip_chunk();
                *looked += CHUNK;
                continue;
            }
            *looked += 1;
            let held = lent.holds(page);
            if only_free && held.is_some() {
                continue;
            }
            if !may(page, held.as_ref().map(|(_, _, meta)| meta)) {
                continue;
            }
            let hot = &self.hot[page];
            if hot.load(Ordering::Relaxed) != 0 {
                hot.store(0, Ordering::Relaxed);
                warm += u32::from(held.is_some());
                if held.is_some() && warm < HOT_MAX {
                    continue;
                }
            }
            match lent.claim(page) {
                Ok(claim) => {
                    let held = held.map(|(word, _, meta)| (word.use_of(page), meta));
                    return Some(Claimed { claim, held });
                }
                Err(NoClaim::Recalled) => self.counts.add(Counter::RejectedRecalled, 1),
                Err(NoClaim::Taken) => {}
            }
        }
        None
    }

    /// Fills a claimed page, and counts it; see [`Lent::fill`].
    #[inline]
    pub(super) fn fill(
        &self,
        claim: Claim,
        meta: Meta,
        bytes: &[u8],
    ) -> Result<PageUse, NotFilled> {
        let filled = self.lent.fill(claim, meta, bytes);
        match &filled {
            Ok(_) => self.counts.add(Counter::Stored, 1),
            Err(NotFilled::Recalled) => self.counts.add(Counter::RejectedRecalled, 1),
            Err(NotFilled::Interrupted) => {}
        }
        filled
    }

    /// Fills claimed pages one after another and calls `done` with each page's use, or `None` where
    /// it was not filled. Counts at the end: a locked instruction between two copies would wait for
    /// the stores of the first.
    #[inline]
    pub(super) fn fill_all<'b>(
        &self,
        fills: impl Iterator<Item = (Claim, Meta, &'b [u8])>,
        mut done: impl FnMut(Option<PageUse>),
    ) {
        let (mut stored, mut recalled) = (0, 0);
        for (claim, meta, bytes) in fills {
            let filled = self.lent.fill(claim, meta, bytes);
            stored += u64::from(filled.is_ok());
            recalled += u64::from(matches!(filled, Err(NotFilled::Recalled)));
            done(filled.ok());
        }
        self.counts.add(Counter::Stored, stored);
        self.counts.add(Counter::RejectedRecalled, recalled);
    }

    /// Drops what a use of a page holds and counts it as `why`; whether it was there and nobody
    /// stood against it. Otherwise the hand finds it.
    #[inline]
    pub(super) fn drop_use(&self, at: PageUse, why: Counter) -> bool {
        let dropped = self.lent.discard_use(at);
        if dropped {
            self.counts.add(why, 1);
            self.clock.drop_page(at.page);
        }
        dropped
    }

    /// Remembers that a page was used.
    #[inline]
    pub(super) fn touch(&self, page: usize) {
        let hot = &self.hot[page];
        if hot.load(Ordering::Relaxed) == 0 {
            hot.store(1, Ordering::Relaxed);
        }
    }

    /// First class has given `run` back: its pages are the next to be used, or the last.
    pub(super) fn give_back(&self, run: &Range<usize>) {
        self.clock.give_back(run);
    }

    /// Memory has come or gone: the highest page that there is is the one before `end`.
    pub(super) fn set_end(&self, end: u64) {
        self.clock.set_end(end);
    }
}

#[repr(align(128))]
#[derive(Debug, Default)]
struct Padded(Word);

/// A thread's, or that of several.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Lane {
    /// Its place in its chunk; a multiple of [`CHUNK`] when that is used up.
    place: Word,
    /// Pages that it dropped, one more each, at the number of each; 0: it was used since.
    dropped: [Word; DROPPED as usize],
    /// The number of the next one.
    next: Word,
}

#[derive(Debug, Default)]
struct Clock {
    /// The end of the highest page that there is.
    end: Word,
    hand: Padded,
    /// The hand for free pages, and pages given back since it was sent to the top.
    high_hand: Padded,
    given: Word,
    lanes: Box<[Lane]>,
    /// Ranges of chunks given back: first chunk above, number of chunks below bit 32. 0: none.
    slots: Box<[Word]>,
    next_slot: Word,
    /// Slots that are not empty, at least.
    filled: Padded,
}

impl Clock {
    /// The highest page that there is is the one before `end`.
    fn new(end: u64) -> Self {
        let lanes = (0..LANES).map(|_| Lane::default()).collect();
        let slots = (0..SLOTS).map(|_| Word::default()).collect();
        Self { end: Word::new(end), lanes, slots, ..Self::default() }
    }

    /// Memory has come or gone: the highest page that there is is the one before `end`, above zero.
    /// What the hand and the lanes say means other pages from now on.
    fn set_end(&self, end: u64) {
        self.end.store(end, Ordering::Relaxed);
    }

    /// The next page for this thread to look at, and whether to take it only if it is free.
    #[inline]
    fn next(&self, first: First) -> (usize, bool) {
        let has_dropped = matches!(first, First::Dropped | First::Free);
        if let Some(page) = has_dropped.then(|| self.dropped()).flatten() {
            return (page, true);
        }
        let lane = &self.lanes[lane()].place;
        let mut at = lane.fetch_add(1, Ordering::Relaxed);
        if at % CHUNK == 0 {
            let (returned, hand) = match first {
                First::GivenBack | First::Dropped => (self.returned(), &self.hand),
                First::Free => (None, &self.high_hand),
                First::AtHand => (None, &self.hand),
            };
            at = returned.unwrap_or_else(|| hand.0.fetch_add(CHUNK, Ordering::Relaxed));
            lane.store(at + 1, Ordering::Relaxed);
        }
        let only_free = at & ONLY_FREE != 0;
        let end = self.end.load(Ordering::Relaxed);
        ((end - 1 - (at & !ONLY_FREE) % end) as usize, only_free)
    }

    /// Ends this thread's chunk.
    fn skip_chunk(&self) {
        self.lanes[lane()].place.store(0, Ordering::Relaxed);
    }

    /// This thread has dropped a page. Not exact where several threads have the lane.
    #[inline]
    fn drop_page(&self, page: usize) {
        let lane = &self.lanes[lane()];
        let next = lane.next.load(Ordering::Relaxed);
        lane.dropped[(next % DROPPED) as usize].store(page as u64 + 1, Ordering::Relaxed);
        lane.next.store(next + 1, Ordering::Relaxed);
    }

    /// The page that this thread dropped last, of those not taken since.
    #[inline]
    fn dropped(&self) -> Option<usize> {
        let lane = &self.lanes[lane()];
        let last = lane.next.load(Ordering::Relaxed).checked_sub(1)?;
        let at = &lane.dropped[(last % DROPPED) as usize];
        let page = at.load(Ordering::Relaxed).checked_sub(1)?;
        at.store(0, Ordering::Relaxed);
        lane.next.store(last, Ordering::Relaxed);
        Some(page as usize)
    }

    /// First class has given `run` back.
    fn give_back(&self, run: &Range<usize>) {
        let first = run.start as u64 / CHUNK;
        let chunks = (run.end as u64).div_ceil(CHUNK) - first;
        let slot = self.next_slot.fetch_add(1, Ordering::Relaxed) as usize % SLOTS;
        let forgotten = self.slots[slot].swap(first << 32 | chunks, Ordering::Relaxed);
        if forgotten == 0 {
            self.filled.0.fetch_add(1, Ordering::Relaxed);
        }
        let given = self.given.fetch_add(run.len() as u64, Ordering::Relaxed) + run.len() as u64;
        if given * TO_TOP >= self.end.load(Ordering::Relaxed) {
            self.given.store(0, Ordering::Relaxed);
            self.high_hand.0.store(0, Ordering::Relaxed);
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
        assert_eq!(clock.next(First::GivenBack), (1023, false));
        clock.give_back(&(64..130));
        clock.skip_chunk();
        let given: Vec<_> = (0..3 * CHUNK).map(|_| clock.next(First::GivenBack)).collect();
        assert!(given.iter().all(|(_, only_free)| *only_free), "{given:?}");
        let mut pages: Vec<_> = given.iter().map(|(page, _)| *page).collect();
        pages.sort_unstable();
        assert_eq!(pages, (64..160).collect::<Vec<_>>());
        let (page, only_free) = clock.next(First::GivenBack);
        assert!(!only_free && page < 1024 - CHUNK as usize, "{page}");
    }

    #[test]
    fn free_pages_are_looked_for_from_the_top_again_when_enough_was_given_back() {
        let clock = Clock::new(8192);
        let chunk = || (0..CHUNK).map(|_| clock.next(First::Free)).last();
        let last = |nth: u64| Some(((8192 - nth * CHUNK) as usize, false));
        assert_eq!((chunk(), chunk()), (last(1), last(2)));
        clock.give_back(&(0..127));
        assert_eq!(chunk(), last(3));
        clock.give_back(&(0..1));
        assert_eq!((chunk(), chunk()), (last(1), last(2)));
        // The other hand is where it was.
        let given = (0..5 * CHUNK).filter(|_| clock.next(First::GivenBack).1).count() as u64;
        assert_eq!((given, clock.next(First::GivenBack)), (5 * CHUNK, (8191, false)));
    }

    #[test]
    fn pages_dropped_last_come_first() {
        for first in [First::Free, First::Dropped] {
            let clock = Clock::new(8192);
            assert_eq!(clock.next(first), (8191, false));
            (100..120).for_each(|page| clock.drop_page(page));
            let next: Vec<_> = (0..DROPPED as usize).map(|_| clock.next(first)).collect();
            assert_eq!(next, (106..120).rev().map(|page| (page, true)).collect::<Vec<_>>());
            assert_eq!(clock.next(first), (8190, false));
            clock.give_back(&(0..32));
            clock.drop_page(5);
            assert_eq!(clock.next(First::GivenBack), (8189, false));
            assert_eq!(clock.next(first), (5, true));
        }
    }

    #[test]
    fn what_was_given_back_beyond_the_end_is_forgotten() {
        let clock = Clock::new(1024);
        clock.give_back(&(960..1024));
        clock.give_back(&(64..96));
        clock.set_end(512);
        let pages: Vec<_> = (0..8 * CHUNK).map(|_| clock.next(First::GivenBack).0).collect();
        assert!(pages.iter().all(|page| *page < 512), "{pages:?}");
        assert!((64..96).all(|page| pages.contains(&page)));
        clock.set_end(1024);
        assert!((0..64 * CHUNK).any(|_| clock.next(First::GivenBack).0 >= 512));
    }

    #[test]
    fn more_than_the_slots_hold_is_forgotten_and_nothing_else() {
        let clock = Clock::new(8192);
        (0..200).for_each(|n| clock.give_back(&(n * 32..n * 32 + 32)));
        let found = (0..200 * CHUNK).filter(|_| clock.next(First::GivenBack).1).count() as u64;
        assert_eq!(found, SLOTS as u64 * CHUNK);
    }
}
