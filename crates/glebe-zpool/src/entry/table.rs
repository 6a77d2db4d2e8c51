//! [`Entries`] owns the entries of a pool, by index. Readers take no lock.
//!
//! 64 entries form a *segment*, with a word of free bits. All threads take entries from one
//! *current* segment, so objects of the same age have neighbouring entries. Other segments are
//! *available* if some entries are free and *released* if all are. The next current segment is the
//! lowest available, else the lowest released, else a new segment. A page of released segments is
//! given back, except one spare page.
//!
//! The *use number* of an entry is its generation and, above that, its *epoch*, which counts wraps
//! of the generation. An entry without a next epoch is *retired*: never used again. After a page is
//! populated again, all its entries get its highest use number. Threads lock `state` a few times
//! per segment, and to change the entry of an object without a slot.

mod segments;

use crate::entry::word::{Entry, EPOCH_BITS, GENERATION_BITS};
use crate::memory::account::{Account, NoRoom};
use crate::memory::words::Words;
use glebe_os::internal::sync::{lock, AtomicU64, Mutex, Ordering};
use glebe_os::units::PageSize;
use segments::Segments;

const SEGMENT: u32 = u64::BITS;
const ALL: u64 = u64::MAX;
const NONE: u64 = u64::MAX;
const EPOCHS: u32 = u64::BITS / EPOCH_BITS;
const EPOCH_LAST: u32 = (1 << EPOCH_BITS) - 1;

#[derive(Debug)]
pub(crate) struct Tables {
    words: Words,
    free: Words,
    epochs: Words,
}

impl Tables {
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

#[derive(Debug)]
pub(crate) struct Entries {
    tables: Tables,
    has_epochs: AtomicU64,
    pub(crate) epoch_last: u32,
    current: AtomicU64,
    state: Mutex<Segments>,
    page: PageSize,
    page_shift: u32,
}

impl Entries {
    pub(crate) fn new(tables: Tables, page: PageSize) -> Self {
        let per_page = words_per_page(page);
        Self {
            tables,
            has_epochs: AtomicU64::new(0),
            epoch_last: EPOCH_LAST,
            current: AtomicU64::new(NONE),
            state: Mutex::new(Segments::default()),
            page,
            page_shift: per_page.ilog2(),
        }
    }

    fn words_per_page(&self) -> u32 {
        1 << self.page_shift
    }

    #[inline]
    pub(crate) fn load(&self, index: u32) -> Entry {
        let word = self.tables.words.get(index as usize);
        word.map_or(Entry::free(0), |word| Entry::from_raw(word.load(Ordering::SeqCst)))
    }

    #[inline]
    pub(crate) fn is(&self, index: u32, entry: Entry, named: u32) -> bool {
        let low = named & ((1 << GENERATION_BITS) - 1);
        entry.is_live() && entry.generation() == low && self.is_of_epoch(index, named)
    }

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

    /// Returns the use number of a live entry, or the next of a free entry.
    #[inline]
    pub(crate) fn named(&self, index: u32, entry: Entry) -> u32 {
        self.epoch(index) << GENERATION_BITS | entry.generation()
    }

    /// A reader of the entry sees the caller's earlier writes.
    #[inline]
    pub(crate) fn publish(&self, index: u32, entry: Entry) {
        self.tables.words[index as usize].store(entry.raw(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn exchange(&self, index: u32, from: Entry, to: Entry) -> bool {
        let Some(word) = self.tables.words.get(index as usize) else { return false };
        let (from, to) = (from.raw(), to.raw());
        // Even a failed exchange writes, which would populate a page that was given back.
        word.load(Ordering::Relaxed) == from
            && word.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Serves objects without a slot, whose entries no class's lock guards.
    pub(crate) fn exchange_if(&self, index: u32, named: u32, from: Entry, to: Entry) -> bool {
        // Epochs begin only under this lock, so the check stays true.
        let _state = lock(&self.state);
        self.is_of_epoch(index, named) && self.exchange(index, from, to)
    }

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

    /// Frees an entry whose word was `was` before the caller stored the free word.
    #[inline]
    pub(crate) fn free(&self, account: &Account, index: u32, was: Entry) {
        if was.freed().generation() == 0 && !self.next_epoch(account, index) {
            return self.retire(account, index);
        }
        self.put_back(account, index);
    }

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
