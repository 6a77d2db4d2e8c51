//! The lending protocol: tenants copy into pages that first class does not hold, first class
//! takes them back at once, and no tenant ever writes a page that first class holds.
//!
//! Owns the granule words, the page words, the key words beside each page, and the bytes. The
//! tenants' half is in [`tenant`], the recall in [`recall`]. Which page a tenant uses and which
//! block first class takes is decided above; the caller of a recall owns its block's positions.
//!
//! Why a page of a block is never written by a tenant: a tenant commits a claim or a fill only in
//! a guarded sequence ([`super::critical`]) that sees its granule open and in the epoch of its
//! claim. A recall first closes its granules, then ends all sequences by one barrier, and only
//! then changes epochs and page words, so that an interrupted sequence finds the granule closed,
//! or another epoch, or another page word than its claim.
//!
//! Cost: claim, fill and read touch one granule word and one page word. A recall of `n` pages is
//! two exchanges a granule, one barrier, and one store a page in the at most two granules that it
//! shares with others.

mod presence;
mod recall;
mod tenant;
mod zero;

use super::critical::Critical;
use super::frames::Frames;
use super::granule::{GranuleWord, PAGES_MAX};
use super::page_word::PageWord;
use super::table::{Table, Tables};
use crate::error::OsError;
use crate::sync::{AtomicU64, Ordering};
use crate::sys::rseq::META_WORDS;

pub(crate) use recall::NotTaken;
pub(crate) use tenant::{Claim, NoClaim, NotFilled};

/// Words kept beside a page, written with it: they say whose bytes it holds.
pub(crate) type Meta = [u64; META_WORDS];

#[derive(Debug)]
pub(crate) struct Lent {
    granules: Table<AtomicU64>,
    words: Table<AtomicU64>,
    meta: Table<[AtomicU64; META_WORDS]>,
    frames: Frames,
    critical: Critical,
    /// log2 of the pages in a granule.
    shift: u32,
    /// Granules whose word says zero.
    zero_granules: AtomicU64,
}

/// Keeps a count of granules of which something holds, as one word changes.
#[inline]
fn follow(count: &AtomicU64, before: bool, after: bool) {
    if before != after {
        count_change(count, after);
    }
}

/// Seldom: one page in a granule's hundreds is the first or the last.
#[cold]
fn count_change(count: &AtomicU64, after: bool) {
    if after {
        count.fetch_add(1, Ordering::Relaxed);
    } else {
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lent {
    /// The first `present` of `frames`, free and zero, and room for the rest of `pages`, in
    /// granules of `1 << shift` pages. Both are multiples of that.
    pub(crate) fn new(
        tables: &mut Tables,
        frames: Frames,
        (pages, present): (usize, usize),
        shift: u32,
        critical: Critical,
    ) -> Result<Self, OsError> {
        let whole = pages % (1 << shift) == 0 && present % (1 << shift) == 0;
        assert!(1 << shift <= PAGES_MAX && whole && present <= pages, "{pages} by 2^{shift}");
        let has_memory = present >> shift;
        let granule = |n| if n < has_memory { GranuleWord::fresh() } else { GranuleWord::absent() };
        let words: Table<AtomicU64> = tables.zeros(pages)?;
        let meta: Table<[AtomicU64; META_WORDS]> = tables.zeros(pages)?;
        // Written where there is memory, so that no first put waits for the kernel.
        for (word, meta) in words.iter().zip(meta.iter()).take(present) {
            word.store(PageWord::fresh().0, Ordering::Relaxed);
            meta.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        Ok(Self {
            granules: tables.table(pages >> shift, |n| AtomicU64::new(granule(n).0))?,
            words,
            meta,
            frames,
            critical,
            shift,
            zero_granules: AtomicU64::new(has_memory as u64),
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

    /// The word of a granule, as it is now.
    #[inline]
    pub(crate) fn granule(&self, granule: usize) -> GranuleWord {
        GranuleWord(self.granules[granule].load(Ordering::Acquire))
    }

    #[inline]
    fn word(&self, page: usize) -> PageWord {
        PageWord(self.words[page].load(Ordering::Acquire))
    }

    /// Changes a granule word by `change` until nobody came between; `None` from it leaves the
    /// word alone. Gives the word before, as `Ok` if it was changed.
    #[inline]
    fn update(
        &self,
        granule: usize,
        mut change: impl FnMut(GranuleWord) -> Option<GranuleWord>,
    ) -> Result<GranuleWord, GranuleWord> {
        let word = &self.granules[granule];
        let mut now = word.load(Ordering::Acquire);
        loop {
            let Some(next) = change(GranuleWord(now)) else { return Err(GranuleWord(now)) };
            match word.compare_exchange_weak(now, next.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let now = GranuleWord(now);
                    follow(&self.zero_granules, now.is_zero(), next.is_zero());
                    return Ok(now);
                }
                Err(other) => now = other,
            }
        }
    }

    /// As [`Lent::update`], where nothing can stand against the change.
    fn change(&self, granule: usize, change: impl Fn(GranuleWord) -> GranuleWord) -> GranuleWord {
        let (Ok(before) | Err(before)) = self.update(granule, |now| Some(change(now)));
        before
    }

    /// Granules that are known to hold nothing but zeros.
    pub(crate) fn zero_granules(&self) -> u64 {
        self.zero_granules.load(Ordering::Relaxed)
    }
}
