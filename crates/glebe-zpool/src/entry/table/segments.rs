//! [`Segments`] is the locked part of [`Entries`].

use super::{Entries, ALL, EPOCHS, EPOCH_BITS, EPOCH_LAST, SEGMENT};
use crate::entry::word::{Entry, GENERATION_BITS};
use crate::memory::account::{Account, NoRoom};
use crate::memory::bits::{resize_close, Bits};
use crate::memory::words::Words;
use glebe_os::internal::sync::{lock, Ordering};
use glebe_os::units::Bytes;

#[derive(Debug, Default)]
pub(super) struct Segments {
    pub(super) available: Bits,
    pub(super) released: Bits,
    pub(super) fresh: u32,
    pub(super) pages: Vec<Page>,
    /// Present pages of the table `free`.
    pub(super) free_pages: Bits,
    pub(super) epoch_pages: Bits,
    pub(super) spare: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Page {
    pub(super) segments: u16,
    pub(super) retired: u16,
    pub(super) is_present: bool,
    /// Use number of all entries after the page is populated again.
    pub(super) base: u32,
}

impl Entries {
    #[cold]
    pub(super) fn refill(&self, account: &Account, had: u64) -> Result<(), NoRoom> {
        let mut state = lock(&self.state);
        if self.current.load(Ordering::Relaxed) != had {
            return Ok(());
        }
        while let Some(segment) = state.available.take(1) {
            if self.tables.free[segment as usize].load(Ordering::Relaxed) != 0 {
                self.current.store(segment.into(), Ordering::Relaxed);
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
        self.current.store(segment.into(), Ordering::Relaxed);
        Ok(())
    }

    fn begin(&self, account: &Account, state: &mut Segments, segment: u32) -> Result<(), NoRoom> {
        if segment as usize >= self.tables.free.len() {
            return Err(NoRoom::Space);
        }
        let per_page = self.words_per_page();
        if !state.free_pages.contains(segment / per_page) {
            self.come(account, &self.tables.free, segment / per_page)?;
            state.free_pages.put(segment / per_page, 1);
        }
        let page = self.page_of(segment);
        if state.pages.len() <= page as usize {
            resize_close(&mut state.pages, page as usize + 1, Page::default());
        }
        let Page { is_present, base, .. } = state.pages[page as usize];
        if !is_present {
            self.come(account, &self.tables.words, page)?;
            if base != 0 {
                self.rebase(page, base);
            }
        }
        let about = &mut state.pages[page as usize];
        about.is_present = true;
        about.segments += 1;
        if state.spare == Some(page) {
            state.spare = None;
        }
        self.tables.free[segment as usize].store(ALL, Ordering::Release);
        Ok(())
    }

    /// `page` is newly populated.
    fn rebase(&self, page: u32, base: u32) {
        let (per_page, word) = (self.words_per_page() as usize, Entry::free(base).raw());
        let first = page as usize * per_page;
        let words = &self.tables.words[first..first + per_page];
        words.iter().for_each(|at| at.store(word, Ordering::Relaxed));
        let epoch = u64::from(base >> GENERATION_BITS);
        if epoch != 0 {
            // An entry of `page` had the epoch of `base`, so the page of `epochs` is populated.
            let word = epoch * (u64::MAX / u64::from(EPOCH_LAST));
            let words =
                &self.tables.epochs[first / EPOCHS as usize..][..per_page / EPOCHS as usize];
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

    /// Counts a wrap of the entry's generation. Returns false after the last epoch, or without
    /// memory for the count.
    #[cold]
    pub(super) fn next_epoch(&self, account: &Account, index: u32) -> bool {
        if self.epoch(index) >= self.epoch_last {
            return false;
        }
        let mut state = lock(&self.state);
        let page = index / EPOCHS / self.words_per_page();
        if !state.epoch_pages.contains(page) {
            if self.come(account, &self.tables.epochs, page).is_err() {
                return false;
            }
            state.epoch_pages.put(page, 1);
        }
        let one = 1 << (index % EPOCHS * EPOCH_BITS);
        self.tables.epochs[(index / EPOCHS) as usize].fetch_add(one, Ordering::AcqRel);
        self.has_epochs.store(1, Ordering::Release);
        true
    }

    #[cold]
    pub(super) fn retire(&self, account: &Account, index: u32) {
        let mut state = lock(&self.state);
        let (per_page, page) = (self.words_per_page(), index >> self.page_shift);
        let about = &mut state.pages[page as usize];
        about.retired += 1;
        let bytes = self.page.bytes();
        if u32::from(about.retired) == per_page
            && self.tables.words.discard(page as usize, bytes).is_ok()
        {
            about.is_present = false;
            account.release(bytes.get());
            self.let_free_go(account, &mut state, page);
        }
    }

    /// Gives back the page of `tables.free` with the bits of `page`, unless another present page
    /// has bits there.
    fn let_free_go(&self, account: &Account, state: &mut Segments, page: u32) {
        let shared = SEGMENT;
        let (nth, first) = (page / shared, page / shared * shared);
        let pages = state.pages[first as usize..].iter().take(shared as usize);
        let is_needed = pages.into_iter().any(|page| page.is_present);
        if is_needed || !state.free_pages.contains(nth) {
            return;
        }
        if self.tables.free.discard(nth as usize, self.page.bytes()).is_ok() {
            state.free_pages.remove(nth, 1);
            account.release(self.page.bytes().get());
        }
    }

    #[cold]
    pub(super) fn make_available(&self, segment: u32) {
        let mut state = lock(&self.state);
        if !state.available.contains(segment) && !state.released.contains(segment) {
            state.available.put(segment, 1);
        }
    }

    #[cold]
    pub(super) fn release(&self, account: &Account, segment: u32) {
        let mut state = lock(&self.state);
        if self.is_current(segment) {
            return;
        }
        let page = self.page_of(segment);
        let free = &self.tables.free[segment as usize];
        // Loads first: see [`Entries::exchange`].
        let all_free = free.load(Ordering::Relaxed) == ALL;
        if !all_free || free.compare_exchange(ALL, 0, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return;
        }
        if state.available.contains(segment) {
            state.available.remove(segment, 1);
        }
        state.released.put(segment, 1);
        state.pages[page as usize].segments -= 1;
        if state.pages[page as usize].segments == 0 {
            let spare = state.spare.replace(page);
            if let Some(other) = spare {
                state.spare = Some(page.min(other));
                self.go(account, &mut state, page.max(other));
            }
        }
    }

    fn go(&self, account: &Account, state: &mut Segments, page: u32) {
        let per_page = self.words_per_page();
        let about = &mut state.pages[page as usize];
        let first = page * per_page;
        let uses = (first..first + per_page).map(|index| self.named(index, self.word_of(index)));
        let base = uses.max().unwrap_or(0);
        if self.tables.words.discard(page as usize, self.page.bytes()).is_ok() {
            about.base = base;
            about.is_present = false;
            account.release(self.page.bytes().get());
            self.let_free_go(account, state, page);
        }
    }

    fn page_of(&self, segment: u32) -> u32 {
        (segment * SEGMENT) >> self.page_shift
    }

    fn word_of(&self, index: u32) -> Entry {
        Entry::from_raw(self.tables.words[index as usize].load(Ordering::Acquire))
    }

    pub(crate) fn held(&self) -> (Bytes, u64) {
        let state = lock(&self.state);
        let present = state.pages.iter().filter(|page| page.is_present).count() as u64;
        let pages = present + (state.free_pages.len() + state.epoch_pages.len()) as u64;
        let own = state.pages.capacity() * size_of::<Page>();
        let bits = state.available.held_bytes() + state.released.held_bytes();
        let bits = bits + state.epoch_pages.held_bytes() + state.free_pages.held_bytes();
        (Bytes::new(pages * self.page.bytes().get()), own as u64 + bits)
    }
}
