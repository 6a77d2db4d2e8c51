//! [`Entries`]: the entries of a pool by index, which are read without a lock.
//!
//! Entries lie in *segments* of 64, each with a word of bits that says which are free. All threads
//! take entries of one *current* segment, by one exchange: what is born at one time lies together,
//! whatever its class, and so mostly dies together. When the current segment has no free entry,
//! another takes its place; the first entry that is freed in it makes it *available*. A segment
//! that is all free is *released*, and a page of nothing but such leaves; lowest first otherwise.
//! The generations of the entries of a page that left are kept as the highest of them.
//!
//! When the generations of an entry have come round, its *epoch* counts one more: a byte an entry,
//! of which a page is present once an entry there needs it. Both together are the *use* that a
//! handle names. An entry of which the last epoch is over is *retired*: nobody takes it any more.
//!
//! Whoever frees an entry has stored its free word before. Lock: its own, a few times a segment.
//! Cost: two exchanges for each object's life.

mod segments;

use crate::sync::{lock, AtomicU64, Mutex, Ordering};
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

/// What entries lie in.
#[derive(Debug)]
pub(crate) struct Tables {
    words: Words,
    /// Free entries, a word a segment.
    free: Words,
    epochs: Words,
}

impl Tables {
    /// Room for `most` entries at least, in words that `make` gives.
    pub(crate) fn new<E>(
        most: usize,
        page: PageSize,
        make: impl Fn(usize) -> Result<Words, E>,
    ) -> Result<Self, E> {
        let entries = most.next_multiple_of(words_per_page(page) as usize);
        Ok(Self {
            words: make(entries)?,
            free: make(entries / SEGMENT as usize)?,
            epochs: make(entries / EPOCHS as usize)?,
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
        let word = self.tables.words.get(index as usize);
        word.map_or(Entry::free(0), |word| Entry::from_raw(word.load(Ordering::SeqCst)))
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
        self.tables.words[index as usize].store(entry.raw(), Ordering::Release);
    }

    /// Changes an entry that is still `from`, of an object in a slot; whether it was.
    #[inline]
    pub(crate) fn exchange(&self, index: u32, from: Entry, to: Entry) -> bool {
        let Some(word) = self.tables.words.get(index as usize) else { return false };
        let (from, to) = (from.raw(), to.raw());
        // No write where it is another: its page may have been given back.
        word.load(Ordering::Relaxed) == from
            && word.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Changes an entry that is still `from` and what a handle names, of an object without a
    /// place; whether it was.
    pub(crate) fn exchange_if(&self, index: u32, named: u32, from: Entry, to: Entry) -> bool {
        // An epoch begins only under this lock, so none begins between the check and the exchange.
        let _state = lock(&self.state);
        self.is_of_epoch(index, named) && self.exchange(index, from, to)
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
        Some(segment * SEGMENT + old.trailing_zeros())
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
        if old == 0 {
            self.make_available(segment);
        } else if old | bit == ALL && !self.is_current(segment) {
            self.release(account, segment);
        }
    }

    /// Has a free entry go on with the next epoch and this generation, as if others had used it.
    #[cfg(loom)]
    pub(crate) fn next_epoch_with(&self, index: u32, generation: u32) {
        self.tables.words[index as usize].store(Entry::free(generation).raw(), Ordering::SeqCst);
        let one = 1 << (index % EPOCHS * EPOCH_BITS);
        let _state = lock(&self.state);
        self.tables.epochs[(index / EPOCHS) as usize].fetch_add(one, Ordering::AcqRel);
        self.has_epochs.store(1, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
