//! [`Entries`]: the entries of a pool, which never move, so that they are read without a lock.
//!
//! Entries lie in *segments* of 64, each with a word of bits that says which are free. A lane of
//! threads takes entries of its own current segment, by one exchange; what is born at one time
//! lies together, whatever its class, and so mostly dies together. A segment without a free entry
//! is nobody's current one; the first entry that is freed in it makes it *available*. A segment
//! that is all free is *released*, and a page of nothing but such leaves; lowest first otherwise.
//! The generations of a page that left are kept as the highest of them.
//!
//! When the generations of an entry have come round, its *epoch* counts one more: a byte an entry,
//! of which a page is present once an entry there needs it. Both together are the *use* that a
//! handle names. An entry of which the last epoch is over is *retired*: nobody takes it any more.
//!
//! Whoever frees an entry has stored its free word before. Lock: its own, taken inside a class's
//! or alone, about once a segment. Cost: two exchanges for each object's life.

use super::account::{Account, NoRoom};
use super::bits::Bits;
use super::entry::{Entry, EPOCH_BITS, GENERATION_BITS};
use super::words::Words;
use crate::sync::{lock, AtomicU64, Mutex, Ordering};
use crate::units::{Bytes, PageSize};

/// Entries of a segment: the bits of a word.
const SEGMENT: u32 = u64::BITS;
const ALL: u64 = u64::MAX;
/// No segment.
const NONE: u64 = u64::MAX;
/// Epochs of a word.
const EPOCHS: u32 = u64::BITS / EPOCH_BITS;
const EPOCH_LAST: u32 = (1 << EPOCH_BITS) - 1;

/// A lane's current segment, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Lane(AtomicU64);

/// See the module.
#[derive(Debug)]
pub(crate) struct Entries {
    words: Words,
    /// Free entries, a word a segment.
    free: Words,
    epochs: Words,
    /// Whether any epoch is not the first.
    has_epochs: AtomicU64,
    /// After this one an entry is retired.
    pub(crate) epoch_last: u32,
    lanes: Box<[Lane]>,
    state: Mutex<State>,
    page: PageSize,
}

#[derive(Debug, Default)]
struct State {
    available: Bits,
    released: Bits,
    /// From here on no segment was ever used.
    fresh: u32,
    pages: Vec<Page>,
    /// Pages of `free` that are present.
    free_pages: u32,
    /// Pages of `epochs` that are present.
    epoch_pages: Bits,
    /// A page without segments that is still present.
    spare: Option<u32>,
}

/// A page of entries.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    segments: u16,
    /// Entries that are retired.
    retired: u16,
    is_present: bool,
    /// What uses begin with.
    base: u32,
}

impl Entries {
    /// Room for `most` entries, for as many lanes of threads.
    pub(crate) fn new(
        words: Words,
        free: Words,
        epochs: Words,
        lanes: usize,
        page: PageSize,
    ) -> Self {
        let lanes = (0..lanes).map(|_| Lane(AtomicU64::new(NONE))).collect();
        let (has_epochs, epoch_last) = (AtomicU64::new(0), EPOCH_LAST);
        let state = Mutex::new(State::default());
        Self { words, free, epochs, has_epochs, epoch_last, lanes, state, page }
    }

    /// The words that [`Entries::new`] wants for `most` entries.
    pub(crate) const fn lens(most: usize) -> (usize, usize, usize) {
        let segments = most.div_ceil(SEGMENT as usize);
        let entries = segments * SEGMENT as usize;
        (entries, segments, entries / EPOCHS as usize)
    }

    fn words_per_page(&self) -> u32 {
        (self.page.bytes().get() / size_of::<u64>() as u64) as u32
    }

    /// What an entry says; a free one where there is none.
    #[inline]
    pub(crate) fn load(&self, index: u32) -> Entry {
        let word = self.words.get(index as usize);
        Entry::from_raw(word.map_or(0, |word| word.load(Ordering::SeqCst)))
    }

    /// Whether a word that was loaded before is that of the use of its entry that a handle names.
    #[inline]
    pub(crate) fn is(&self, index: u32, entry: Entry, named: u32) -> bool {
        let low = named & ((1 << GENERATION_BITS) - 1);
        entry.is_live()
            && entry.generation() == low
            && self.epoch(index) == named >> GENERATION_BITS
    }

    #[inline]
    fn epoch(&self, index: u32) -> u32 {
        if self.has_epochs.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let word = self.epochs.get((index / EPOCHS) as usize);
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
        self.words[index as usize].store(entry.raw(), Ordering::Release);
    }

    /// Changes a live entry; under the lock of the class in which its object lies.
    #[inline]
    pub(crate) fn exchange(&self, index: u32, entry: Entry) {
        self.words[index as usize].swap(entry.raw(), Ordering::SeqCst);
    }

    /// Changes an entry that is still `from`, of an object without a place; whether it was.
    pub(crate) fn exchange_if(&self, index: u32, from: Entry, to: Entry) -> bool {
        let word = &self.words[index as usize];
        let (from, to) = (from.raw(), to.raw());
        word.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Takes an entry: its index and the use of it that a handle is to name.
    #[inline]
    pub(crate) fn alloc(&self, account: &Account, lane: usize) -> Result<(u32, u32), NoRoom> {
        let lane = &self.lanes[lane];
        loop {
            let segment = lane.0.load(Ordering::Relaxed);
            if segment != NONE {
                if let Some(index) = self.take_of(segment as u32) {
                    return Ok((index, self.named(index, self.load(index))));
                }
            }
            self.refill(account, lane)?;
        }
    }

    #[inline]
    fn take_of(&self, segment: u32) -> Option<u32> {
        let free = &self.free[segment as usize];
        let mut old = free.load(Ordering::Relaxed);
        while old != 0 {
            let left = old & (old - 1);
            match free.compare_exchange_weak(old, left, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(segment * SEGMENT + old.trailing_zeros()),
                Err(other) => old = other,
            }
        }
        None
    }

    /// Gives a lane a segment with free entries.
    #[cold]
    fn refill(&self, account: &Account, lane: &Lane) -> Result<(), NoRoom> {
        let mut state = lock(&self.state);
        while let Some(segment) = state.available.take(1) {
            if self.free[segment as usize].load(Ordering::Relaxed) != 0 {
                lane.0.store(segment.into(), Ordering::Relaxed);
                return Ok(());
            }
        }
        let released = state.released.take(1);
        let segment = released.unwrap_or(state.fresh);
        if let Err(error) = self.begin(account, &mut state, segment) {
            released.into_iter().for_each(|segment| state.released.put(segment, 1));
            return Err(error);
        }
        state.fresh = state.fresh.max(segment + 1);
        lane.0.store(segment.into(), Ordering::Relaxed);
        Ok(())
    }

    /// Makes a segment usable.
    fn begin(&self, account: &Account, state: &mut State, segment: u32) -> Result<(), NoRoom> {
        if segment as usize >= self.free.len() {
            return Err(NoRoom::Space);
        }
        let per_page = self.words_per_page();
        if segment / per_page >= state.free_pages {
            self.come(account, &self.free, segment / per_page)?;
            state.free_pages = segment / per_page + 1;
        }
        let page = segment * SEGMENT / per_page;
        if state.pages.len() <= page as usize {
            state.pages.resize(page as usize + 1, Page::default());
        }
        let about = &mut state.pages[page as usize];
        if !about.is_present {
            self.come(account, &self.words, page)?;
            about.is_present = true;
            self.rebase(page, about.base);
        }
        about.segments += 1;
        if state.spare == Some(page) {
            state.spare = None;
        }
        self.free[segment as usize].store(ALL, Ordering::Release);
        Ok(())
    }

    /// Makes every entry of a page that came begin with a use.
    fn rebase(&self, page: u32, base: u32) {
        let (per_page, word) = (self.words_per_page(), Entry::free(base).raw());
        let (first, end) = ((page * per_page) as usize, ((page + 1) * per_page) as usize);
        if word != 0 {
            let words = &self.words[first..end.min(self.words.len())];
            words.iter().for_each(|at| at.store(word, Ordering::Relaxed));
        }
        let epoch = u64::from(base >> GENERATION_BITS);
        if epoch != 0 {
            // The page of these is present: `base` was the use of an entry here.
            let word = epoch * (u64::MAX / u64::from(EPOCH_LAST));
            let end = end.min(self.words.len()) / EPOCHS as usize;
            let words = &self.epochs[first / EPOCHS as usize..end];
            words.iter().for_each(|at| at.store(word, Ordering::Release));
        }
    }

    fn come(&self, account: &Account, words: &Words, page: u32) -> Result<(), NoRoom> {
        let bytes = self.page.bytes();
        if !account.charge(bytes.get()) {
            return Err(NoRoom::Limit);
        }
        words.populate(page as usize, bytes).map_err(|error| {
            account.release(bytes.get());
            NoRoom::Os(error)
        })
    }

    /// Gives an entry back whose object is gone and whose word says so.
    #[inline]
    pub(crate) fn free(&self, account: &Account, lane: usize, index: u32) {
        if self.load(index).generation() == 0 && !self.next_epoch(account, index) {
            return self.retire(account, index);
        }
        self.put_back(account, lane, index);
    }

    /// Gives an entry back that was never published.
    #[inline]
    pub(crate) fn put_back(&self, account: &Account, lane: usize, index: u32) {
        let (segment, bit) = (index / SEGMENT, 1 << (index % SEGMENT));
        let old = self.free[segment as usize].fetch_or(bit, Ordering::AcqRel);
        debug_assert_eq!(old & bit, 0, "entry {index} was free");
        if old == 0 {
            self.make_available(segment);
        } else if old | bit == ALL
            && self.lanes[lane].0.load(Ordering::Relaxed) != u64::from(segment)
        {
            self.release(account, segment);
        }
    }

    /// Begins an epoch of an entry; false if there is none left, or no memory to count it.
    #[cold]
    fn next_epoch(&self, account: &Account, index: u32) -> bool {
        if self.epoch(index) >= self.epoch_last {
            return false;
        }
        let mut state = lock(&self.state);
        let page = index / EPOCHS / self.words_per_page();
        if !state.epoch_pages.contains(page) {
            if self.come(account, &self.epochs, page).is_err() {
                return false;
            }
            state.epoch_pages.put(page, 1);
        }
        let one = 1 << (index % EPOCHS * EPOCH_BITS);
        self.epochs[(index / EPOCHS) as usize].fetch_add(one, Ordering::AcqRel);
        self.has_epochs.store(1, Ordering::Release);
        true
    }

    /// Takes an entry out of use for good; a page that has no other leaves.
    #[cold]
    fn retire(&self, account: &Account, index: u32) {
        let mut state = lock(&self.state);
        let per_page = self.words_per_page();
        let about = &mut state.pages[(index / per_page) as usize];
        about.retired += 1;
        let page = index / per_page;
        let bytes = self.page.bytes();
        if u32::from(about.retired) == per_page && self.words.discard(page as usize, bytes).is_ok()
        {
            about.is_present = false;
            account.release(bytes.get());
        }
    }

    #[cold]
    fn make_available(&self, segment: u32) {
        let mut state = lock(&self.state);
        if !state.available.contains(segment) && !state.released.contains(segment) {
            state.available.put(segment, 1);
        }
    }

    /// Releases a segment that is all free and no lane's.
    #[cold]
    fn release(&self, account: &Account, segment: u32) {
        let mut state = lock(&self.state);
        let current = |lane: &Lane| lane.0.load(Ordering::Relaxed) == u64::from(segment);
        if self.lanes.iter().any(current) {
            return;
        }
        let free = &self.free[segment as usize];
        if free.compare_exchange(ALL, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        if state.available.contains(segment) {
            state.available.remove(segment, 1);
        }
        state.released.put(segment, 1);
        let page = segment * SEGMENT / self.words_per_page();
        state.pages[page as usize].segments -= 1;
        if state.pages[page as usize].segments == 0 {
            // The lower of two pages without segments stays, for who comes next.
            let spare = state.spare.replace(page);
            if let Some(other) = spare {
                state.spare = Some(page.min(other));
                self.go(account, &mut state, page.max(other));
            }
        }
    }

    /// Gives a page back.
    fn go(&self, account: &Account, state: &mut State, page: u32) {
        let per_page = self.words_per_page();
        let about = &mut state.pages[page as usize];
        let first = page * per_page;
        let uses = (first..first + per_page).map(|index| self.named(index, self.load(index)));
        let base = uses.max().unwrap_or(0);
        if self.words.discard(page as usize, self.page.bytes()).is_ok() {
            about.base = base;
            about.is_present = false;
            account.release(self.page.bytes().get());
        }
    }

    /// Bytes of its tables: those that are charged, and those that are not.
    pub(crate) fn held(&self) -> (Bytes, u64) {
        let state = lock(&self.state);
        let present = state.pages.iter().filter(|page| page.is_present).count() as u64;
        let pages = present + u64::from(state.free_pages) + state.epoch_pages.len() as u64;
        let own = state.pages.capacity() * size_of::<Page>() + size_of_val(&*self.lanes);
        let bits = state.available.held_bytes() + state.released.held_bytes();
        let bits = bits + state.epoch_pages.held_bytes();
        (Bytes::new(pages * self.page.bytes().get()), own as u64 + bits)
    }
}
