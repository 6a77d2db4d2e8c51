//! [`Lender`] lends pages that first class does not hold to the page cache and the pools.
//!
//! A claim takes no lock, and may evict a page of any tenant.
//!
//! CLOCK chooses the page. A reader sets the byte of a page in `hot`, and the hand clears the byte.
//! The hand moves downward, because first class takes from the bottom. A claim first tries pages
//! that first class gave back, because a free page saves an eviction. `slots` only hint at these
//! pages.
//!
//! The page cache first reuses free pages that the calling thread dropped last, because these are
//! in the processor's caches.
//!
//! A claim that may not evict ignores `slots`, because first class would soon take such low pages
//! again. The claim uses `high_hand` instead, which restarts at the top ([`TO_TOP`]).

use std::ops::Range;

use super::lent::{Claim, Lent, Meta, NoClaim, NotFilled};
use super::stats::{Counter, Counts};
use super::table::{Table, Tables};
use super::words::PageUse;
use glebe_os::error::OsError;
use glebe_os::internal::stats::{lane, LANES};
use glebe_os::internal::sync::{MappedByte, MappedWord as Word, Ordering};

/// Flag in the first key word of a page that is part of a zspage.
pub(super) const PACKED: u64 = 1 << 63;

/// A claim passes over fewer than this many recently read pages.
const HOT_MAX: u32 = 64;
/// Pages that a thread takes from a clock hand at a time.
const CHUNK: u64 = 32;
/// Flag in [`Lane::place`]: only free pages of the chunk may be taken.
const ONLY_FREE: u64 = 1 << 63;
const SLOTS: usize = 64;
pub(super) const DROPPED: u64 = 14;
/// `high_hand` restarts at the top when a 64th of all pages was given back since the last restart.
const TO_TOP: u64 = 64;

#[derive(Debug)]
pub(crate) struct Lender {
    lent: Lent,
    clock: Clock,
    hot: Table<MappedByte>,
    zero_target: u64,
    numbers: Word,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    GivenBack,
    Dropped,
    Free,
    AtHand,
}

#[derive(Debug)]
#[must_use]
pub(super) struct Claimed {
    pub(super) claim: Claim,
    pub(super) held: Option<(PageUse, Meta)>,
}

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

    pub(super) fn zero_target(&self) -> u64 {
        self.zero_target
    }

    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn claim(&self, first: First) -> Option<Claimed> {
        self.claim_where(first, u64::MAX, |_, _| true)
    }

    #[inline]
    pub(super) fn claim_free(&self) -> Option<Claimed> {
        self.claim_where(First::Free, u64::MAX, |_, held| held.is_none())
    }

    /// Claims a page that `may` allows. Tries about `most` pages at the clock hand, and as many
    /// dropped or given-back pages.
    #[inline]
    pub(super) fn claim_where(
        &self,
        first: First,
        most: u64,
        may: impl Fn(usize, Option<&Meta>) -> bool,
    ) -> Option<Claimed> {
        let lent = &self.lent;
        let pages = most.min(self.clock.end());
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
            match lent.claim(page, held.as_ref().map(|(word, ..)| *word)) {
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

    /// Updates the counters last, because a locked instruction would wait for the stores of a copy.
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

    #[inline]
    pub(super) fn drop_use(&self, at: PageUse, why: Counter) -> bool {
        let dropped = self.lent.discard_use(at);
        if dropped {
            self.counts.add(why, 1);
            self.clock.drop_page(at.page);
        }
        dropped
    }

    #[inline]
    pub(super) fn touch(&self, page: usize) {
        let hot = &self.hot[page];
        if hot.load(Ordering::Relaxed) == 0 {
            hot.store(1, Ordering::Relaxed);
        }
    }

    pub(super) fn give_back(&self, run: &Range<usize>) {
        self.clock.give_back(run);
    }

    pub(super) fn set_end(&self, end: u64) {
        self.clock.set_end(end);
    }
}

#[repr(align(128))]
#[derive(Debug, Default)]
struct Padded(Word);

#[repr(align(128))]
#[derive(Debug, Default)]
struct Lane {
    /// Pages from [`Clock::end`] down to the next page; a multiple of [`CHUNK`] if the chunk is
    /// used up.
    place: Word,
    /// Ring of dropped pages, each stored plus one; 0 for none.
    dropped: [Word; DROPPED as usize],
    next: Word,
}

#[derive(Debug, Default)]
struct Clock {
    end: Word,
    hand: Padded,
    high_hand: Padded,
    given: Word,
    lanes: Box<[Lane]>,
    /// Given-back runs as `first chunk << 32 | number of chunks`; 0 for an empty slot.
    slots: Box<[Word]>,
    next_slot: Word,
    /// Number of used slots, which may lag.
    filled: Padded,
}

impl Clock {
    fn new(end: u64) -> Self {
        let lanes = (0..LANES).map(|_| Lane::default()).collect();
        let slots = (0..SLOTS).map(|_| Word::default()).collect();
        Self { end: Word::new(end), lanes, slots, ..Self::default() }
    }

    #[inline]
    fn end(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }

    fn set_end(&self, end: u64) {
        self.end.store(end, Ordering::Relaxed);
    }

    /// Returns the next page to try, and true if only a free page may be claimed.
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
        let end = self.end();
        ((end - 1 - (at & !ONLY_FREE) % end) as usize, only_free)
    }

    fn skip_chunk(&self) {
        self.lanes[lane()].place.store(0, Ordering::Relaxed);
    }

    #[inline]
    fn drop_page(&self, page: usize) {
        let lane = &self.lanes[lane()];
        let next = lane.next.load(Ordering::Relaxed);
        lane.dropped[(next % DROPPED) as usize].store(page as u64 + 1, Ordering::Relaxed);
        lane.next.store(next + 1, Ordering::Relaxed);
    }

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

    fn give_back(&self, run: &Range<usize>) {
        let first = run.start as u64 / CHUNK;
        let chunks = (run.end as u64).div_ceil(CHUNK) - first;
        let slot = self.next_slot.fetch_add(1, Ordering::Relaxed) as usize % SLOTS;
        let forgotten = self.slots[slot].swap(first << 32 | chunks, Ordering::Relaxed);
        if forgotten == 0 {
            self.filled.0.fetch_add(1, Ordering::Relaxed);
        }
        let given = self.given.fetch_add(run.len() as u64, Ordering::Relaxed) + run.len() as u64;
        if given * TO_TOP >= self.end() {
            self.given.store(0, Ordering::Relaxed);
            self.high_hand.0.store(0, Ordering::Relaxed);
        }
    }

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
            // Skips a chunk beyond the end, because its memory is gone.
            let end = self.end();
            Some(end.checked_sub((first + left + 1) * CHUNK)? | ONLY_FREE)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::reserve::Reserve;
    use glebe_os::internal::sys::page_size;
    use glebe_os::units::Bytes;

    #[test]
    fn a_refused_claim_looks_at_present_pages_once_whatever_the_room() {
        let options = Reserve::options().room(Bytes::mib(64));
        let reserve = options.build(Bytes::mib(2)).unwrap();
        let lender = reserve.inner.get().unwrap().lender();
        let present = Bytes::mib(2).pages_down(page_size()).get();
        for first in [First::GivenBack, First::Dropped, First::Free, First::AtHand] {
            let looks = Cell::new(0);
            let refuse = |_, _: Option<&Meta>| {
                looks.set(looks.get() + 1);
                false
            };
            assert!(lender.claim_where(first, u64::MAX, refuse).is_none());
            assert!((present..=2 * present).contains(&looks.get()), "{} looks", looks.get());
        }
    }

    #[test]
    fn a_page_filled_since_the_look_at_it_is_not_claimed() {
        let reserve = Reserve::new(Bytes::mib(2)).unwrap();
        let lender = reserve.inner.get().unwrap().lender();
        let bytes = vec![7; page_size().bytes().as_usize()];
        // Another thread may claim and fill the page between the look and the claim.
        let fill = |page: usize| {
            let held = lender.lent().holds(page).map(|(word, ..)| word);
            let claim = lender.lent().claim(page, held).unwrap();
            lender.fill(claim, Meta::default(), &bytes).unwrap()
        };
        let filled = Cell::new(None);
        let may = |page, held: Option<&Meta>| {
            if filled.get().is_none() {
                filled.set(Some(fill(page)));
            }
            held.is_none()
        };
        let claimed = lender.claim_where(First::Free, u64::MAX, may).unwrap();
        assert!(!claimed.claim.evicted && lender.lent().holds_use(filled.get().unwrap()).is_some());
        // Nor is a page whose old bytes were allowed.
        let refilled = Cell::new(None);
        let may = |page, held: Option<&Meta>| {
            if held.is_some() && refilled.get().is_none() {
                refilled.set(Some(fill(page)));
            }
            held.is_some()
        };
        let _ = lender.claim_where(First::AtHand, u64::MAX, may);
        assert!(lender.lent().holds_use(refilled.get().unwrap()).is_some());
    }

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
