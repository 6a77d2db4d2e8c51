//! The *scan* engine: what is lost is seen by the kernel's page tables, and contents are never
//! altered while marked.
//!
//! The region is armed whole, once, with a userfaultfd in SIGBUS mode. Invariant: a page that is
//! not marked is never a hole, so that a touch of it never is SIGBUS; every hole is marked, and
//! lost. Whoever unmarks looks at residence first: a hole is lost and gets the page of zeros
//! last of all, the page of zeros is kept as it is, any other page is made dirty by
//! `MADV_POPULATE_WRITE`, which cancels the kernel's right to it. A page in swap, or being moved,
//! may be marked as well, so it is treated like one in memory. A page that goes between the look
//! and the populate is a hole at the next look: nobody but this engine fills holes.
//!
//! All calls are made under the region's lock, held alone. Cost: a system call to mark; one to
//! unmark a few pages that are there, else one to look at a window, one a chunk of pages that are
//! there, one a run that is lost. Sources: madvise(2), PAGEMAP_SCAN(2const), userfaultfd(2).
//!
//! # Safety
//! Every range is inside the region's mapping, which the region owns, and is marked, or about to
//! be: its owner has agreed to lose the contents.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, Weak};

use super::adopted::armed_parts;
use super::huge::rejoin;
use super::Error;
use crate::error::OsError;
use crate::extent::{push, Extent};
use crate::sync::{MappedWord, Ordering, StaticMutex};
use crate::sys::fork::ForkGuard;
use crate::sys::madvise::{advise, populate_armed, Advice};
use crate::sys::pagemap::{Pagemap, Reading, Residence, Run};
use crate::sys::uffd::Uffd;
use crate::units::{Bytes, PageSize, Pages};

/// Up to so many pages are populated without a look: one call where all are there.
const FEW_PAGES: u64 = 16;
/// Looked at in one go: what is seen is acted on before much of it can change.
const WINDOW: Bytes = Bytes::mib(32);
/// Populated in one go: what is gone in the middle costs one chunk again. After a fork each page
/// is copied, so it is also what may be charged before an error is seen.
const CHUNK: Bytes = Bytes::mib(4);
/// A chunk that cannot be populated and has no hole is tried so often; a migration ends sooner.
const TRIES_MAX: u32 = 100;

/// What a process has once for all its regions: ends with the last of them.
#[derive(Debug)]
pub(super) struct Kernel {
    uffd: Uffd,
    pagemap: Pagemap,
    guard: ForkGuard,
}

static SHARED: StaticMutex<Weak<Kernel>> = StaticMutex::new(Weak::new());

impl Kernel {
    /// That of this process, which is another than its parent's; as a rule one for all.
    fn of_process() -> Result<Arc<Self>, OsError> {
        // Never waited for: in a child, the holder may be a thread of the parent's.
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

/// The engine of one region.
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
    /// The engine of a region at `base`, in huge pages or not; `without_scan` reads a word a page
    /// also where the kernel could tell runs.
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

    /// In a child: the inherited descriptors are the parent's, and nothing is armed. A lost page
    /// is a hole still, as long as no other code has run.
    pub(super) fn follow_fork(&mut self) -> Result<(), OsError> {
        self.kernel = Kernel::of_process()?;
        self.number.store(self.kernel.uffd.descriptor() as u64, Ordering::Release);
        Ok(())
    }

    /// The number of the descriptor, for a signal handler while the engine lives; it is another
    /// one in a child.
    pub(super) fn number(&self) -> Arc<MappedWord> {
        Arc::clone(&self.number)
    }

    /// Whether the descriptors are those of the parent, whose memory they mean.
    pub(super) fn is_inherited(&self) -> bool {
        self.kernel.guard.is_child()
    }

    /// The descriptor.
    pub(super) fn uffd(&self) -> &Uffd {
        &self.kernel.uffd
    }

    /// Arms `pages`; who calls fills the holes that are not marked.
    pub(super) fn arm(&self, pages: Extent) -> Result<(), OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: as the file's head says.
        unsafe { self.kernel.uffd.arm(addr, len) }
    }

    /// Ends the arming of `pages`; where that is refused, holes there stay SIGBUS.
    pub(super) fn disarm(&self, pages: Extent) {
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: as the file's head says.
        let _ = unsafe { self.kernel.uffd.disarm(addr, len) };
    }

    /// Puts the page of zeros into every hole of armed `pages`.
    pub(super) fn fill_holes(&self, pages: Extent) -> Result<(), OsError> {
        let runs = self.look(pages)?.into_iter();
        for run in runs.filter(|run| run.residence == Residence::Hole) {
            self.kernel.uffd.fill_holes(run.start, Bytes::new((run.end - run.start) as u64))?;
        }
        Ok(())
    }

    /// Gives the kernel the right to `pages`. What is in swap is brought in before: the kernel
    /// would drop it at once.
    #[inline]
    pub(super) fn mark(&self, pages: Extent, swap: bool) -> Result<(), OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        if let Some(huge) = self.huge {
            rejoin(&self.kernel.pagemap, self.reading, addr, len, huge);
        }
        // SAFETY: as the file's head says.
        unsafe {
            if swap {
                advise(addr, len, Advice::PopulateRead)?;
            }
            advise(addr, len, Advice::Free)
        }
    }

    /// Gives the kernel the right again to marked pages that were refilled. They stay base pages.
    pub(super) fn mark_again(&self, pages: Extent, swap: bool) -> Result<(), OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: as the file's head says.
        unsafe {
            if swap {
                // A page of them that was lost again is an error here, and no matter.
                let _ = advise(addr, len, Advice::PopulateRead);
            }
            advise(addr, len, Advice::Free)
        }
    }

    /// Takes the right to `parts` back and returns what of them is lost, which is zeros now. On an
    /// error nothing has changed but that less of them may be lost later.
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
            // Memory of another kind that was mapped there since is no more this region's.
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
                    // Zeros that look kept would be worse: all of them are holes again.
                    self.drop_pages(*run)?;
                }
                return Err(error.into());
            }
        }
        filled.last().copied().into_iter().for_each(|run| self.tell_processors(run));
        Ok(filled)
    }

    /// Has the reclaimer tell the processors at once what it took of this process: until then reads
    /// may find what was there. By offering a page of zeros, of which the kernel takes nothing.
    #[cold]
    fn tell_processors(&self, filled: Extent) {
        let (addr, _) = filled.place(self.base, self.page);
        // SAFETY: as the file's head says; the page is shared, and stays.
        let _ = unsafe { advise(addr, self.page.bytes(), Advice::Free) };
    }

    /// Fills lost pages and adds to `filled` those that are armed. The kernel says of the others
    /// that nothing is there to fill: a new mapping, whose holes nobody lost. It says so too of
    /// a run of several mappings, whose parts are tried then.
    fn fill_lost(&self, pages: Extent, filled: &mut Vec<Extent>) -> Result<(), OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        match self.kernel.uffd.fill_holes(addr, len) {
            Ok(()) => push(filled, pages),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                // It may have begun.
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

    /// What of `parts` is armed.
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

    /// Drops the contents of marked pages.
    pub(super) fn drop_pages(&self, pages: Extent) -> Result<(), OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: as the file's head says.
        unsafe { advise(addr, len, Advice::DontNeed) }
    }

    /// How many of `pages` are in memory, the page of zeros apart.
    pub(super) fn resident(&self, pages: Extent) -> Result<Pages, OsError> {
        let runs = self.look(pages)?;
        let held = runs.iter().filter(|run| run.residence == Residence::Page);
        let bytes = held.map(|run| (run.end - run.start) as u64).sum();
        Ok(Bytes::new(bytes).pages_down(self.page))
    }

    /// As [`Scan::settle`], a window at a time.
    fn settle_windows(&self, pages: Extent, lost: &mut Vec<Extent>) -> Result<(), Error> {
        let window = WINDOW.pages_down(self.page).get().max(1);
        let mut at = pages.start();
        while let Some(part) = Extent::new(at, window.min(pages.end() - at)) {
            self.settle(part, lost)?;
            at = part.end();
        }
        Ok(())
    }

    /// Makes every page of the window safe or finds it lost.
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

    /// Populates up to the first chunk of which something is gone: where it begins, and whether.
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

    /// Makes pages dirty, which cancels their mark; false if one is not there.
    #[inline]
    fn populate(&self, pages: Extent) -> Result<bool, OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        // SAFETY: contents stay; a page that is not there is an error in an armed range.
        unsafe { populate_armed(addr, len) }
    }

    fn look(&self, pages: Extent) -> Result<Vec<Run>, OsError> {
        let (addr, len) = pages.place(self.base, self.page);
        self.kernel.pagemap.runs(addr, len, self.reading)
    }

    /// The pages of a run.
    fn pages_of(&self, run: Run) -> Option<Extent> {
        let pages = |bytes: usize| Bytes::new(bytes as u64).pages_down(self.page).get();
        Extent::new(pages(run.start - self.base), pages(run.end - run.start))
    }
}
