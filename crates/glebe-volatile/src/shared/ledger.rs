//! [`Ledger`] maps the state in a shared file (header, words and counts). It takes no lock.
//!
//! `touch` allocates a page before a write, so a full file system causes an error, not SIGBUS. A
//! reader of counts first asks the file for holes, because a read would fill a hole. Indices and
//! lengths come only from the layout, because another process may corrupt words.
//!
//! # Safety
//! A reference to a word points to an aligned place in the mapping, which lives as long as the
//! ledger. `guard` maps zeros where the file lacks a touched page.
#![allow(unsafe_code)]

use std::ops::Range;

use super::layout::{Field, Layout, WORD};
use super::protocol::pinned_in;
use super::store::Store;
use crate::Error;
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::extents::push;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sync::{fence, MappedWord, Ordering};
use glebe_os::internal::sys::fault;
use glebe_os::internal::sys::files::ofd_lock;
use glebe_os::internal::sys::memory::memory_file::MemoryFile;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize};

const BITS: u64 = u64::BITS as u64;

#[derive(Debug)]
pub(crate) struct Ledger {
    file: MemoryFile,
    layout: Layout,
    store: Store,
    mapped: Mapping,
    backed: Box<[MappedWord]>,
    broken: MappedWord,
}

impl Ledger {
    pub(super) fn new(file: MemoryFile, layout: Layout) -> Result<Self, OsError> {
        Self::with(file, layout, Store::File(layout.data_at))
    }

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

    pub(super) fn place(&self) -> Range<usize> {
        self.mapped.addr()..self.mapped.addr() + self.mapped.len().as_usize()
    }

    /// Records that the file lacked a page or lost pins. Runs in the signal handler.
    pub(super) fn break_down(&self) {
        self.broken.store(1, Ordering::Relaxed);
    }

    pub(super) fn map_data(&self, align: PageSize) -> Result<Mapping, OsError> {
        let (at, len) = (Bytes::new(self.layout.data_at), self.layout.len());
        Mapping::part_of(self.file.as_file(), at, len, align)
    }

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
        // SAFETY: the assertion keeps the word inside the mapping; only atomics refer to it.
        unsafe { &*at.cast::<MappedWord>() }
    }

    #[inline]
    pub(super) fn word_in(data: &Mapping, offset: u64) -> &MappedWord {
        assert!(offset % WORD == 0 && offset < data.len().get(), "a word at {offset:#x}");
        let at = data.as_ptr().wrapping_add(offset as usize);
        // SAFETY: the word is inside the mapping, which begins at a page and outlives the
        // reference. Only atomics and racing copies access the word.
        unsafe { &*at.cast::<MappedWord>() }
    }

    #[inline]
    pub(super) fn field(&self, field: Field) -> &MappedWord {
        self.at(field.at())
    }

    #[inline]
    pub(crate) fn word(&self, index: u64) -> &MappedWord {
        assert!(index < self.layout.granules, "granule {index}");
        self.at(self.layout.word_at(index))
    }

    #[inline]
    pub(crate) fn counts(&self, holder: u32, index: u64) -> &MappedWord {
        assert!(index < self.layout.granules && holder < self.layout.holders);
        self.at(self.layout.counts_at(holder, index))
    }

    pub(crate) fn holders(&self) -> u32 {
        self.layout.holders
    }

    pub(crate) fn is_used(&self, holder: u32) -> bool {
        self.field(Field::Process(holder)).load(Ordering::SeqCst) != 0
    }

    /// Returns false if the file has a hole at the holder's pin count (0).
    pub(crate) fn has_counts(&self, holder: u32, index: u64) -> Result<bool, OsError> {
        let page = self.layout.counts_at(holder, index) / self.layout.page;
        if self.is_backed(page) {
            return Ok(true);
        }
        // Orders the purger's claim before the kernel's look at the file.
        fence(Ordering::SeqCst);
        let start = page * self.layout.page;
        let found = self.file.next_data(start, start + self.layout.page)?.is_some();
        if found {
            self.set_backed(page);
        }
        Ok(found)
    }

    pub(crate) fn is_alive(&self, holder: u32) -> Result<bool, OsError> {
        let byte = Layout::holder_lock(holder);
        ofd_lock::is_locked(self.file.as_file(), byte..byte + 1)
    }

    pub(super) fn has_holder(&self) -> Result<bool, OsError> {
        ofd_lock::is_locked(self.file.as_file(), self.layout.holder_locks())
    }

    pub(crate) fn punch(&self, granules: Extent) -> Result<(), OsError> {
        let (at, len) = self.data_of(granules);
        self.store.punch(&self.file, at, len)
    }

    pub(super) fn allocate(&self, granules: Extent) -> Result<(), OsError> {
        let (at, len) = self.data_of(granules);
        self.store.allocate(&self.file, at, len)
    }

    fn data_of(&self, granules: Extent) -> (u64, u64) {
        assert!(granules.end() <= self.layout.granules, "granules {granules}");
        let granule = self.layout.granule;
        (granules.start() * granule, granules.len() * granule)
    }

    pub(crate) fn step(&self) {
        fault::step();
    }

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

    pub(super) fn noted(&self) -> Result<Vec<Extent>, OsError> {
        let first = self.layout.word_at(0);
        self.stretches(first, self.layout.word_at(self.layout.granules), |start, end| {
            Extent::between((start - first) / WORD, (end - first).div_ceil(WORD))
        })
    }

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

    #[inline]
    pub(super) fn touch_words(&self, granules: Extent) -> Result<(), OsError> {
        let at = |index| self.layout.word_at(index);
        self.touch(at(granules.start()), at(granules.end() - 1))
    }

    #[inline]
    pub(super) fn touch_counts(&self, holder: u32, granules: Extent) -> Result<(), OsError> {
        let at = |index| self.layout.counts_at(holder, index);
        self.touch(at(granules.start()), at(granules.end() - 1))
    }

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

    pub(super) fn clear_table(&self, holder: u32) -> Result<(), OsError> {
        self.tables_words(holder, |word| word.store(0, Ordering::Relaxed))
    }

    pub(super) fn pinned_by(&self, holder: u32) -> Result<u64, OsError> {
        let mut pinned = 0;
        self.tables_words(holder, |word| pinned += pinned_in(word))?;
        Ok(pinned)
    }

    fn tables_words(&self, holder: u32, mut look: impl FnMut(&MappedWord)) -> Result<(), OsError> {
        let (at, len) = self.layout.table(holder);
        for run in self.stretches(at, at + len, Extent::between)? {
            (run.start()..run.end()).step_by(WORD as usize).for_each(|at| look(self.at(at)));
        }
        Ok(())
    }

    /// The caller has the purge lock, and no process has joined.
    pub(super) fn drop_tables(&self) -> Result<(), OsError> {
        let (at, len) = self.layout.tables();
        self.file.punch(at, len)
    }

    /// Other processes may have freed pages.
    pub(super) fn forget_backed(&self) {
        self.backed.iter().for_each(|bits| bits.store(0, Ordering::Relaxed));
    }
}
