//! [`Area`] stores pages by offset, in memory and in a file.
//!
//! A store writes the block first and the entry last, so an entry always names a whole block. The
//! checksum covers the store's generation, so a load rejects blocks of other stores.
//!
//! Lock order: `hand` (for cleaning), a shard of entries, pools and file, `unsaved`. Calls hold
//! at most `hand` during I/O.

use super::batch::{Batch, Page};
use super::entries::{Entries, Entry};
use super::policy::{Unsaved, WritePolicy};
use super::stats::{Counter, Counts};
use super::swap_cache::SwapCache;
use crate::swap::copies::{Copies, Copy, CopyBlock, Unreadable};
use crate::swap::error::SwapError;
use crate::swap::file::{SpillFile, BATCH};
use crate::swap::kept::Kept;
use crate::swap::key::Key;
use crate::zpool::internal::same_filled;
use glebe_os::internal::sync::{lock, MappedWord, Mutex, Ordering};
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::units::{Bytes, Pages};

/// The area's own pool may exceed its pages by an eighth, for rounding and tables.
const OWN_PART: u64 = 8;
const OWN_MIN: Bytes = Bytes::mib(1);

static AREAS: MappedWord = MappedWord::new(0);

/// `Area` stores one user's pages in a [`SwapCache`]. See [the module](super).
#[derive(Debug)]
pub struct Area {
    number: u32,
    pages: u64,
    page: usize,
    pub(super) entries: Entries,
    pub(super) copies: Copies,
    pub(super) kept: Kept,
    pub(super) unsaved: Unsaved,
    pub(super) hand: Mutex<usize>,
    pub(super) counts: Counts,
    stores: MappedWord,
    guard: ForkGuard,
}

impl Area {
    pub(super) fn new(
        cache: &SwapCache,
        pages: Pages,
        file: Option<SpillFile>,
    ) -> Result<Self, SwapError> {
        let (page, has_file) = (page_size(), file.is_some());
        let bytes = pages.bytes(page).get();
        let own = Bytes::new(bytes + bytes / OWN_PART) + OWN_MIN;
        Ok(Self {
            number: AREAS.fetch_add(1, Ordering::Relaxed) as u32,
            pages: pages.get(),
            page: page.bytes().as_usize(),
            entries: Entries::new(pages.get()),
            copies: Copies::new(&cache.codec, own, file)?,
            kept: cache.kept.clone(),
            unsaved: Unsaved::new(has_file),
            hand: Mutex::new(0),
            counts: Counts::new(),
            stores: MappedWord::new(0),
            guard: ForkGuard::new(),
        })
    }

    /// Returns the area's number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the area's length in pages.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::new(self.pages)
    }

    pub(super) fn alive(&self) -> Result<(), SwapError> {
        if self.guard.is_child() {
            return Err(SwapError::Forked);
        }
        Ok(())
    }

    fn check(&self, offset: u64, len: usize) -> Result<(), SwapError> {
        self.alive()?;
        if offset >= self.pages {
            return Err(SwapError::Offset { offset, pages: Pages::new(self.pages) });
        }
        if len != self.page {
            return Err(SwapError::NotAPage { len, page: Bytes::new(self.page as u64) });
        }
        Ok(())
    }

    pub(super) fn key(&self, offset: u64, generation: u32) -> Key {
        Key { store: self.number, index: offset as u32, generation }
    }

    /// Stores a page in place of the earlier page at `offset`.
    ///
    /// # Errors
    /// `Offset`, `NotAPage`, `Forked` change nothing. Other errors leave the offset empty: `Full`
    /// or `Pool` without a file, `FileFull`, `Os`.
    pub fn store(&self, offset: u64, page: &[u8]) -> Result<(), SwapError> {
        self.store_all([(offset, page)])
    }

    /// Stores pages with few writes to the file.
    ///
    /// # Errors
    /// The first error of [`Area::store`] ends the call. Earlier pages are stored, unless the file
    /// fails.
    pub fn store_all<'a>(
        &self,
        pages: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) -> Result<(), SwapError> {
        let mut batch = Batch::default();
        let stored = pages.into_iter().try_for_each(|(offset, page)| {
            self.check(offset, page.len())?;
            if batch.has(offset) {
                // Otherwise the older page of this call would come last.
                self.write_through(&mut batch)?;
            }
            self.drop_page(offset);
            let stored = self.store_one(offset, page, &mut batch);
            stored.inspect_err(|_| self.counts.add(Counter::Refused, 1))?;
            match batch.len() >= BATCH {
                true => self.write_through(&mut batch),
                false => Ok(()),
            }
        });
        // Writes even after an error, because only the batch holds earlier pages.
        let written = self.write_through(&mut batch);
        stored.and(written)
    }

    fn store_one(&self, offset: u64, page: &[u8], batch: &mut Batch) -> Result<(), SwapError> {
        let generation = self.stores.fetch_add(1, Ordering::Relaxed) as u32;
        let entry = |copy| Entry { generation, copy, kept: None };
        if let Some(word) = same_filled(page) {
            self.counts.add(Counter::Filled, 1);
            self.publish(offset, entry(Copy::Filled(word)));
            return Ok(());
        }
        self.copies.coded(self.key(offset, generation), page, |bytes, block| {
            if self.make_room(block)? {
                match self.copies.put_in_pool(bytes, block) {
                    Ok(copy) => {
                        self.publish(offset, entry(copy));
                        return Ok(());
                    }
                    Err(error) => self.give_up(block, error)?,
                }
            }
            let was = entry(Copy::Block(block));
            batch.push(Page { offset, was, block }, bytes);
            Ok(())
        })
    }

    /// Returns false if the block must go to the file at once; otherwise charges it.
    fn make_room(&self, block: CopyBlock) -> Result<bool, SwapError> {
        while !self.unsaved.charge(block.len) {
            let state = self.unsaved.get();
            if !self.unsaved.has_file() {
                let (held, limit) = (Bytes::new(state.charged), Bytes::new(state.limit()));
                return Err(SwapError::Full { held, limit });
            }
            if !state.can_wait(block.len) || self.clean_for(block.len)? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn give_up(&self, block: CopyBlock, error: crate::zpool::Error) -> Result<(), SwapError> {
        self.unsaved.release(block.len);
        match self.unsaved.has_file() {
            true => Ok(()),
            false => Err(error.into()),
        }
    }

    fn write_through(&self, batch: &mut Batch) -> Result<(), SwapError> {
        let Some(file) = &self.copies.file else { return Ok(()) };
        let written = batch.write(file, |page, copy, bytes| {
            self.counts.add(Counter::Through, 1);
            self.counts.add(Counter::WrittenBytes, bytes.len() as u64);
            let kept = self.kept.insert(bytes);
            self.publish(page.offset, Entry { copy, kept, ..page.was });
        });
        written.inspect_err(|_| self.counts.add(Counter::Refused, 1))
    }

    fn publish(&self, offset: u64, entry: Entry) {
        self.counts.add(Counter::Stored, 1);
        if let Some(old) = self.entries.set(offset, entry) {
            self.counts.add(Counter::Ended, 1);
            self.drop_entry(&old);
        }
    }

    pub(super) fn drop_entry(&self, entry: &Entry) {
        self.copies.drop_copy(entry.copy);
        if let Some(block) = entry.copy.in_pool() {
            self.unsaved.release(block.len);
        }
        if let Some(kept) = entry.kept {
            self.kept.remove(kept);
        }
    }

    fn drop_page(&self, offset: u64) -> bool {
        let old = self.entries.take(offset);
        if let Some(old) = &old {
            self.counts.add(Counter::Ended, 1);
            self.drop_entry(old);
        }
        old.is_some()
    }

    /// Copies a page to `out`. Returns false if the offset is empty. An error may change `out`.
    ///
    /// # Errors
    /// `Offset`, `NotAPage`, `DamagedPage`, `Forked`, `Os`, `Pool`.
    pub fn load(&self, offset: u64, out: &mut [u8]) -> Result<bool, SwapError> {
        Ok(self.find(offset, out)?.is_some())
    }

    /// Loads a page and removes it.
    ///
    /// # Errors
    /// As [`Area::load`]. The page then stays.
    pub fn take(&self, offset: u64, out: &mut [u8]) -> Result<bool, SwapError> {
        while let Some(entry) = self.find(offset, out)? {
            if let Some(old) = self.entries.set_if(offset, &entry, None) {
                self.counts.add(Counter::Ended, 1);
                self.drop_entry(&old);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn find(&self, offset: u64, out: &mut [u8]) -> Result<Option<Entry>, SwapError> {
        self.check(offset, out.len())?;
        while let Some(entry) = self.entries.get(offset) {
            match self.read(offset, &entry, out) {
                Ok(found) => {
                    self.counts.add(found, 1);
                    return Ok(Some(entry));
                }
                Err(why) => {
                    if self.entries.get(offset).is_some_and(|now| now.is_same(&entry)) {
                        return Err(self.unreadable(offset, why));
                    }
                }
            }
        }
        self.counts.add(Counter::Missed, 1);
        Ok(None)
    }

    fn unreadable(&self, offset: u64, why: Unreadable) -> SwapError {
        match why {
            Unreadable::Damaged(what) => {
                self.counts.add(Counter::Damaged, 1);
                SwapError::DamagedPage { area: self.number, offset, what }
            }
            Unreadable::Refused(error) => error,
        }
    }

    fn read(&self, offset: u64, entry: &Entry, out: &mut [u8]) -> Result<Counter, Unreadable> {
        let key = self.key(offset, entry.generation);
        if let (Some(kept), Copy::Block(block)) = (entry.kept, entry.copy) {
            let decode = |bytes: &[u8]| self.copies.decode(key, block, bytes, out);
            if self.kept.read(kept, block.len, decode).is_some_and(|read| read.is_ok()) {
                return Ok(Counter::LoadedKept);
            }
            let without = Entry { kept: None, ..*entry };
            if self.entries.set_if(offset, entry, Some(without)).is_some() {
                self.counts.add(Counter::KeptLost, 1);
                self.kept.remove(kept);
            }
        }
        self.copies.load(key, entry.copy, out)?;
        Ok(if entry.copy.is_in_file() { Counter::ReadBack } else { Counter::Loaded })
    }

    /// Drops a page. Returns true if the offset had one.
    ///
    /// # Errors
    /// `Offset`, `Forked`.
    pub fn invalidate_page(&self, offset: u64) -> Result<bool, SwapError> {
        self.check(offset, self.page)?;
        Ok(self.drop_page(offset))
    }

    /// Drops all pages and returns their number. A page stored meanwhile may stay.
    ///
    /// # Errors
    /// `Forked`.
    pub fn invalidate_area(&self) -> Result<Pages, SwapError> {
        self.alive()?;
        Ok(Pages::new(self.drop_all()))
    }

    fn drop_all(&self) -> u64 {
        let mut dropped = 0;
        for nth in 0..self.entries.chunks() {
            let pages = self.entries.take_chunk(nth);
            pages.iter().for_each(|(_, entry)| self.drop_entry(entry));
            dropped += pages.len() as u64;
        }
        self.counts.add(Counter::Ended, dropped);
        dropped
    }

    /// Limits the compressed bytes that may wait to be written. Writes the excess now. Has no
    /// effect without a file.
    ///
    /// # Errors
    /// `FileFull`, `Os`, `Forked`. The limit is then unchanged.
    pub fn set_write_back(&self, write_back: Bytes) -> Result<(), SwapError> {
        self.change_policy(|policy| WritePolicy { write_back, ..policy })
    }

    /// Limits the compressed bytes that may stay in memory, unwritten. With a file, writes the
    /// excess now.
    ///
    /// # Errors
    /// As [`Area::set_write_back`]; `PutBackBelowStored` without a file.
    pub fn set_put_back(&self, put_back: Bytes) -> Result<(), SwapError> {
        self.change_policy(|policy| WritePolicy { put_back, ..policy })
    }

    pub(super) fn change_policy(
        &self,
        to: impl FnOnce(WritePolicy) -> WritePolicy,
    ) -> Result<(), SwapError> {
        self.alive()?;
        let mut hand = lock(&self.hand);
        let was = self.unsaved.get().policy;
        self.unsaved.set(to(was));
        self.clean_down(&mut hand).inspect_err(|_| self.unsaved.set(was))
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if self.alive().is_ok() {
            self.drop_all();
        }
    }
}
