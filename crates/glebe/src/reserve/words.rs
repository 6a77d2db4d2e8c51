//! [`GranuleWord`] and [`PageWord`] are the lending protocol. The word of a granule of 2 MiB:
//!
//! ```text
//!  63            36 35 34 33      24 23      14 13       7 6        0
//! +----------------+-----+----------+----------+----------+----------+
//! |     epoch      |zero |   held   |   live   | writers  | closers  |
//! |      28        |  2  |    10    |    10    |    7     |    7     |
//! +----------------+-----+----------+----------+----------+----------+
//! ```
//!
//! * closers: first-class calls that close the granule to tenants, plus one while a block holds the
//!   whole granule or the granule lacks memory. If not zero, no tenant may begin or commit here.
//! * writers: tenants that copy or drop a page here; 0 if tenants use restartable sequences.
//! * live: pages that tenants have claimed or filled. A tenant adds one *before* it claims an
//!   unused page, only in the epoch that it saw, so a recall counts each page exactly once.
//! * held: pages that first class holds.
//! * zero: a [`ZeroState`]. A claim of an unused page sets `Unknown`, except to zero the page.
//! * epoch: incremented when first class takes the whole granule. Page words of older epochs mean
//!   "free", so one update recalls 512 pages.
//!
//! The word of a page:
//!
//! ```text
//!  63            36 35                        3 2     0
//! +----------------+---------------------------+-------+
//! |     epoch      |        generation         | state |
//! |      28        |            33             |   3   |
//! +----------------+---------------------------+-------+
//! ```
//!
//! The generation grows with each change except a commit. So a page whose word is equal before and
//! after a copy was not reused.
//!
//! | from | to | by |
//! |---|---|---|
//! | free, zero, valid | writing | a tenant's claim |
//! | writing | valid, zero | the tenant's commit |
//! | writing | free | the tenant gives up, or a recall of neighbouring pages revokes it |
//! | valid | free | a tenant drops the page |
//! | any | first | first class takes a part of the granule |
//! | first | free | first class gives the page back |

use std::fmt;

use super::table::{Table, Tables};
use glebe_os::error::OsError;
use glebe_os::internal::sync::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroState {
    Unknown = 0,
    Tracking = 1,
    Zero = 2,
    /// The granule has no memory, and is closed.
    Absent = 3,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct GranuleWord(pub(crate) u64);

struct Field {
    shift: u32,
    bits: u32,
}

const CLOSERS: Field = Field { shift: 0, bits: 7 };
const WRITERS: Field = Field { shift: 7, bits: 7 };
const LIVE: Field = Field { shift: 14, bits: 10 };
const HELD: Field = Field { shift: 24, bits: 10 };
const ZERO: Field = Field { shift: 34, bits: 2 };
const EPOCH: Field = Field { shift: 36, bits: EPOCH_BITS };

pub(crate) const EPOCH_BITS: u32 = 28;

pub(crate) const PAGES_MAX: u64 = LIVE.max();

impl Field {
    const fn max(&self) -> u64 {
        (1 << self.bits) - 1
    }

    const fn mask(&self) -> u64 {
        self.max() << self.shift
    }

    const fn get(&self, word: u64) -> u64 {
        (word >> self.shift) & self.max()
    }

    const fn set(&self, word: u64, value: u64) -> u64 {
        debug_assert!(value <= self.max());
        (word & !self.mask()) | (value << self.shift)
    }
}

pub(crate) const OPEN_MASK: u64 = CLOSERS.mask() | EPOCH.mask();

impl GranuleWord {
    /// Returns the word of new memory, which the kernel has zeroed.
    pub(crate) fn fresh() -> Self {
        Self(0).with_zero(ZeroState::Zero)
    }

    pub(crate) fn absent() -> Self {
        Self(0).with_zero(ZeroState::Absent).with_closer()
    }

    pub(crate) fn departed(self, pages: u64) -> Self {
        debug_assert!(self.held() == pages && self.closers() > 0, "{self:?} of {pages}");
        self.with_held_removed(pages).with_zero(ZeroState::Absent)
    }

    pub(crate) fn arrived(self) -> Self {
        debug_assert!(self.is_absent(), "{self:?}");
        self.with_zero(ZeroState::Zero).reopened()
    }

    pub(crate) fn is_absent(self) -> bool {
        ZERO.get(self.0) == ZeroState::Absent as u64
    }

    pub(crate) fn closers(self) -> u64 {
        CLOSERS.get(self.0)
    }

    pub(crate) fn is_open(self) -> bool {
        self.closers() == 0
    }

    pub(crate) fn writers(self) -> u64 {
        WRITERS.get(self.0)
    }

    pub(crate) fn live(self) -> u64 {
        LIVE.get(self.0)
    }

    pub(crate) fn held(self) -> u64 {
        HELD.get(self.0)
    }

    pub(crate) fn is_zero(self) -> bool {
        ZERO.get(self.0) == ZeroState::Zero as u64
    }

    pub(crate) fn is_tracking(self) -> bool {
        ZERO.get(self.0) == ZeroState::Tracking as u64
    }

    pub(crate) fn epoch(self) -> u64 {
        EPOCH.get(self.0)
    }

    pub(crate) fn open_expect(self) -> u64 {
        self.0 & EPOCH.mask()
    }

    pub(crate) fn with_zero(self, state: ZeroState) -> Self {
        Self(ZERO.set(self.0, state as u64))
    }

    pub(crate) fn closed(self) -> Option<Self> {
        (self.closers() < CLOSERS.max()).then(|| self.with_closer())
    }

    fn with_closer(self) -> Self {
        Self(self.0 + (1 << CLOSERS.shift))
    }

    pub(crate) fn reopened(self) -> Self {
        debug_assert!(self.closers() > 0, "{self:?}");
        Self(self.0 - (1 << CLOSERS.shift))
    }

    pub(crate) fn pinned(self) -> Option<Self> {
        (self.writers() < WRITERS.max()).then(|| Self(self.0 + (1 << WRITERS.shift)))
    }

    pub(crate) fn unpinned(self) -> Self {
        debug_assert!(self.writers() > 0, "{self:?}");
        Self(self.0 - (1 << WRITERS.shift))
    }

    pub(crate) fn with_live_added(self) -> Option<Self> {
        (self.live() < LIVE.max()).then(|| Self(self.0 + (1 << LIVE.shift)))
    }

    pub(crate) fn with_live_removed(self, pages: u64) -> Self {
        debug_assert!(self.live() >= pages, "{self:?} less {pages}");
        Self(self.0 - (pages << LIVE.shift))
    }

    /// Also ends the zero state, because first class may change the pages.
    pub(crate) fn with_held_added(self, pages: u64) -> Self {
        Self(HELD.set(self.0, self.held() + pages)).with_zero(ZeroState::Unknown)
    }

    pub(crate) fn with_held_removed(self, pages: u64) -> Self {
        debug_assert!(self.held() >= pages, "{self:?} less {pages}");
        Self(HELD.set(self.0, self.held() - pages))
    }

    pub(crate) fn taken_whole(self, pages: u64) -> Self {
        debug_assert_eq!(self.held(), 0, "{self:?}");
        let epoch = (self.epoch() + 1) & EPOCH.max();
        let word = LIVE.set(EPOCH.set(self.0, epoch), 0);
        Self(HELD.set(word, pages)).with_zero(ZeroState::Unknown)
    }
}

impl fmt::Debug for GranuleWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (closers, writers, live) = (self.closers(), self.writers(), self.live());
        let (held, zero, epoch) = (self.held(), ZERO.get(self.0), self.epoch());
        write!(f, "{{ closers: {closers}, writers: {writers}, live: {live}, ")?;
        write!(f, "held: {held}, zero: {zero}, epoch: {epoch} }}")
    }
}

#[derive(Debug)]
pub(crate) struct Granules {
    words: Table<AtomicU64>,
    zero: AtomicU64,
}

impl Granules {
    pub(crate) fn new(tables: &mut Tables, len: usize, present: usize) -> Result<Self, OsError> {
        let word = |n| if n < present { GranuleWord::fresh() } else { GranuleWord::absent() };
        let words = tables.table(len, |n| AtomicU64::new(word(n).0))?;
        Ok(Self { words, zero: AtomicU64::new(present as u64) })
    }

    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    pub(crate) fn zero(&self) -> u64 {
        self.zero.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn word(&self, granule: usize) -> &AtomicU64 {
        &self.words[granule]
    }

    #[inline]
    pub(crate) fn get(&self, granule: usize) -> GranuleWord {
        GranuleWord(self.words[granule].load(Ordering::Acquire))
    }

    /// Returns the old word; as `Err`, without a change, if `change` returned `None`.
    #[inline]
    pub(crate) fn update(
        &self,
        granule: usize,
        mut change: impl FnMut(GranuleWord) -> Option<GranuleWord>,
    ) -> Result<GranuleWord, GranuleWord> {
        let word = &self.words[granule];
        let mut now = word.load(Ordering::Acquire);
        loop {
            let Some(next) = change(GranuleWord(now)) else { return Err(GranuleWord(now)) };
            match word.compare_exchange_weak(now, next.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let now = GranuleWord(now);
                    if now.is_zero() != next.is_zero() {
                        let by = if next.is_zero() { 1 } else { u64::MAX }; // minus one
                        self.zero.fetch_add(by, Ordering::Relaxed);
                    }
                    return Ok(now);
                }
                Err(other) => now = other,
            }
        }
    }

    pub(crate) fn change(
        &self,
        granule: usize,
        change: impl Fn(GranuleWord) -> GranuleWord,
    ) -> GranuleWord {
        let (Ok(before) | Err(before)) = self.update(granule, |now| Some(change(now)));
        before
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageState {
    Free = 0,
    Writing = 1,
    Valid = 2,
    Zero = 3,
    First = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageWord(pub(crate) u64);

const STATE_BITS: u32 = 3;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const EPOCH_SHIFT: u32 = u64::BITS - EPOCH_BITS;
const GENERATION_MASK: u64 = (1 << (EPOCH_SHIFT - STATE_BITS)) - 1;
const _: () = assert!(GENERATION_MASK > u16::MAX as u64);

/// A use of a page, from its claim to its drop; unique until the generation's 16 bits repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageUse {
    pub(crate) page: usize,
    pub(crate) generation: u16,
}

impl PageWord {
    pub(crate) fn fresh() -> Self {
        Self(PageState::Zero as u64)
    }

    fn new(state: PageState, generation: u64, epoch: u64) -> Self {
        let generation = generation & GENERATION_MASK;
        Self((epoch << EPOCH_SHIFT) | (generation << STATE_BITS) | state as u64)
    }

    pub(crate) fn epoch(self) -> u64 {
        self.0 >> EPOCH_SHIFT
    }

    pub(crate) fn generation(self) -> u64 {
        (self.0 >> STATE_BITS) & GENERATION_MASK
    }

    pub(crate) fn use_of(self, page: usize) -> PageUse {
        PageUse { page, generation: self.generation() as u16 }
    }

    pub(crate) fn state(self, epoch: u64) -> PageState {
        if self.epoch() != epoch {
            return PageState::Free;
        }
        match self.0 & STATE_MASK {
            1 => PageState::Writing,
            2 => PageState::Valid,
            3 => PageState::Zero,
            4 => PageState::First,
            _ => PageState::Free,
        }
    }

    pub(crate) fn become_state(self, state: PageState) -> Self {
        Self((self.0 & !STATE_MASK) | state as u64)
    }

    pub(crate) fn next(self, state: PageState, epoch: u64) -> Self {
        Self::new(state, self.generation() + 1, epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_fill_the_word_and_do_not_overlap() {
        let all = [CLOSERS, WRITERS, LIVE, HELD, ZERO, EPOCH];
        assert_eq!(all.iter().map(|f| f.bits).sum::<u32>(), u64::BITS);
        assert_eq!(all.iter().fold(0, |word, f| word | f.mask()), u64::MAX);
    }

    #[test]
    fn transitions_touch_their_field_only() {
        let w = GranuleWord::fresh();
        assert!(w.is_zero() && w.is_open());
        let w = w.with_live_added().unwrap().with_zero(ZeroState::Unknown);
        assert!(!w.is_zero());
        assert_eq!((w.live(), w.held(), w.epoch()), (1, 0, 0));
        let taken = w.closed().unwrap().taken_whole(512);
        assert_eq!((taken.live(), taken.held(), taken.epoch()), (0, 512, 1));
        assert_eq!(taken.closers(), 1);
        let back = taken.with_held_removed(512).reopened();
        assert_eq!((back.held(), back.closers(), back.epoch()), (0, 0, 1));
    }

    #[test]
    fn a_granule_without_memory_is_nobodys() {
        let w = GranuleWord::absent();
        assert!(w.is_absent() && !w.is_open() && !w.is_zero());
        let came = w.arrived();
        assert_eq!(came, GranuleWord::fresh());
        let went = came.closed().unwrap().taken_whole(512).departed(512);
        assert_eq!((went.is_absent(), went.closers(), went.held(), went.epoch()), (true, 1, 0, 1));
        assert!(went.arrived().is_open() && went.arrived().epoch() == 1);
    }

    #[test]
    fn epochs_wrap_without_a_carry() {
        let last = GranuleWord(EPOCH.set(0, EPOCH.max()));
        assert_eq!(last.taken_whole(512).epoch(), 0);
    }

    #[test]
    fn full_fields_refuse() {
        let mut w = GranuleWord(0);
        for _ in 0..CLOSERS.max() {
            w = w.closed().unwrap();
        }
        assert_eq!(w.closed(), None);
        assert_eq!(w.writers(), 0);
    }

    #[test]
    fn another_epoch_is_free() {
        let w = PageWord::fresh().next(PageState::Valid, 3);
        assert_eq!(w.state(3), PageState::Valid);
        assert_eq!(w.state(4), PageState::Free);
    }

    #[test]
    fn generation_wraps_inside_its_field() {
        let last = PageWord::new(PageState::Valid, GENERATION_MASK, 7);
        let next = last.next(PageState::Writing, 7);
        assert_eq!((next.generation(), next.epoch()), (0, 7));
        assert_eq!(next.become_state(PageState::Valid).state(7), PageState::Valid);
    }

    #[test]
    fn a_use_lasts_from_claim_to_drop() {
        let before = PageWord::new(PageState::Valid, 0x1_ffff, 3);
        let claim = before.next(PageState::Writing, 3);
        let valid = claim.become_state(PageState::Valid);
        assert_eq!(claim.use_of(5), PageUse { page: 5, generation: 0 });
        assert_eq!(valid.use_of(5), claim.use_of(5));
        assert_ne!(before.use_of(5), claim.use_of(5));
        assert_ne!(valid.next(PageState::Free, 3).use_of(5), valid.use_of(5));
    }
}
