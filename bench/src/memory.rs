//! [`Memory`] holds populated bytes, obtained in one of the compared ways ([`Way`]).
//!
//! `took` is the time to obtain and populate the bytes. For [`Way::Hugetlb`], `took` does not
//! include the raise of the pool's limit. The kernel's ways promise no contiguous run longer than a
//! huge page. Lock: the project's hugetlb lock file, for pool memory only.
//!
//! # Safety
//! A `Memory` owns its bytes: no other code has the pointer to the allocation or mapping. The bytes
//! are populated, so every word can be read.
#![allow(unsafe_code)]

use std::any::Any;
use std::fs::File;
use std::ptr;
use std::slice;

use glebe::contig::{grow_pool, Contig, Options, PoolChange, PoolLock};
use glebe::error::OsError;
use glebe::internal::sys::machine::hugetlb::Pool;
use glebe::internal::sys::machine::meminfo;
use glebe::internal::sys::memory::madvise;
use glebe::internal::sys::memory::madvise::transparent_huge_page;
use glebe::internal::sys::page_size;
use glebe::units::{Bytes, PageSize, Pages};
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{memfd_create, MemfdFlags};

use crate::clock::{timed, Elapsed};
use crate::frames::longest_run;
use crate::Outcome;

/// Bytes left to the machine.
pub(crate) const LEFT: Bytes = Bytes::mib(1536);
/// The library's search for adjacent frames first takes `1 / SPARE_SHARE` more than it keeps.
/// [`fits`] allows for this first step only.
const SPARE_SHARE: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// `posix_memalign` with base pages, even if huge pages are the default.
    Memalign,
    /// `posix_memalign` with transparent huge pages.
    MemalignThp,
    Glebe,
    /// Hugetlb pages in the kernel's order; the pool may add surplus pages.
    Hugetlb,
    /// A mapping with `MADV_HUGEPAGE`, aligned to a huge page.
    Thp,
    /// A mapping with the machine's settings.
    Plain,
}

pub(crate) struct Memory {
    base: usize,
    len: usize,
    pub(crate) took: Elapsed,
    owner: Box<dyn Any>,
}

/// 2 MiB, aligned to the huge page of most machines.
#[repr(align(0x20_0000))]
struct Aligned(#[allow(dead_code)] [u8; 2 << 20]);

impl Way {
    /// Obtains `len` bytes. Fails if there is too little memory, no such pages, or no permission.
    pub(crate) fn obtain(self, len: Bytes) -> Outcome<Memory> {
        fits(len)?;
        match self {
            Self::Memalign => Memory::malloc(len, madvise::Advice::NoHugePage),
            Self::MemalignThp => Memory::malloc(len, madvise::Advice::HugePage),
            Self::Glebe => Memory::glebe(Contig::options().threads(1), len),
            Self::Hugetlb => {
                let (pool, mut options) = (pool()?, MmapOptions::new());
                let whole = len.pages_up(pool.size()).bytes(pool.size());
                options.len(whole.as_usize()).huge(Some(pool.size().shift() as u8));
                // Mapping reserves the pages in the pool, so it fails if the pool has too few.
                let map = || Ok(options.map_anon()?.into());
                with_surplus(&pool, len, || Memory::mapped(len, page_size().bytes(), map))
            }
            Self::Thp => {
                let (huge, mut options) = (transparent_huge_page()?.bytes(), MmapOptions::new());
                options.len((len + huge).as_usize()).no_reserve_swap();
                Memory::mapped(len, huge, || {
                    let map = MmapRaw::from(options.map_anon()?);
                    map.advise(Advice::HugePage)?;
                    Ok(map)
                })
            }
            Self::Plain => {
                let map = || Ok(MmapOptions::new().len(len.as_usize()).map_anon()?.into());
                Memory::mapped(len, page_size().bytes(), map)
            }
        }
    }
}

impl Memory {
    fn timed(len: Bytes, have: impl FnOnce() -> Outcome<(usize, Box<dyn Any>)>) -> Outcome<Self> {
        let (had, took) = timed(have);
        let (base, owner) = had?;
        Ok(Self { base, len: len.as_usize(), took, owner })
    }

    /// Obtains the library's memory. `took.cpu_us` does not include other threads.
    pub(crate) fn glebe(options: Options, len: Bytes) -> Outcome<Self> {
        Self::timed(len, || {
            let contig = options.build(len)?;
            Ok((contig.mapping().as_ptr().expose_provenance(), Box::new(contig)))
        })
    }

    fn malloc(len: Bytes, advice: madvise::Advice) -> Outcome<Self> {
        Self::timed(len, || {
            let mut block = Vec::<Aligned>::new();
            block.try_reserve_exact(len.as_usize().div_ceil(size_of::<Aligned>()))?;
            let base = block.as_mut_ptr().expose_provenance();
            // SAFETY: the range is in the allocation, and holds nothing yet.
            let advised = unsafe { madvise::advise(base, len, advice) };
            // A kernel without huge pages refuses both kinds of advice. Its base pages are what
            // `NoHugePage` asks for, so only a refused `HugePage` is a failure.
            if advice == madvise::Advice::HugePage {
                advised?;
            }
            // SAFETY: the range is in the allocation; the call keeps contents.
            unsafe { madvise::advise(base, len, madvise::Advice::PopulateWrite)? };
            Ok((base, Box::new(block)))
        })
    }

    /// Maps memory, and takes `len` bytes from the first multiple of `align` on.
    fn mapped(len: Bytes, align: Bytes, map: impl FnOnce() -> Outcome<MmapRaw>) -> Outcome<Self> {
        Self::timed(len, || {
            let map = map()?;
            let start = map.as_ptr().expose_provenance();
            let base = start.next_multiple_of(align.as_usize());
            // A shortage of memory fails here, instead of raising a signal at a later touch.
            map.advise_range(Advice::PopulateWrite, base - start, len.as_usize())?;
            Ok((base, Box::new(map)))
        })
    }

    pub(crate) fn contig(&self) -> Option<&Contig> {
        self.owner.downcast_ref()
    }

    /// Returns the longest run of adjacent frames in address order; `None` if they cannot be read.
    pub(crate) fn longest_run(&self) -> Option<Pages> {
        longest_run(self.base, Bytes::new(self.len as u64).pages_up(page_size()))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the head of this file says why the bytes are valid; `&self` excludes writers.
        unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(self.base), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the head of this file says why the bytes are valid; `&mut self` excludes others.
        unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(self.base), self.len) }
    }

    pub(crate) fn words(&self) -> &[u64] {
        let words = self.len / size_of::<u64>();
        // SAFETY: as in `bytes`; the base is aligned to a page, and any bits are a valid word.
        unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(self.base), words) }
    }
}

/// Fails unless the machine has available: `len`, a quarter of it ([`SPARE_SHARE`]) for the
/// library's search, and [`LEFT`]. With less, the kernel might kill a process.
pub(crate) fn fits(len: Bytes) -> Outcome {
    let available = meminfo::available()?;
    match most_of(available) {
        most if len <= most => Ok(()),
        most => Err(format!("{len} asked for; {available} are available, {most} for this").into()),
    }
}

/// Returns the largest length for which [`fits`] succeeds now, in whole huge pages if there are
/// any.
pub(crate) fn largest() -> Outcome<Bytes> {
    let huge = transparent_huge_page().unwrap_or_else(|_| page_size());
    Ok(most_of(meminfo::available()?).pages_down(huge).bytes(huge))
}

fn most_of(available: Bytes) -> Bytes {
    Bytes::new(available.saturating_sub(LEFT).get() / (SPARE_SHARE + 1) * SPARE_SHARE)
}

fn pool() -> Outcome<Pool> {
    let size = transparent_huge_page()?;
    Pool::of(size).ok_or_else(|| format!("no pool of {} pages", size.bytes()).into())
}

fn with_surplus<T>(pool: &Pool, len: Bytes, ask: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    PoolLock::acquire()?.with_surplus(pool, len.pages_up(pool.size()).get(), ask)
}

/// A resident file of hugetlb pages. A new mapping (window) only writes page tables, and shows what
/// the last window wrote. No other program can use the pages until the file is dropped.
pub(crate) struct HugeFile {
    file: File,
    pub(crate) len: Bytes,
    page: PageSize,
}

impl HugeFile {
    pub(crate) const NAME: &'static str = "standing_hugetlb";

    pub(crate) fn new(len: Bytes) -> Outcome<Self> {
        fits(len)?;
        let pool = pool()?;
        let page = pool.size();
        let size = MemfdFlags::from_bits_retain(page.shift() << libc::MFD_HUGE_SHIFT);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | size;
        let len = len.pages_up(page).bytes(page);
        let this = Self { file: memfd_create("glebe-bench", flags)?.into(), len, page };
        this.file.set_len(len.get())?;
        with_surplus(&pool, len, || this.window(len))?;
        Ok(this)
    }

    pub(crate) fn window(&self, len: Bytes) -> Outcome<Memory> {
        let whole = len.pages_up(self.page).bytes(self.page);
        let map = || Ok(MmapOptions::new().len(whole.as_usize()).map_raw(&self.file)?);
        Memory::mapped(len, page_size().bytes(), map)
    }
}

/// Pages added to the machine's hugetlb pool. Dropping removes them; a killed benchmark leaves them
/// to `glebe contig release`.
pub(crate) struct SetAside {
    size: PageSize,
    growth: PoolChange,
}

impl SetAside {
    pub(crate) fn new(size: PageSize, pages: u64) -> Outcome<Self> {
        Ok(Self { size, growth: grow_pool(size, pages, false)? })
    }
}

impl Drop for SetAside {
    /// Removes pages in use too: these leave the pool when they are freed.
    fn drop(&mut self) {
        let pages = self.growth.pages + self.growth.absorbed;
        let take_off = || -> Result<(), OsError> {
            let _lock = PoolLock::acquire()?;
            let Some(pool) = Pool::of(self.size) else { return Ok(()) };
            pool.set_persistent(pool.counts()?.persistent().saturating_sub(pages))
        };
        if let Err(error) = take_off() {
            eprintln!("glebe-bench: {pages} pages of {} stay: {error}", self.size.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Way; 6] =
        [Way::Memalign, Way::MemalignThp, Way::Glebe, Way::Hugetlb, Way::Thp, Way::Plain];

    #[test]
    fn every_way_gives_bytes_that_are_there_or_says_why_not() {
        for (way, len) in ALL.into_iter().flat_map(|way| [1, 3, 512, 1025].map(|n| (way, n))) {
            let pages = Pages::new(len);
            let had = way.obtain(pages.bytes(page_size()));
            assert!(had.is_ok() || !matches!(way, Way::Plain | Way::Memalign), "{way:?}");
            let Some(mut memory) = crate::had(had) else { continue };
            assert!(memory.took.wall_us > 0.0 && memory.took.cpu_us > 0.0);
            assert_eq!(memory.words().as_ptr().addr() % page_size().bytes().as_usize(), 0);
            assert_eq!(memory.words().len() as u64 * 8, pages.bytes(page_size()).get(), "{way:?}");
            let is_new = !matches!(way, Way::Memalign | Way::MemalignThp);
            assert!(!is_new || memory.bytes().iter().all(|&byte| byte == 0), "{way:?}");
            memory.bytes_mut()[5] = 1;
            assert_ne!(memory.words()[0], 0);
            assert_eq!(memory.contig().is_some(), way == Way::Glebe);
            let Some(run) = memory.longest_run() else { continue };
            let huge = transparent_huge_page().unwrap().bytes().pages_down(page_size());
            let least = if way == Way::Hugetlb { pages.min(huge) } else { Pages::new(1) };
            assert!(run >= least && run <= pages, "{way:?}: {run} of {pages}");
        }
    }

    #[test]
    fn no_way_takes_what_the_machine_needs() {
        assert_eq!(most_of(LEFT), Bytes::ZERO);
        assert_eq!(most_of(Bytes::new(LEFT.get() + 1000)), Bytes::new(800));
        for way in ALL {
            let why = way.obtain(Bytes::new(1 << 50)).map(drop).unwrap_err().to_string();
            assert!(why.contains("are available"), "{way:?}: {why}");
        }
    }

    #[test]
    fn a_window_is_the_same_pages_each_time() {
        let len = Bytes::mib(5);
        let Some(file) = crate::had(HugeFile::new(len)) else { return };
        let run = || file.window(len).unwrap().longest_run();
        // Hugetlb pages do not move.
        assert_eq!(run(), run());
        assert!(file.window(Bytes::new(1 << 40)).is_err());
    }

    #[test]
    fn what_is_set_aside_beside_surplus_pages_goes_back_without_them() {
        let Ok(pool) = pool() else { return println!("skipped: no pool") };
        let persistent = || {
            let _lock = PoolLock::acquire().unwrap();
            pool.counts().unwrap().persistent()
        };
        let had_and_gone = |_| {
            let before = persistent();
            let huge = Pages::new(pool.counts().unwrap().available() + 8);
            let Ok(surplus) = Way::Hugetlb.obtain(huge.bytes(pool.size())) else { return true };
            let aside = SetAside::new(pool.size(), 4).unwrap();
            drop(surplus);
            drop(aside);
            before == persistent()
        };
        assert!((0..8).any(had_and_gone), "others may change the pool too, but not each time");
    }
}
