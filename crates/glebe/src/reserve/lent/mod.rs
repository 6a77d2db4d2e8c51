//! [`Lent`] is the lending protocol. Tenants copy into pages that first class does not hold. First
//! class takes these pages back ([`recall`]); then no tenant writes to them. A tenant never waits.
//!
//! With restartable sequences ([`super::access`]), a tenant commits only in a sequence that finds
//! the page's granule open and in the epoch of the claim. A recall closes the granules, aborts all
//! sequences by one barrier, and only then changes epochs and page words. A restarted sequence thus
//! finds a closed granule, another epoch or another page word. A recall that takes no whole granule
//! first tries to exchange only page words. If no page is claimed, the exchange needs no barrier,
//! because sequences store only to claimed pages.
//!
//! Without such sequences, granules count writers; a recall waits for the writers, or fails, and
//! needs no barrier.
//!
//! A claim, fill or read touches two words and the key words. A recall costs two exchanges a
//! granule, one barrier, and a look at each page of granules taken in part.

mod recall;
mod zero;

use super::access::{Critical, Fill, Frames, Guard, Outcome, META_WORDS};
use super::table::{Table, Tables};
use super::words::{
    GranuleWord, Granules, PageState, PageUse, PageWord, ZeroState, OPEN_MASK, PAGES_MAX,
};
use glebe_os::error::OsError;
use glebe_os::internal::sync::{fence, prefetch, AtomicU64, Ordering};

pub(crate) use recall::NotTaken;

const ABORTS_MAX: u32 = 64;

/// Key words of a page, written together with the page's bytes.
pub(crate) type Meta = [u64; META_WORDS];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Adds {
    Nothing,
    Page,
    ZeroPage,
}

#[derive(Debug)]
#[must_use]
pub(crate) struct Claim {
    pub(crate) page: usize,
    word: PageWord,
    seen: GranuleWord,
    pub(crate) evicted: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoClaim {
    Taken,
    /// A recall of the whole granule counted the page as recalled.
    Recalled,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotFilled {
    Recalled,
    Interrupted,
}

#[derive(Debug)]
pub(crate) struct Lent {
    granules: Granules,
    words: Table<AtomicU64>,
    meta: Table<[AtomicU64; META_WORDS]>,
    frames: Frames,
    critical: Critical,
    shift: u32,
}

impl Lent {
    /// The first `present` pages are zero; the others have no memory.
    pub(crate) fn new(
        tables: &mut Tables,
        frames: Frames,
        (pages, present): (usize, usize),
        shift: u32,
        critical: Critical,
    ) -> Result<Self, OsError> {
        let whole = pages % (1 << shift) == 0 && present % (1 << shift) == 0;
        assert!(1 << shift <= PAGES_MAX && whole && present <= pages, "{pages} by 2^{shift}");
        let words: Table<AtomicU64> = tables.zeros(pages)?;
        let meta: Table<[AtomicU64; META_WORDS]> = tables.zeros(pages)?;
        // These stores fault the tables in now, so that no put waits for a page fault.
        for (word, meta) in words.iter().zip(meta.iter()).take(present) {
            word.store(PageWord::fresh().0, Ordering::Relaxed);
            meta.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        Ok(Self {
            granules: Granules::new(tables, pages >> shift, present >> shift)?,
            words,
            meta,
            frames,
            critical,
            shift,
        })
    }

    pub(crate) fn frames(&self) -> &Frames {
        &self.frames
    }

    pub(crate) fn critical(&self) -> &Critical {
        &self.critical
    }

    pub(crate) fn pages(&self) -> usize {
        self.words.len()
    }

    pub(crate) fn granules(&self) -> usize {
        self.granules.len()
    }

    pub(crate) fn granule_pages(&self) -> usize {
        1 << self.shift
    }

    #[inline]
    pub(crate) fn granule_of(&self, page: usize) -> usize {
        page >> self.shift
    }

    #[inline]
    pub(crate) fn granule(&self, granule: usize) -> GranuleWord {
        self.granules.get(granule)
    }

    #[inline]
    fn word(&self, page: usize) -> PageWord {
        PageWord(self.words[page].load(Ordering::Acquire))
    }

    pub(crate) fn zero_granules(&self) -> u64 {
        self.granules.zero()
    }

    fn guard(&self, granule: usize, seen: GranuleWord) -> Guard<'_> {
        Guard { word: self.granules.word(granule), mask: OPEN_MASK, expect: seen.open_expect() }
    }

    #[inline]
    fn exchange(&self, page: usize, seen: GranuleWord, old: PageWord, new: PageWord) -> Outcome {
        let guard = self.guard(self.granule_of(page), seen);
        loop {
            let end = self.critical.exchange(guard, &self.words[page], old.0, new.0);
            if end != Outcome::Aborted {
                return end;
            }
        }
    }

    #[inline]
    fn enter(&self, granule: usize, seen: GranuleWord, adds: Adds) -> bool {
        let counted = self.critical.counts_writers();
        if adds == Adds::Nothing && !counted {
            return true;
        }
        let change = |now: GranuleWord| {
            if !now.is_open() || now.epoch() != seen.epoch() {
                return None;
            }
            let now = match adds {
                Adds::Nothing => now,
                Adds::Page => now.with_live_added()?.with_zero(ZeroState::Unknown),
                Adds::ZeroPage => now.with_live_added()?,
            };
            if counted {
                now.pinned()
            } else {
                Some(now)
            }
        };
        self.granules.update(granule, change).is_ok()
    }

    #[inline]
    fn leave(&self, granule: usize) {
        if self.critical.counts_writers() {
            let _ = self.granules.update(granule, |now| Some(now.unpinned()));
        }
    }

    /// Subtracts a page from the granule's live count. Returns false if a recall already did so.
    #[inline]
    fn uncount(&self, granule: usize, seen: GranuleWord) -> bool {
        let same = |now: GranuleWord| now.epoch() == seen.epoch();
        self.granules.update(granule, |now| same(now).then(|| now.with_live_removed(1))).is_ok()
    }

    /// Claims `page`, from a tenant if `held` is the word that [`Lent::holds`] returned. Fails if
    /// first class holds the page or closes its granule, a tenant writes to the page, or the page
    /// has changed since, because its new bytes may be wanted.
    #[inline]
    pub(crate) fn claim(&self, page: usize, held: Option<PageWord>) -> Result<Claim, NoClaim> {
        self.claim_adding(page, held, Adds::Page)
    }

    #[inline]
    fn claim_adding(
        &self,
        page: usize,
        held: Option<PageWord>,
        new: Adds,
    ) -> Result<Claim, NoClaim> {
        let granule = self.granule_of(page);
        let seen = self.granule(granule);
        let old = self.word(page);
        let adds = match old.state(seen.epoch()) {
            PageState::Free | PageState::Zero if held.is_none() => new,
            PageState::Valid if held == Some(old) => Adds::Nothing,
            _ => return Err(NoClaim::Taken),
        };
        if !seen.is_open() || !self.enter(granule, seen, adds) {
            return Err(NoClaim::Taken);
        }
        let word = old.next(PageState::Writing, seen.epoch());
        if self.exchange(page, seen, old, word) == Outcome::Done {
            return Ok(Claim { page, word, seen, evicted: adds == Adds::Nothing });
        }
        self.leave(granule);
        if adds != Adds::Nothing && !self.uncount(granule, seen) {
            return Err(NoClaim::Recalled);
        }
        Err(NoClaim::Taken)
    }

    #[inline]
    pub(crate) fn fill(
        &self,
        claim: Claim,
        meta: Meta,
        bytes: &[u8],
    ) -> Result<PageUse, NotFilled> {
        let at = claim.word.use_of(claim.page);
        self.fill_as(claim, PageState::Valid, meta, bytes).map(|_| at)
    }

    #[inline]
    #[allow(unsafe_code)]
    fn fill_as(
        &self,
        claim: Claim,
        state: PageState,
        meta: Meta,
        bytes: &[u8],
    ) -> Result<GranuleWord, NotFilled> {
        debug_assert_eq!(bytes.len() as u64, self.frames.page().bytes().get());
        let granule = self.granule_of(claim.page);
        let guard = self.guard(granule, claim.seen);
        let fill = Fill {
            target: &self.words[claim.page],
            claim: claim.word.0,
            commit: claim.word.become_state(state).0,
            meta_at: &self.meta[claim.page],
            meta,
            to: self.frames.at(claim.page),
            from: bytes.as_ptr(),
            len: bytes.len(),
        };
        for _ in 0..ABORTS_MAX {
            // SAFETY: `bytes` is a slice of one page. The reserve gives the target page to nobody
            // as a slice while the guard holds; readers copy the page out and then check its word.
            match unsafe { self.critical.fill(guard, &fill) } {
                Outcome::Done => {
                    self.leave(granule);
                    return Ok(claim.seen);
                }
                Outcome::Aborted => {}
                Outcome::Refused | Outcome::Lost => {
                    self.leave(granule);
                    return Err(NotFilled::Recalled);
                }
            }
        }
        Err(self.give_up(&claim))
    }

    fn give_up(&self, claim: &Claim) -> NotFilled {
        let granule = self.granule_of(claim.page);
        let free = claim.word.next(PageState::Free, claim.seen.epoch());
        let end = self.exchange(claim.page, claim.seen, claim.word, free);
        self.leave(granule);
        if end == Outcome::Done && self.uncount(granule, claim.seen) {
            return NotFilled::Interrupted;
        }
        NotFilled::Recalled
    }

    #[inline]
    pub(crate) fn holds(&self, page: usize) -> Option<(PageWord, GranuleWord, Meta)> {
        let seen = self.granule(self.granule_of(page));
        let word = self.word(page);
        if word.state(seen.epoch()) != PageState::Valid {
            return None;
        }
        let meta = self.peek(page);
        self.unchanged(page, word, seen).then_some((word, seen, meta))
    }

    #[inline]
    pub(crate) fn holds_use(&self, at: PageUse) -> Option<(PageWord, GranuleWord, Meta)> {
        self.holds(at.page).filter(|(word, ..)| word.use_of(at.page) == at)
    }

    /// Returns the key words as a hint, unchecked.
    #[inline]
    pub(crate) fn peek(&self, page: usize) -> Meta {
        self.meta[page].each_ref().map(|m| m.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn prefetch(&self, page: usize) {
        prefetch(&self.words[page]);
        prefetch(&self.meta[page]);
    }

    #[inline]
    pub(crate) fn prefetch_page(&self, page: usize) {
        self.prefetch(page);
        self.frames.prefetch(page);
    }

    #[inline]
    fn unchanged(&self, page: usize, word: PageWord, seen: GranuleWord) -> bool {
        fence(Ordering::Acquire);
        self.words[page].load(Ordering::Relaxed) == word.0
            && self.granule(self.granule_of(page)).epoch() == seen.epoch()
    }

    /// Copies a page. Returns false, and may change `buf`, unless `at` still holds `key`.
    #[inline]
    pub(crate) fn read(&self, at: PageUse, key: &Meta, buf: &mut [u8]) -> bool {
        self.read_part(at, key, 0, buf)
    }

    #[inline]
    pub(crate) fn read_part(&self, at: PageUse, key: &Meta, offset: usize, buf: &mut [u8]) -> bool {
        match self.holds_use(at) {
            Some((word, seen, meta)) if meta == *key => {
                self.frames.read(at.page, offset, buf);
                self.unchanged(at.page, word, seen)
            }
            _ => false,
        }
    }

    pub(crate) fn discard_use(&self, at: PageUse) -> bool {
        self.holds_use(at).is_some_and(|(word, seen, _)| self.discard(at.page, word, seen))
    }

    /// Frees a page. Returns false if the granule is closed or another thread interferes.
    pub(crate) fn discard(&self, page: usize, word: PageWord, seen: GranuleWord) -> bool {
        let granule = self.granule_of(page);
        if !seen.is_open() || !self.enter(granule, seen, Adds::Nothing) {
            return false;
        }
        let free = word.next(PageState::Free, seen.epoch());
        let done = self.exchange(page, seen, word, free) == Outcome::Done;
        self.leave(granule);
        done && self.uncount(granule, seen)
    }
}
