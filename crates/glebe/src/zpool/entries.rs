//! [`Entries`]: the entries of a pool, which never move, so that they are read without a lock.
//!
//! Entries lie in *segments* of 64, each with a word of bits that says which are free. A lane of
//! threads takes entries of its own current segment, by one exchange; what is born at one time
//! lies together, whatever its class, and so mostly dies together. A segment without a free entry
//! is nobody's current one; the first entry that is freed in it makes it *available*. A segment
//! that is all free is *released*, and a page of nothing but such leaves; lowest first otherwise.
//! The generations of a page that left are kept as the highest of them.
//!
//! Whoever frees an entry has stored its free word before. Lock: its own, taken inside a class's
//! or alone, about once a segment. Cost: two exchanges for each object's life.

use super::account::{Account, NoRoom};
use super::bits::Bits;
use super::entry::{Entry, GENERATION_BITS};
use super::words::Words;
use crate::sync::{lock, AtomicU64, Mutex, Ordering};
use crate::units::{Bytes, PageSize};

/// Entries of a segment: the bits of a word.
const SEGMENT: u32 = u64::BITS;
const ALL: u64 = u64::MAX;
/// No segment.
const NONE: u64 = u64::MAX;

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
    /// A page without segments that is still present.
    spare: Option<u32>,
}

/// A page of entries.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    segments: u16,
    is_present: bool,
    /// What generations begin with.
    base: u16,
}

impl Entries {
    /// Room for `most` entries, for as many lanes of threads.
    pub(crate) fn new(words: Words, free: Words, lanes: usize, page: PageSize) -> Self {
        let lanes = (0..lanes).map(|_| Lane(AtomicU64::new(NONE))).collect();
        Self { words, free, lanes, state: Mutex::new(State::default()), page }
    }

    /// The words that [`Entries::new`] wants for `most` entries.
    pub(crate) const fn lens(most: usize) -> (usize, usize) {
        let segments = most.div_ceil(SEGMENT as usize);
        (segments * SEGMENT as usize, segments)
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

    /// Takes an entry: its index and generation.
    #[inline]
    pub(crate) fn alloc(&self, account: &Account, lane: usize) -> Result<(u32, u32), NoRoom> {
        let lane = &self.lanes[lane];
        loop {
            let segment = lane.0.load(Ordering::Relaxed);
            if segment != NONE {
                if let Some(index) = self.take_of(segment as u32) {
                    return Ok((index, self.load(index).generation()));
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
        }
        about.segments += 1;
        let base = Entry::free(about.base.into()).raw();
        if state.spare == Some(page) {
            state.spare = None;
        }
        if base != 0 {
            let first = (segment * SEGMENT) as usize;
            for word in &self.words[first..first + SEGMENT as usize] {
                if word.load(Ordering::Relaxed) == 0 {
                    word.store(base, Ordering::Relaxed);
                }
            }
        }
        self.free[segment as usize].store(ALL, Ordering::Release);
        Ok(())
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

    /// Gives an entry back whose word says already that it is free.
    #[inline]
    pub(crate) fn free(&self, account: &Account, lane: usize, index: u32) {
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
        let first = (page * per_page) as usize;
        let after = |word: u64| {
            let ahead = Entry::from_raw(word).generation().wrapping_sub(about.base.into());
            ahead & ((1 << GENERATION_BITS) - 1)
        };
        let words = &self.words[first..first + per_page as usize];
        let most = words.iter().map(|word| word.load(Ordering::Relaxed)).filter(|word| *word != 0);
        let most = most.map(after).max().unwrap_or(0);
        let base = Entry::free(u32::from(about.base) + most).generation() as u16;
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
        let pages = present + u64::from(state.free_pages);
        let own = state.pages.capacity() * size_of::<Page>() + size_of_val(&*self.lanes);
        let bits = state.available.held_bytes() + state.released.held_bytes();
        (Bytes::new(pages * self.page.bytes().get()), own as u64 + bits)
    }
}
