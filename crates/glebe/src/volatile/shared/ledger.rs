//! [`Ledger`]: the part of a shared file that says what is what, mapped: header, words, counts.
//!
//! A page of it comes into being before it is written (`touch`): on a full file system that is
//! an error, where a store would be SIGBUS. Pages that are known to be there are noted in a bitmap
//! of the process, so that this costs a load. Who only looks at counts asks the file first whether
//! there are any: a look at a hole would fill it. Indices are granules and holders, checked here.
//!
//! Words are atomics that any process may change to anything; nothing here is an index or a length
//! but what the layout says, which no other process can change. No lock.
//!
//! # Safety
//! A reference to a word is to an aligned place inside the mapping, which lives as long as this,
//! whatever happens to the file: a touch of what was cut off is the guard's (`guard`).
#![allow(unsafe_code)]

use std::ops::Range;

use super::layout::{Field, Layout, WORD};
use super::protocol::pinned_in;
use super::store::Store;
use crate::error::OsError;
use crate::extent::{push, Extent};
use crate::mapping::Mapping;
use crate::sync::{fence, MappedWord, Ordering};
use crate::sys::memory_file::MemoryFile;
use crate::sys::{fault, ofd_lock, page_size};
use crate::units::{Bytes, PageSize};
use crate::volatile::Error;

const BITS: u64 = u64::BITS as u64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: MemoryFile,
    layout: Layout,
    store: Store,
    mapped: Mapping,
    /// One bit a page: it takes memory.
    backed: Box<[MappedWord]>,
    /// Whether a page could not be had, so that zeros stand where something else did.
    broken: MappedWord,
}

impl Ledger {
    /// The ledger of a file that has its data behind it.
    pub(super) fn new(file: MemoryFile, layout: Layout) -> Result<Self, OsError> {
        Self::with(file, layout, Store::File(layout.data_at))
    }

    /// The ledger of data that lies in `store`.
    pub(super) fn with(file: MemoryFile, layout: Layout, store: Store) -> Result<Self, OsError> {
        let len = Bytes::new(layout.data_at);
        let mapped = Mapping::part_of(file.as_file(), Bytes::ZERO, len, page_size())?;
        let pages = layout.data_at / layout.page;
        let backed = (0..pages.div_ceil(BITS)).map(|_| MappedWord::new(0)).collect();
        Ok(Self { file, layout, store, mapped, backed, broken: MappedWord::new(0) })
    }

    pub(super) fn file(&self) -> &MemoryFile {
        &self.file
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The addresses of what is mapped.
    pub(super) fn place(&self) -> Range<usize> {
        self.mapped.addr()..self.mapped.addr() + self.mapped.len().as_usize()
    }

    /// Notes that a page of the file is missing; in the signal handler.
    pub(super) fn break_down(&self) {
        self.broken.store(1, Ordering::Relaxed);
    }

    /// The data, mapped at a multiple of the granule where that is no more than a huge page.
    pub(super) fn map_data(&self, align: PageSize) -> Result<Mapping, OsError> {
        let (at, len) = (Bytes::new(self.layout.data_at), self.layout.len());
        Mapping::part_of(self.file.as_file(), at, len, align)
    }

    /// That no page of the file was found missing.
    #[inline]
    pub(super) fn whole(&self) -> Result<(), Error> {
        if self.broken.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let len = self.file.len().unwrap_or(Bytes::ZERO);
        Err(Error::Truncated { len, needed: Bytes::new(self.layout.total) })
    }

    #[inline]
    fn at(&self, offset: u64) -> &MappedWord {
        assert!(offset % WORD == 0 && offset < self.layout.data_at, "a word at {offset:#x}");
        let at = self.mapped.as_ptr().wrapping_add(offset as usize);
        // SAFETY: a word inside the mapping, as was just seen; atomics are all that refers to it.
        unsafe { &*at.cast::<MappedWord>() }
    }

    /// A word of the data, which is mapped apart.
    #[inline]
    pub(super) fn word_in(data: &Mapping, offset: u64) -> &MappedWord {
        assert!(offset % WORD == 0 && offset < data.len().get(), "a word at {offset:#x}");
        let at = data.as_ptr().wrapping_add(offset as usize);
        // SAFETY: a word inside the mapping, which begins with a page and lives as long as the
        // reference; beside atomics only copies that race with them refer to it.
        unsafe { &*at.cast::<MappedWord>() }
    }

    /// A word of the header.
    #[inline]
    pub(super) fn field(&self, field: Field) -> &MappedWord {
        self.at(field.at())
    }

    /// The word of a granule.
    #[inline]
    pub(crate) fn word(&self, index: u64) -> &MappedWord {
        assert!(index < self.layout.granules, "granule {index}");
        self.at(self.layout.word_at(index))
    }

    /// The counts of a granule and its neighbours in a table.
    #[inline]
    pub(crate) fn counts(&self, holder: u32, index: u64) -> &MappedWord {
        assert!(index < self.layout.granules && holder < self.layout.holders);
        self.at(self.layout.counts_at(holder, index))
    }

    pub(crate) fn holders(&self) -> u32 {
        self.layout.holders
    }

    /// Whether somebody has used the table of a holder since it was last empty.
    pub(crate) fn is_used(&self, holder: u32) -> bool {
        self.field(Field::Process(holder)).load(Ordering::SeqCst) != 0
    }

    /// Whether a table may count a pin of a granule; a hole counts none.
    pub(crate) fn has_counts(&self, holder: u32, index: u64) -> Result<bool, OsError> {
        let page = self.layout.counts_at(holder, index) / self.layout.page;
        if self.is_backed(page) {
            return Ok(true);
        }
        // The kernel looks after what the caller has stored.
        fence(Ordering::SeqCst);
        let start = page * self.layout.page;
        let found = self.file.next_data(start, start + self.layout.page)?.is_some();
        if found {
            self.set_backed(page);
        }
        Ok(found)
    }

    /// Whether the process that has a table lives.
    pub(crate) fn is_alive(&self, holder: u32) -> Result<bool, OsError> {
        let byte = Layout::holder_lock(holder);
        ofd_lock::is_locked(self.file.as_file(), byte..byte + 1)
    }

    /// Whether any process is joined.
    pub(super) fn has_holder(&self) -> Result<bool, OsError> {
        ofd_lock::is_locked(self.file.as_file(), self.layout.holder_locks())
    }

    /// Takes the memory of granules away.
    pub(crate) fn punch(&self, granules: Extent) -> Result<(), OsError> {
        let (at, len) = self.data_of(granules);
        self.store.punch(&self.file, at, len)
    }

    /// Gives granules memory; what has some keeps it.
    pub(super) fn allocate(&self, granules: Extent) -> Result<(), OsError> {
        let (at, len) = self.data_of(granules);
        self.store.allocate(&self.file, at, len)
    }

    /// The offset and length of granules in the data.
    fn data_of(&self, granules: Extent) -> (u64, u64) {
        assert!(granules.end() <= self.layout.granules, "granules {granules}");
        let granule = self.layout.granule;
        (granules.start() * granule, granules.len() * granule)
    }

    /// Between two steps of a purge.
    pub(crate) fn step(&self) {
        fault::step();
    }

    /// Which of `granules` the file has data of.
    pub(super) fn data_in(&self, granules: Extent) -> Result<Vec<Extent>, OsError> {
        let (at, len) = self.data_of(granules);
        let granule = self.layout.granule;
        let mut found = Vec::new();
        for (start, end) in self.store.data(&self.file, at, len)? {
            let part = Extent::between(start / granule, end.div_ceil(granule));
            part.into_iter().for_each(|part| push(&mut found, part));
        }
        Ok(found)
    }

    /// The granules whose words may not be zero.
    pub(super) fn noted(&self) -> Result<Vec<Extent>, OsError> {
        let first = self.layout.word_at(0);
        self.stretches(first, self.layout.word_at(self.layout.granules), |start, end| {
            Extent::between((start - first) / WORD, (end - first).div_ceil(WORD))
        })
    }

    /// The extents that `part` makes of the data between two offsets.
    fn stretches(
        &self,
        mut from: u64,
        end: u64,
        part: impl Fn(u64, u64) -> Option<Extent>,
    ) -> Result<Vec<Extent>, OsError> {
        let mut found = Vec::new();
        while let Some((start, stop)) = self.file.next_data(from, end)? {
            part(start, stop).into_iter().for_each(|part| push(&mut found, part));
            from = stop;
        }
        Ok(found)
    }

    /// Has the words of granules take memory.
    #[inline]
    pub(super) fn touch_words(&self, granules: Extent) -> Result<(), OsError> {
        let at = |index| self.layout.word_at(index);
        self.touch(at(granules.start()), at(granules.end() - 1))
    }

    /// Has the counts of granules in a table take memory.
    #[inline]
    pub(super) fn touch_counts(&self, holder: u32, granules: Extent) -> Result<(), OsError> {
        let at = |index| self.layout.counts_at(holder, index);
        self.touch(at(granules.start()), at(granules.end() - 1))
    }

    /// Has the header take memory.
    pub(super) fn touch_header(&self) -> Result<(), OsError> {
        self.touch(0, 0)
    }

    #[inline]
    fn touch(&self, first: u64, last: u64) -> Result<(), OsError> {
        let page = self.layout.page;
        let (first, last) = (first / page, last / page);
        match (first..=last).find(|page| !self.is_backed(*page)) {
            None => Ok(()),
            Some(from) => self.back(from, last),
        }
    }

    #[cold]
    fn back(&self, first: u64, last: u64) -> Result<(), OsError> {
        let page = self.layout.page;
        self.file.allocate(first * page, (last + 1 - first) * page)?;
        (first..=last).for_each(|page| self.set_backed(page));
        Ok(())
    }

    #[inline]
    fn is_backed(&self, page: u64) -> bool {
        self.backed[(page / BITS) as usize].load(Ordering::Relaxed) >> (page % BITS) & 1 != 0
    }

    fn set_backed(&self, page: u64) {
        self.backed[(page / BITS) as usize].fetch_or(1 << (page % BITS), Ordering::Relaxed);
    }

    /// Sets the counts in a holder's table to zero, where there are any.
    pub(super) fn clear_table(&self, holder: u32) -> Result<(), OsError> {
        self.tables_words(holder, |word| word.store(0, Ordering::Relaxed))
    }

    /// How many granules a holder has pinned.
    pub(super) fn pinned_by(&self, holder: u32) -> Result<u64, OsError> {
        let mut pinned = 0;
        self.tables_words(holder, |word| pinned += pinned_in(word))?;
        Ok(pinned)
    }

    /// Passes each word of a holder's table that may not be zero.
    fn tables_words(&self, holder: u32, mut look: impl FnMut(&MappedWord)) -> Result<(), OsError> {
        let (at, len) = self.layout.table(holder);
        for run in self.stretches(at, at + len, Extent::between)? {
            (run.start()..run.end()).step_by(WORD as usize).for_each(|at| look(self.at(at)));
        }
        Ok(())
    }

    /// Takes all tables out of the file; the caller has the purge lock, and nobody is joined.
    pub(super) fn drop_tables(&self) -> Result<(), OsError> {
        let (at, len) = self.layout.tables();
        self.file.punch(at, len)
    }

    /// No page is known to be there: others may have taken some out meanwhile.
    pub(super) fn forget_backed(&self) {
        self.backed.iter().for_each(|bits| bits.store(0, Ordering::Relaxed));
    }
}
