//! Kernel peers: what a program gets that asks the kernel for N contiguous base pages.
//!
//! On demand ([`Peer`]) none of them promises contiguity. [`Peer::SurplusHugetlb`] makes the kernel
//! find fresh 2 MiB pages at each request: the overcommit limit of the pool is raised, for the life
//! of the block, by what the block needs. [`Peer::Thp`] asks for transparent hugepages on an
//! aligned range, [`Peer::Plain`] for memory as the machine is set to give it. All are populated
//! before the time is taken, with `MADV_POPULATE_WRITE`, which reports a failure instead of raising
//! a signal later. [`StandingPool`] is what a program has that set memory aside beforehand: no peer
//! on demand.
//!
//! Timed: mmap, advice and population. Not timed: raising the limit, reading page frames and
//! unmapping. Memory on demand is zeroed, and that is in the time. The kernel may move a page of
//! [`Peer::Plain`] or [`Peer::Thp`] at any time. Units: base pages; microseconds. Lock: the
//! project's hugetlb lock file, never while timing.

use std::fmt;
use std::fs::File;
use std::io;

use glebe::contig::PoolLock;
use glebe::error::OsError;
use glebe::sys::hugetlb::Pool;
use glebe::sys::{madvise, meminfo, page_size};
use glebe::units::{Bytes, PageSize, Pages};
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{memfd_create, MemfdFlags};

use crate::clock::{Elapsed, Stopwatch};
pub(crate) use crate::frames::longest_run;

/// A way to ask the kernel for memory on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Surplus pages of the hugetlb pool, mapped and populated. Needs root.
    SurplusHugetlb,
    /// Anonymous memory with `MADV_HUGEPAGE`, aligned to a hugepage.
    Thp,
    /// Anonymous memory without advice.
    Plain,
}

/// Why a peer gave no memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The request would not fit: the machine must not be brought to kill a process for it.
    #[error("{requested} requested, {available} available on this machine")]
    TooLarge {
        /// Bytes asked for.
        requested: Bytes,
        /// `MemAvailable` at that time.
        available: Bytes,
    },
    /// No page at all was asked for, or more bytes than an address space holds.
    #[error("{requested} is not a size that can be mapped")]
    Size {
        /// Pages asked for.
        requested: Pages,
    },
    /// The machine has no pool of hugepages of the size of a page-table leaf.
    #[error("no pool of {0} pages")]
    NoPool(Bytes),
    /// The kernel refused.
    #[error(transparent)]
    Os(#[from] OsError),
}

/// Populated memory from a peer; unmapped when dropped.
#[derive(Debug)]
pub struct PeerBlock {
    map: Map,
    pages: Pages,
}

/// One request to a peer, as [`measure`] saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerSample {
    /// Wall time to obtain and populate; 0 of a failed request.
    pub wall_us: f64,
    /// CPU time of the same, kernel threads not included.
    pub cpu_us: f64,
    /// Longest physical run of the block, where frames can be read.
    pub longest_run: Option<Pages>,
    /// Hugepages that an idle pool may have given, so that the kernel had not to look for them:
    /// non-zero makes the sample too good. An upper bound: others use the pool as well.
    pub from_idle_pool: u64,
    /// What the kernel refused; `None` if memory came.
    pub failed: Option<String>,
}

impl PeerSample {
    fn of(outcome: Result<(Elapsed, Option<Pages>, u64), PeerError>) -> Self {
        let failed = outcome.as_ref().err().map(ToString::to_string);
        let (took, longest_run, from_idle_pool) = outcome.unwrap_or_default();
        let Elapsed { wall_us, cpu_us } = took;
        Self { wall_us, cpu_us, longest_run, from_idle_pool, failed }
    }
}

impl Peer {
    /// Every peer.
    pub const ALL: [Self; 3] = [Self::SurplusHugetlb, Self::Thp, Self::Plain];

    /// The name in tables and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SurplusHugetlb => "surplus_hugetlb",
            Self::Thp => "thp",
            Self::Plain => "plain",
        }
    }

    /// Obtains and populates `pages`, and tells how long that took.
    ///
    /// # Errors
    /// A size that cannot be or that the machine has not, and whatever the kernel refuses; nothing
    /// stays mapped and no limit stays raised.
    pub fn alloc(self, pages: Pages) -> Result<(PeerBlock, Elapsed), PeerError> {
        let len = fitting(pages)?;
        let (map, took) = match self {
            Self::SurplusHugetlb => {
                let pool = pool()?;
                with_surplus(&pool, len, || timed(|| Map::hugetlb(len, pool.size())))??
            }
            Self::Thp => {
                let huge = madvise::transparent_huge_page()?;
                timed(|| Map::transparent(len, huge.bytes()))?
            }
            Self::Plain => timed(|| Map::new(MmapOptions::new().len(len.as_usize()), len))?,
        };
        Ok((PeerBlock { map, pages }, took))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl PeerBlock {
    /// The first address.
    pub(crate) fn address(&self) -> usize {
        self.map.address()
    }

    /// The longest run of adjacent page frames in address order; `None` without the privilege to
    /// see frames. It may change at any time unless hugetlb.
    #[must_use]
    pub fn longest_run(&self) -> Option<Pages> {
        longest_run(self.address(), self.pages)
    }
}

/// Makes one request, looks at its frames and gives the memory back.
#[must_use]
pub fn measure(peer: Peer, pages: Pages) -> PeerSample {
    let idle = match (peer, pool()) {
        (Peer::SurplusHugetlb, Ok(pool)) => pool.counts().map_or(0, |counts| {
            counts.available().min(pages.bytes(page_size()).pages_up(pool.size()).get())
        }),
        _ => 0,
    };
    PeerSample::of(peer.alloc(pages).map(|(block, took)| (took, block.longest_run(), idle)))
}

/// The bytes of `pages`, if they can be had at all.
fn fitting(pages: Pages) -> Result<Bytes, PeerError> {
    let len = pages.checked_bytes(page_size()).filter(|len| len.get() < 1 << 46);
    let requested = len.filter(|len| *len > Bytes::ZERO);
    let requested = requested.ok_or(PeerError::Size { requested: pages })?;
    let available = meminfo::available()?;
    match requested <= available {
        true => Ok(requested),
        false => Err(PeerError::TooLarge { requested, available }),
    }
}

/// The pool of the hugepages that one page-table leaf maps.
fn pool() -> Result<Pool, PeerError> {
    let size = madvise::transparent_huge_page()?;
    Pool::of(size).ok_or(PeerError::NoPool(size.bytes()))
}

/// Runs `ask` while surplus pages for `len` may be had of the pool.
fn with_surplus<T>(pool: &Pool, len: Bytes, ask: impl FnOnce() -> T) -> Result<T, PeerError> {
    let pages = len.pages_up(pool.size()).get();
    let lock = PoolLock::acquire()?;
    Ok(lock.with_surplus(pool, pages, || Ok::<_, OsError>(ask()))?)
}

/// Maps and populates.
fn timed(map: impl FnOnce() -> Result<Map, OsError>) -> Result<(Map, Elapsed), PeerError> {
    let watch = Stopwatch::start();
    let map = map()?;
    map.advise("madvise MADV_POPULATE_WRITE", Advice::PopulateWrite)?;
    Ok((map, watch.elapsed()))
}

/// Memory that is only mapped and populated, never read or written through here.
#[derive(Debug)]
struct Map {
    memory: MmapRaw,
    /// The part in use: aligned where that was asked for.
    skip: usize,
    len: usize,
}

impl Map {
    fn new(options: &MmapOptions, len: Bytes) -> Result<Self, OsError> {
        let memory = options.map_anon().map_err(|e| OsError::new("mmap", len.to_string(), e))?;
        Ok(Self { memory: memory.into(), skip: 0, len: len.as_usize() })
    }

    /// Pages of the hugetlb pool, rounded up to whole ones. The kernel takes them from the pool,
    /// surplus included, here: a shortage is seen now.
    fn hugetlb(len: Bytes, huge: PageSize) -> Result<Self, OsError> {
        let len = len.pages_up(huge).bytes(huge);
        Self::new(MmapOptions::new().len(len.as_usize()).huge(Some(huge.shift() as u8)), len)
    }

    /// Transparent huge pages; up to one of address space goes unused.
    fn transparent(len: Bytes, huge: Bytes) -> Result<Self, OsError> {
        let room = (len + huge).as_usize();
        let mut map = Self::new(MmapOptions::new().len(room).no_reserve_swap(), len)?;
        map.skip = map.address().next_multiple_of(huge.as_usize()) - map.address();
        map.advise("madvise MADV_HUGEPAGE", Advice::HugePage)?;
        Ok(map)
    }

    fn address(&self) -> usize {
        self.memory.as_ptr().expose_provenance() + self.skip
    }

    fn advise(&self, call: &'static str, advice: Advice) -> Result<(), OsError> {
        let advised = self.memory.advise_range(advice, self.skip, self.len);
        advised.map_err(|e| OsError::new(call, Bytes::new(self.len as u64).to_string(), e))
    }
}

/// Hugetlb pages that were set aside beforehand, mapped when they are wanted: a file of them, all
/// resident, of which a window is mapped on demand.
///
/// It answers as fast as the page table is written, and its bytes lie idle the rest of the time:
/// that is its price, [`StandingPool::idle`]. The contents of its window are what was there before.
#[derive(Debug)]
pub struct StandingPool {
    file: File,
    len: Bytes,
    page: PageSize,
}

impl StandingPool {
    /// The name in tables and results.
    pub const NAME: &'static str = "standing_hugetlb";

    /// Sets `pages` aside, rounded up to whole hugepages: surplus pages of the pool.
    ///
    /// # Errors
    /// As [`Peer::alloc`] of surplus hugetlb pages.
    pub fn new(pages: Pages) -> Result<Self, PeerError> {
        let pool = pool()?;
        let page = pool.size();
        let len = fitting(pages)?.pages_up(page).bytes(page);
        let failed = |e: io::Error| OsError::new("memfd_create", "hugetlb", e);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB;
        let size = MemfdFlags::from_bits_retain(page.shift() << libc::MFD_HUGE_SHIFT);
        let fd = memfd_create("glebe-bench", flags | size).map_err(|e| failed(e.into()))?;
        let this = Self { file: fd.into(), len, page };
        this.file.set_len(len.get()).map_err(failed)?;
        with_surplus(&pool, len, || timed(|| this.window(len)))??;
        Ok(this)
    }

    /// Bytes that nobody uses while nothing is mapped.
    #[must_use]
    pub fn idle(&self) -> Bytes {
        self.len
    }

    fn window(&self, len: Bytes) -> Result<Map, OsError> {
        let len = len.pages_up(self.page).bytes(self.page).as_usize();
        let memory = MmapOptions::new().len(len).map_raw(&self.file);
        let memory = memory.map_err(|e| OsError::new("mmap", "a window", e))?;
        Ok(Map { memory, skip: 0, len })
    }

    /// Maps a window of `pages`, looks at its frames and unmaps it.
    #[must_use]
    pub fn measure(&self, pages: Pages) -> PeerSample {
        let window = timed(|| self.window(pages.bytes(page_size())));
        let run = |map: &Map| longest_run(map.address(), pages);
        PeerSample::of(window.map(|(map, took)| (took, run(&map), 0)))
    }
}

/// On the machine as it is: without root or hugepages the parts that need them skip.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::set_aside::SetAside;

    #[test]
    fn every_peer_gives_what_was_asked() {
        for (peer, pages) in
            Peer::ALL.into_iter().flat_map(|peer| [1, 3, 512, 1025].map(|n| (peer, n)))
        {
            let pages = Pages::new(pages);
            let (block, took) = match peer.alloc(pages) {
                Ok(had) => had,
                Err(why) if peer != Peer::Plain => {
                    println!("skipped: {}: {why}", peer.name());
                    continue;
                }
                Err(why) => panic!("{why}"),
            };
            assert!(took.wall_us > 0.0);
            let Some(run) = block.longest_run() else {
                println!("skipped: page frames are hidden");
                continue;
            };
            assert!(run > Pages::ZERO && run <= pages, "{peer:?}: {run} of {pages}");
            if peer == Peer::SurplusHugetlb {
                let huge = pool().unwrap().size().bytes().pages_down(page_size());
                assert!(run >= pages.min(huge), "{run} of {pages}");
            }
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_errors() {
        for peer in Peer::ALL {
            assert!(matches!(peer.alloc(Pages::ZERO), Err(PeerError::Size { .. })));
            assert!(matches!(peer.alloc(Pages::new(u64::MAX)), Err(PeerError::Size { .. })));
            let sample = measure(peer, Pages::new(1 << 33));
            assert!(sample.failed.is_some_and(|why| why.contains("available")));
        }
    }

    #[test]
    fn a_window_of_the_standing_pool_is_the_same_pages_each_time() {
        let pages = Pages::new(1025);
        let pool = match StandingPool::new(pages) {
            Ok(pool) => pool,
            Err(why) => return println!("skipped: {why}"),
        };
        assert!(pool.idle() >= pages.bytes(page_size()));
        let first = pool.measure(pages);
        assert!(first.failed.is_none() && first.wall_us > 0.0, "{first:?}");
        // Hugetlb pages are not moved, so their runs are as they were.
        assert_eq!(pool.measure(pages).longest_run, first.longest_run);
        assert!(pool.measure(Pages::new(1 << 28)).failed.is_some(), "a window of a TiB");
    }

    #[test]
    fn what_is_set_aside_beside_surplus_pages_goes_back_without_them() {
        let Ok(pool) = pool() else { return println!("skipped: no pool") };
        let persistent = || {
            let _lock = PoolLock::acquire().unwrap();
            pool.counts().unwrap().persistent()
        };
        // Others may change the pool too.
        let mut seen = Vec::new();
        for _ in 0..8 {
            let before = persistent();
            // More than lies idle.
            let huge = Pages::new(pool.counts().unwrap().available() + 8);
            let pages = huge.bytes(pool.size()).pages_up(page_size());
            let surplus = match Peer::SurplusHugetlb.alloc(pages) {
                Ok(block) => block,
                Err(why) => return println!("skipped: {why}"),
            };
            let aside = SetAside::new(pool.size(), 4).unwrap();
            drop(surplus);
            drop(aside);
            seen.push((before, persistent()));
            if seen.last().is_some_and(|(before, after)| before == after) {
                return;
            }
        }
        panic!("persistent pages before and after: {seen:?}");
    }
}
