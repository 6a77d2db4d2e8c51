//! The granule word: what one 2 MiB granule of the reserve is used for, in one atomic word.
//!
//! ```text
//!  63            36 35 34 33      24 23      14 13       7 6        0
//! +----------------+-----+----------+----------+----------+----------+
//! |     epoch      |zero |   held   |   live   | writers  | closers  |
//! |      28        |  2  |    10    |    10    |    7     |    7     |
//! +----------------+-----+----------+----------+----------+----------+
//! ```
//!
//! * closers: first-class calls that keep tenants out, and one more while a block holds the whole
//!   granule. While it is not zero no tenant may begin or commit anything here.
//! * writers: tenants in the middle of a copy, counted only where restartable sequences are
//!   missing (see [`super::critical`]).
//! * live: pages that tenants have claimed or filled. A tenant adds one *before* it claims and
//!   only in the epoch it saw, so a recall that takes the count takes each page exactly once.
//! * held: pages that first class holds.
//! * zero: whether every page is known to hold zeros. Cleared by a tenant that adds to `live`.
//!   Its fourth value says that the granule has no memory; it is closed then, and nobody's.
//! * epoch: bumped when first class takes the whole granule. A page word of another epoch means
//!   "free", which is how 512 pages are recalled by one store.

use std::fmt;

/// Known about the zeros in a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroState {
    /// Nothing.
    Unknown = 0,
    /// Somebody is making all pages zero; any claim by a tenant sets it back to unknown.
    Tracking = 1,
    /// Every page holds zeros.
    Zero = 2,
    /// There is no page.
    Absent = 3,
}

/// One granule word, by value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct GranuleWord(pub(crate) u64);

/// Position and width of a field.
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

/// Bits of an epoch, in granule words and page words alike.
pub(crate) const EPOCH_BITS: u32 = 28;

/// The most pages that a granule can have.
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

/// What must match, as a guard, for a tenant to go on: the epoch it saw and no closer.
pub(crate) const OPEN_MASK: u64 = CLOSERS.mask() | EPOCH.mask();

impl GranuleWord {
    /// Open, empty, all zeros, as the kernel hands memory out.
    pub(crate) fn fresh() -> Self {
        Self(0).with_zero(ZeroState::Zero)
    }

    /// Without memory, closed to everybody.
    pub(crate) fn absent() -> Self {
        Self(0).with_zero(ZeroState::Absent).with_closer()
    }

    /// First class, which holds all `pages` of the granule, has given its memory away.
    pub(crate) fn departed(self, pages: u64) -> Self {
        debug_assert!(self.held() == pages && self.closers() > 0, "{self:?} of {pages}");
        self.with_held_removed(pages).with_zero(ZeroState::Absent)
    }

    /// Memory of zeros has come to an absent granule, which is open from now on.
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

    /// What a guard compares under [`OPEN_MASK`] for the epoch of this word.
    pub(crate) fn open_expect(self) -> u64 {
        self.0 & EPOCH.mask()
    }

    pub(crate) fn with_zero(self, state: ZeroState) -> Self {
        Self(ZERO.set(self.0, state as u64))
    }

    /// One more closer; `None` when the field is full.
    pub(crate) fn closed(self) -> Option<Self> {
        (self.closers() < CLOSERS.max()).then(|| self.with_closer())
    }

    fn with_closer(self) -> Self {
        Self(self.0 + (1 << CLOSERS.shift))
    }

    /// One closer less.
    pub(crate) fn reopened(self) -> Self {
        debug_assert!(self.closers() > 0, "{self:?}");
        Self(self.0 - (1 << CLOSERS.shift))
    }

    /// One more writer; `None` when the field is full.
    pub(crate) fn pinned(self) -> Option<Self> {
        (self.writers() < WRITERS.max()).then(|| Self(self.0 + (1 << WRITERS.shift)))
    }

    /// One writer less.
    pub(crate) fn unpinned(self) -> Self {
        debug_assert!(self.writers() > 0, "{self:?}");
        Self(self.0 - (1 << WRITERS.shift))
    }

    /// One more live page; `None` when the field is full.
    pub(crate) fn with_live_added(self) -> Option<Self> {
        (self.live() < LIVE.max()).then(|| Self(self.0 + (1 << LIVE.shift)))
    }

    /// `pages` live pages less.
    pub(crate) fn with_live_removed(self, pages: u64) -> Self {
        debug_assert!(self.live() >= pages, "{self:?} less {pages}");
        Self(self.0 - (pages << LIVE.shift))
    }

    /// First class holds `pages` more, whose contents it may change.
    pub(crate) fn with_held_added(self, pages: u64) -> Self {
        Self(HELD.set(self.0, self.held() + pages)).with_zero(ZeroState::Unknown)
    }

    /// First class holds `pages` less.
    pub(crate) fn with_held_removed(self, pages: u64) -> Self {
        debug_assert!(self.held() >= pages, "{self:?} less {pages}");
        Self(HELD.set(self.0, self.held() - pages))
    }

    /// All `pages` of the granule go to first class: next epoch, nothing live.
    pub(crate) fn taken_whole(self, pages: u64) -> Self {
        debug_assert_eq!(self.held(), 0, "{self:?}");
        let epoch = (self.epoch() + 1) & EPOCH.max();
        let word = LIVE.set(EPOCH.set(self.0, epoch), 0);
        Self(HELD.set(word, pages)).with_zero(ZeroState::Unknown)
    }
}

impl fmt::Debug for GranuleWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GranuleWord")
            .field("closers", &self.closers())
            .field("writers", &self.writers())
            .field("live", &self.live())
            .field("held", &self.held())
            .field("zero", &ZERO.get(self.0))
            .field("epoch", &self.epoch())
            .finish()
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
}
