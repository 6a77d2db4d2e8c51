//! [`Scan`] finds lost pages in the page tables and never alters marked contents.
//!
//! *Armed* memory is registered with a userfaultfd in SIGBUS mode: a region's own mapping as a
//! whole, a caller's memory only in marked parts. Invariants: an unmarked armed page is never a
//! hole; every armed hole is a lost page.
//!
//! `MADV_POPULATE_WRITE` keeps present pages, even in swap or during a migration, because it makes
//! them dirty. If the kernel frees a page after a look at the tables, the next look finds a hole.
//! An unmark fills holes last, with the page of zeros.
//!
//! Lock: the region's. Cost: one or two system calls per mark or unmark of a few present pages;
//! more with huge pages, and at least one per `WINDOW`, `CHUNK` and lost run.
//! Sources: madvise(2), PAGEMAP_SCAN(2const), userfaultfd(2).
//!
//! # Safety
//! Each range is in the region's mapping. Calls free only pages that are marked or about to be: the
//! owner accepts the loss.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, Weak};

use super::adopted::armed_parts;
use super::huge::rejoin;
use super::Error;
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::extents::push;
use glebe_os::internal::sync::{MappedWord, Ordering, StaticMutex};
use glebe_os::internal::sys::memory::madvise::{advise, populate_armed, Advice};
use glebe_os::internal::sys::memory::pagemap::{Pagemap, Reading, Residence, Run};
use glebe_os::internal::sys::memory::uffd::Uffd;
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::units::{Bytes, PageSize, Pages};

/// Longest part, in pages, first tried with one populate call.
const FEW_PAGES: u64 = 16;
/// Bytes per look at the page tables, few because pages may change later.
const WINDOW: Bytes = Bytes::mib(32);
/// Bytes per populate call, few because after a fork even a failing call copies shared pages.
const CHUNK: Bytes = Bytes::mib(4);
/// Populate calls that may fail in a row at one place, before [`Error::Stuck`]. Failures during a
/// page migration end sooner.
const TRIES_MAX: u32 = 100;

#[derive(Debug)]
pub(super) struct Kernel {
    uffd: Uffd,
    pagemap: Pagemap,
    guard: ForkGuard,
}

static SHARED: StaticMutex<Weak<Kernel>> = StaticMutex::new(Weak::new());

impl Kernel {
    fn of_process() -> Result<Arc<Self>, OsError> {
        // Does not wait: in a child, a thread of the parent may hold the lock.
        let mut shared = SHARED.try_lock().ok();
        let known = shared.as_ref().and_then(|shared| shared.upgrade());
        if let Some(kernel) = known.filter(|kernel| !kernel.guard.is_child()) {
            return Ok(kernel);
        }
        let kernel = Arc::new(Self {
            uffd: Uffd::open_sigbus()?,
            pagemap: Pagemap::open()?,
            guard: ForkGuard::new(),
        });
        if let Some(shared) = &mut shared {
            **shared = Arc::downgrade(&kernel);
        }
        Ok(kernel)
    }
}

#[derive(Debug)]
pub(super) struct Scan {
    kernel: Arc<Kernel>,
    number: Arc<MappedWord>,
    reading: Reading,
    base: usize,
    page: PageSize,
    huge: Option<PageSize>,
}

impl Scan {
    pub(super) fn new(
        base: usize,
        page: PageSize,
        huge: Option<PageSize>,
        without_scan: bool,
    ) -> Result<Self, OsError> {
        let kernel = Kernel::of_process()?;
        let reading = if without_scan { Reading::Entries } else { kernel.pagemap.reading() };
        let number = Arc::new(MappedWord::new(kernel.uffd.descriptor() as u64));
        Ok(Self { kernel, number, reading, base, page, huge })
    }

    pub(super) fn follow_fork(&mut self) -> Result<(), OsError> {
        self.kernel = Kernel::of_process()?;
        self.number.store(self.kernel.uffd.descriptor() as u64, Ordering::Release);
        Ok(())
    }

    pub(super) fn number(&self) -> Arc<MappedWord> {
        Arc::clone(&self.number)
    }

    pub(super) fn is_inherited(&self) -> bool {
        self.kernel.guard.is_child()
    }

    pub(super) fn uffd(&self) -> &Uffd {
        &self.kernel.uffd
    }

    /// The caller fills the holes of unmarked pages, which would raise SIGBUS.
    pub(super) fn arm(&self, pages: Extent) -> Result<(), OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: the range is the region's.
        unsafe { self.kernel.uffd.arm(addr, len) }
    }

    /// If the kernel refuses, holes still raise SIGBUS.
    pub(super) fn disarm(&self, pages: Extent) {
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: the range is the region's.
        let _ = unsafe { self.kernel.uffd.disarm(addr, len) };
    }

    pub(super) fn fill_holes(&self, pages: Extent) -> Result<(), OsError> {
        let runs = self.look(pages)?.into_iter();
        for run in runs.filter(|run| run.residence == Residence::Hole) {
            self.kernel.uffd.fill_holes(run.start, Bytes::new((run.end - run.start) as u64))?;
        }
        Ok(())
    }

    /// With `swap`, first reads swapped-out pages in, because `MADV_FREE` would drop them at once.
    #[inline]
    pub(super) fn mark(&self, pages: Extent, swap: bool) -> Result<(), OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        if let Some(huge) = self.huge {
            rejoin(&self.kernel.pagemap, self.reading, addr, len, huge);
        }
        // SAFETY: the range is the region's.
        unsafe {
            if swap {
                advise(addr, len, Advice::PopulateRead)?;
            }
            advise(addr, len, Advice::Free)
        }
    }

    pub(super) fn mark_again(&self, pages: Extent, swap: bool) -> Result<(), OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: the range is the region's.
        unsafe {
            if swap {
                // Fails if a page was lost again.
                let _ = advise(addr, len, Advice::PopulateRead);
            }
            advise(addr, len, Advice::Free)
        }
    }

    /// Unmarks `parts` and returns the lost pages, now zeros. On an error all pages count as
    /// marked, but the kernel cannot free populated pages.
    #[inline]
    pub(super) fn unmark(&self, parts: &[Extent]) -> Result<Vec<Extent>, Error> {
        match parts {
            [part] if part.len() <= FEW_PAGES && matches!(self.populate(*part), Ok(true)) => {
                Ok(Vec::new())
            }
            _ => self.unmark_any(parts),
        }
    }

    #[cold]
    fn unmark_any(&self, parts: &[Extent]) -> Result<Vec<Extent>, Error> {
        self.unmark_all(parts).or_else(|error| {
            // Retries without the program's new mappings.
            let ours = self.still_armed(parts)?;
            if ours == parts {
                return Err(error);
            }
            self.unmark_all(&ours)
        })
    }

    fn unmark_all(&self, parts: &[Extent]) -> Result<Vec<Extent>, Error> {
        let mut lost = Vec::new();
        for part in parts {
            if part.len() > FEW_PAGES || !self.populate(*part)? {
                self.settle_windows(*part, &mut lost)?;
            }
        }
        let mut filled = Vec::new();
        for run in &lost {
            if let Err(error) = self.fill_lost(*run, &mut filled) {
                for run in &filled {
                    // The next unmark would count filled pages as kept.
                    self.drop_pages(*run)?;
                }
                return Err(error.into());
            }
        }
        filled.last().copied().into_iter().for_each(|run| self.tell_processors(run));
        Ok(filled)
    }

    /// Flushes the TLB entries of freed pages, because reads could still find old bytes.
    /// `MADV_FREE` on any page flushes; the page of zeros stays.
    #[cold]
    fn tell_processors(&self, filled: Extent) {
        let (addr, _) = filled.place(self.base, self.page);
        // SAFETY: the page is the region's and holds only zeros.
        let _ = unsafe { advise(addr, self.page.bytes(), Advice::Free) };
    }

    /// Fills pages still armed, and adds them to `filled` (on an error, all `pages`). On ENOENT,
    /// tries each half, because `pages` spans mappings, or the program mapped a part anew.
    fn fill_lost(&self, pages: Extent, filled: &mut Vec<Extent>) -> Result<(), OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        match self.kernel.uffd.fill_holes(addr, len) {
            Ok(()) => push(filled, pages),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                push(filled, pages);
                return Err(error);
            }
            Err(_) => {
                let half = pages.len() / 2;
                let first = Extent::new(pages.start(), half);
                let second = Extent::new(pages.start() + half, pages.len() - half);
                for part in first.into_iter().chain(first.and(second)) {
                    self.fill_lost(part, filled)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn still_armed(&self, parts: &[Extent]) -> Result<Vec<Extent>, OsError> {
        let mut armed = Vec::new();
        for part in parts {
            let (addr, len) = part.place(self.base, self.page);
            for Range { start, end } in armed_parts(&(addr..addr + len.as_usize()))? {
                let run = Run { start, end, residence: Residence::Page };
                self.pages_of(run).into_iter().for_each(|pages| push(&mut armed, pages));
            }
        }
        Ok(armed)
    }

    pub(super) fn drop_pages(&self, pages: Extent) -> Result<(), OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: the range is the region's.
        unsafe { advise(addr, len, Advice::DontNeed) }
    }

    pub(super) fn resident(&self, pages: Extent) -> Result<Pages, OsError> {
        let runs = self.look(pages)?;
        let held = runs.iter().filter(|run| run.residence == Residence::Page);
        let bytes = held.map(|run| (run.end - run.start) as u64).sum();
        Ok(Bytes::new(bytes).pages_down(self.page))
    }

    fn settle_windows(&self, pages: Extent, lost: &mut Vec<Extent>) -> Result<(), Error> {
        let window = WINDOW.pages_down(self.page).get().max(1);
        let mut at = pages.start();
        while let Some(part) = Extent::new(at, window.min(pages.end() - at)) {
            self.settle(part, lost)?;
            at = part.end();
        }
        Ok(())
    }

    fn settle(&self, window: Extent, lost: &mut Vec<Extent>) -> Result<(), Error> {
        let mut rest = Some(window);
        let mut tries = 0;
        while let Some(left) = rest {
            rest = None;
            for run in self.look(left)? {
                let Some(pages) = self.pages_of(run) else { continue };
                match run.residence {
                    Residence::Zero => {}
                    Residence::Hole => push(lost, pages),
                    Residence::Page => {
                        let (done, gone) = self.populate_chunks(pages)?;
                        if gone {
                            tries = if done > left.start() { 0 } else { tries + 1 };
                            rest = Extent::new(done, left.end() - done);
                            break;
                        }
                    }
                }
            }
            if tries > TRIES_MAX {
                let offset = Pages::new(rest.map_or(0, Extent::start)).bytes(self.page);
                return Err(Error::Stuck { offset, pages: CHUNK.pages_down(self.page) });
            }
        }
        Ok(())
    }

    /// Returns (start of the first chunk with a missing page, true), or (end of `pages`, false).
    fn populate_chunks(&self, pages: Extent) -> Result<(u64, bool), OsError> {
        let chunk = CHUNK.pages_down(self.page).get().max(1);
        let mut at = pages.start();
        while let Some(part) = Extent::new(at, chunk.min(pages.end() - at)) {
            if !self.populate(part)? {
                return Ok((at, true));
            }
            at = part.end();
        }
        Ok((at, false))
    }

    /// Makes pages dirty, which cancels their mark. Returns false if a page is missing.
    #[inline]
    fn populate(&self, pages: Extent) -> Result<bool, OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: populating keeps contents, and fills no missing page that is armed.
        unsafe { populate_armed(addr, len) }
    }

    fn look(&self, pages: Extent) -> Result<Vec<Run>, OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        self.kernel.pagemap.runs(addr, len, self.reading)
    }

    fn pages_of(&self, run: Run) -> Option<Extent> {
        let pages = |bytes: usize| Bytes::new(bytes as u64).pages_down(self.page).get();
        Extent::new(pages(run.start - self.base), pages(run.end - run.start))
    }
}
