//! [`Entries`]: the entries of a pool by index, which are read without a lock.
//!
//! Entries lie in *segments* of 64, each with a word of bits that says which are free. All threads
//! take entries of one *current* segment, by one exchange: what is born at one time lies together,
//! whatever its class, and so mostly dies together. When the current segment has no free entry,
//! another takes its place; the first entry that is freed in it makes it *available*. A segment
//! that is all free is *released*, and a page of nothing but such leaves; lowest first otherwise.
//! A page of which most entries are free is *packed*: its live ones lie close together in another
//! table, which the *directory* says ([`packed`]). The generations of free entries of a page that
//! left are kept as the highest of them.
//!
//! When the generations of an entry have come round, its *epoch* counts one more: a byte an entry,
//! of which a page is present once an entry there needs it. Both together are the *use* that a
//! handle names. An entry of which the last epoch is over is *retired*: nobody takes it any more.
//!
//! Whoever frees an entry has stored its free word before. Lock: its own, taken inside a class's
//! or alone, a few times a segment. Cost: two exchanges for each object's life.

mod held;
mod packed;
mod segments;
mod store;

use crate::sync::{lock, AtomicU64, MappedWord, Mutex, Ordering};
use crate::units::PageSize;
use crate::zpool::entry::word::{Entry, EPOCH_BITS, GENERATION_BITS};
use crate::zpool::memory::account::{Account, NoRoom};
use crate::zpool::memory::words::Words;
use segments::State;

/// Entries of a segment: the bits of a word.
const SEGMENT: u32 = u64::BITS;
const ALL: u64 = u64::MAX;
/// No segment.
const NONE: u64 = u64::MAX;
/// Epochs of a word.
const EPOCHS: u32 = u64::BITS / EPOCH_BITS;
const EPOCH_LAST: u32 = (1 << EPOCH_BITS) - 1;
/// Whenever so many more entries of a segment are free, it is looked whether the page is sparse.
const LOOK_EVERY: u32 = 8;

/// What entries lie in.
#[derive(Debug)]
pub(crate) struct Tables {
    words: Words,
    /// Free entries, a word a segment. Of a packed page: entries that died since it was packed.
    free: Words,
    epochs: Words,
    /// Where each page of entries is.
    directory: Words,
    /// Entries of packed pages.
    packed: Words,
}

impl Tables {
    /// Room for `most` entries at least, in words that `make` gives.
    pub(crate) fn new<E>(
        most: usize,
        page: PageSize,
        make: impl Fn(usize) -> Result<Words, E>,
    ) -> Result<Self, E> {
        let per_page = words_per_page(page) as usize;
        let pages = most.div_ceil(per_page);
        let entries = pages * per_page;
        Ok(Self {
            words: make(entries)?,
            free: make(entries / SEGMENT as usize)?,
            epochs: make(entries / EPOCHS as usize)?,
            directory: make(pages)?,
            // What is packed takes half of its page at most.
            packed: make(entries / 2)?,
        })
    }
}

const fn words_per_page(page: PageSize) -> u32 {
    (page.bytes().get() / size_of::<u64>() as u64) as u32
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Entries {
    tables: Tables,
    /// Whether any epoch is not the first.
    has_epochs: AtomicU64,
    /// After this one an entry is retired.
    pub(crate) epoch_last: u32,
    /// Live entries of a page that is packed, at most.
    pub(crate) packed_max: u32,
    /// The segment that entries are taken from.
    current: AtomicU64,
    state: Mutex<State>,
    page: PageSize,
    /// Entries of a page, as a power of two.
    page_shift: u32,
}

impl Entries {
    /// No entry yet.
    pub(crate) fn new(tables: Tables, page: PageSize) -> Self {
        let per_page = words_per_page(page);
        Self {
            tables,
            has_epochs: AtomicU64::new(0),
            epoch_last: EPOCH_LAST,
            packed_max: packed::most_live(per_page),
            current: AtomicU64::new(NONE),
            state: Mutex::new(State::default()),
            page,
            page_shift: per_page.ilog2(),
        }
    }

    fn words_per_page(&self) -> u32 {
        1 << self.page_shift
    }

    /// What an entry says; a free one where there is none.
    #[inline]
    pub(crate) fn load(&self, index: u32) -> Entry {
        let page = (index >> self.page_shift) as usize;
        let Some(place) = self.tables.directory.get(page) else { return Entry::free(0) };
        loop {
            let seen = place.load(Ordering::SeqCst);
            if !packed::is_packed(seen) {
                let word = self.tables.words[index as usize].load(Ordering::SeqCst);
                let entry = Entry::from_raw(word);
                // What lives and is not held lies where it belongs.
                if entry.is_live() && !entry.is_held() || place.load(Ordering::SeqCst) == seen {
                    return entry.let_go();
                }
            } else {
                let entry = self.load_packed(seen, index);
                if place.load(Ordering::SeqCst) == seen {
                    return entry.let_go();
                }
            }
        }
    }

    /// Whether a word that was loaded before is that of the use of its entry that a handle names.
    #[inline]
    pub(crate) fn is(&self, index: u32, entry: Entry, named: u32) -> bool {
        let low = named & ((1 << GENERATION_BITS) - 1);
        entry.is_live() && entry.generation() == low && self.is_of_epoch(index, named)
    }

    /// Whether a use of an entry is of its present epoch.
    #[inline]
    pub(crate) fn is_of_epoch(&self, index: u32, named: u32) -> bool {
        self.epoch(index) == named >> GENERATION_BITS
    }

    #[inline]
    fn epoch(&self, index: u32) -> u32 {
        if self.has_epochs.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let word = self.tables.epochs.get((index / EPOCHS) as usize);
        let word = word.map_or(0, |word| word.load(Ordering::Acquire));
        (word >> (index % EPOCHS * EPOCH_BITS)) as u32 & EPOCH_LAST
    }

    /// The use of an entry that its next handle names, or the present one does.
    #[inline]
    pub(crate) fn named(&self, index: u32, entry: Entry) -> u32 {
        self.epoch(index) << GENERATION_BITS | entry.generation()
    }

    /// Makes an entry that is still the caller's known: what it wrote before is seen by readers.
    #[inline]
    pub(crate) fn publish(&self, index: u32, entry: Entry) {
        // A page is not packed while one of its entries is neither free nor live.
        self.tables.words[index as usize].store(entry.raw(), Ordering::Release);
    }

    /// Changes an entry that is still `from`, of an object in a slot; whether it was. Who changed
    /// it has what it named.
    #[inline]
    pub(crate) fn exchange(&self, index: u32, from: Entry, to: Entry) -> bool {
        if self.exchange_own(index, from, to) {
            return true;
        }
        // It is another one, or packed, or being moved by whoever has the lock.
        let _state = lock(&self.state);
        self.try_exchange(index, from, to)
    }

    /// Changes an entry that is `from`, wherever it lies; with the lock, so that it stays there.
    fn try_exchange(&self, index: u32, from: Entry, to: Entry) -> bool {
        let at = self.word_at(self.place_of(index), index);
        at.is_some_and(|at| swapped(at, from, to))
    }

    /// As [`Entries::exchange`] without any lock, if the entry lies in its own place: there no
    /// other one ever lies. Whether it was changed.
    #[inline]
    fn exchange_own(&self, index: u32, from: Entry, to: Entry) -> bool {
        let word = self.tables.words.get(index as usize);
        self.is_dense(index) && word.is_some_and(|word| swapped(word, from, to))
    }

    /// Whether an entry lies where it may be published: what is the caller's stays where it is.
    #[inline]
    fn is_dense(&self, index: u32) -> bool {
        !packed::is_packed(self.place_of(index))
    }

    #[inline]
    fn place_of(&self, index: u32) -> u64 {
        let place = self.tables.directory.get((index >> self.page_shift) as usize);
        place.map_or(0, |place| place.load(Ordering::Acquire))
    }

    /// Changes an entry that is still `from` and what a handle names, of an object without a
    /// place; whether it was.
    pub(crate) fn exchange_if(&self, index: u32, named: u32, from: Entry, to: Entry) -> bool {
        // Others may look the same: those of other entries where pages are packed, and those of
        // this one in other epochs, which begin with the lock.
        let _state = lock(&self.state);
        self.is_of_epoch(index, named) && self.try_exchange(index, from, to)
    }

    /// Takes an entry: its index and the use of it that a handle is to name.
    #[inline]
    pub(crate) fn alloc(&self, account: &Account) -> Result<(u32, u32), NoRoom> {
        loop {
            let segment = self.current.load(Ordering::Relaxed);
            if segment != NONE {
                if let Some(index) = self.take_of(segment as u32) {
                    let word = self.tables.words[index as usize].load(Ordering::Relaxed);
                    return Ok((index, self.named(index, Entry::from_raw(word))));
                }
            }
            self.refill(account, segment)?;
        }
    }

    #[inline]
    fn is_current(&self, segment: u32) -> bool {
        self.current.load(Ordering::Relaxed) == u64::from(segment)
    }

    #[inline]
    fn take_of(&self, segment: u32) -> Option<u32> {
        let free = &self.tables.free[segment as usize];
        let lowest = |old: u64| (old != 0).then(|| old & (old - 1));
        let old = free.fetch_update(Ordering::Acquire, Ordering::Relaxed, lowest).ok()?;
        let index = segment * SEGMENT + old.trailing_zeros();
        if packed::is_packed(self.place_of(index)) {
            // The segment is current no more: what died there is nobody's to take.
            free.fetch_or(1 << (index % SEGMENT), Ordering::AcqRel);
            return None;
        }
        Some(index)
    }

    /// Gives an entry back whose object is gone and whose word says so since it was `was`.
    #[inline]
    pub(crate) fn free(&self, account: &Account, index: u32, was: Entry) {
        if was.freed().generation() == 0 && !self.next_epoch(account, index) {
            return self.retire(account, index);
        }
        self.put_back(account, index);
    }

    /// Gives an entry back that was never published.
    #[inline]
    pub(crate) fn put_back(&self, account: &Account, index: u32) {
        let (segment, bit) = (index / SEGMENT, 1 << (index % SEGMENT));
        let old = self.tables.free[segment as usize].fetch_or(bit, Ordering::AcqRel);
        debug_assert_eq!(old & bit, 0, "entry {index} was free");
        let seen = self.place_of(index);
        if packed::is_packed(seen) {
            if self.is_worth_a_look(seen, segment, old | bit) {
                self.look_at(account, index >> self.page_shift);
            }
        } else if old == 0 {
            self.make_available(account, segment);
        } else if old | bit == ALL {
            if !self.is_current(segment) {
                self.release(account, segment);
            }
        } else if (old | bit).count_ones() % LOOK_EVERY == 0 {
            self.pack_if_sparse(account, index >> self.page_shift);
        }
    }
}

/// Changes a word that is `from`; whether it was.
#[inline]
fn swapped(at: &MappedWord, from: Entry, to: Entry) -> bool {
    // Without a write where it is another: its page may be nobody's.
    let (from, to) = (from.raw(), to.raw());
    at.load(Ordering::Relaxed) == from
        && at.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

#[cfg(all(test, not(loom)))]
mod tests;
