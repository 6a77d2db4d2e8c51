//! Kernel peers on demand: what a program gets that asks the kernel for N contiguous base pages
//! when it needs them, and none of them promises that.
//!
//! [`Peer::SurplusHugetlb`] makes the kernel find fresh 2 MiB pages at each request: the overcommit
//! limit of the pool is raised, for the life of the block, by what the block needs.
//! [`Peer::Thp`] asks for transparent hugepages on an aligned range, [`Peer::Plain`] for memory as
//! the machine is set to give it. All three are populated before the time is taken, with
//! `MADV_POPULATE_WRITE`, which reports a failure instead of raising a signal later.
//!
//! Timed: mmap, advice and population. Not timed: raising the limit, reading page frames and
//! unmapping. Memory from the kernel is zeroed, and that is in the time: whoever compares says so.
//!
//! One base page is contiguous by itself, so for a request of one every peer competes. They do not
//! give the same thing, though: the kernel may move a page of [`Peer::Plain`] or [`Peer::Thp`] at
//! any time, and only a hugetlb page stays in its frame, as one of the reserve does.
//! [`StandingPool`] is what a program has that set memory aside beforehand: no peer on demand.
//!
//! Units: base pages; microseconds. Lock: the project's hugetlb lock file, never while timing.
//! Cost: that of zeroing, and of compaction where the kernel has to make room.

mod frames;
mod map;
mod pool;
mod standing;

use std::fmt;
use std::io;

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};

use crate::clock::{Elapsed, Stopwatch};
pub(crate) use frames::{frames_of, longest_run};
use map::Map;
pub use standing::StandingPool;

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
    /// The machine has no hugepages of the size of a page-table leaf.
    #[error("no hugepages: {0}")]
    NoHugepages(String),
    /// The kernel refused.
    #[error(transparent)]
    Os(#[from] OsError),
}

/// Populated memory from a peer; unmapped when dropped.
#[derive(Debug)]
pub struct PeerBlock {
    map: Map,
    idle_before: u64,
    pages: Pages,
    obtained: Elapsed,
}

/// One request to a peer, as [`measure`] saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerSample {
    /// Wall time to obtain and populate; of a failed request, time until it failed.
    pub wall_us: f64,
    /// CPU time of the same, kernel threads not included.
    pub cpu_us: f64,
    /// Longest physical run of the block, where frames can be read.
    pub longest_run: Option<Pages>,
    /// Hugepages that an idle pool may have given, as [`PeerBlock::from_idle_pool`].
    pub from_idle_pool: u64,
    /// What the kernel refused; `None` if memory came.
    pub failed: Option<String>,
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

    /// Obtains and populates `pages`.
    ///
    /// # Errors
    /// A size that cannot be or that the machine has not, and whatever the kernel refuses; nothing
    /// stays mapped and no limit stays raised.
    pub fn alloc(self, pages: Pages) -> Result<PeerBlock, PeerError> {
        self.prepare(pages)?.obtain().map_err(|(e, _)| e)
    }

    /// What comes before the clock starts.
    fn prepare(self, pages: Pages) -> Result<Request, PeerError> {
        let size = PeerError::Size { requested: pages };
        let len = match pages.checked_bytes(page_size()) {
            Some(len) if pages > Pages::ZERO && len.get() < 1 << 46 => len,
            _ => return Err(size),
        };
        let available = available()?;
        if len > available {
            return Err(PeerError::TooLarge { requested: len, available });
        }
        let huge = match self {
            Self::Plain => None,
            Self::Thp | Self::SurplusHugetlb => Some(pool::hugepage_bytes()?),
        };
        let idle_before = match (self, huge) {
            (Self::SurplusHugetlb, Some(huge)) => pool::idle(huge, len)?,
            _ => 0,
        };
        Ok(Request { peer: self, pages, len, huge, idle_before })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A request with its size checked.
struct Request {
    peer: Peer,
    pages: Pages,
    len: Bytes,
    huge: Option<Bytes>,
    idle_before: u64,
}

impl Request {
    /// Obtains the memory; a failure tells how long it took to come.
    fn obtain(self) -> Result<PeerBlock, (PeerError, Elapsed)> {
        match (self.peer, self.huge) {
            (Peer::SurplusHugetlb, Some(huge)) => {
                pool::with_surplus(huge, self.len, || self.timed())
                    .unwrap_or_else(|e| Err((e, Elapsed::default())))
            }
            _ => self.timed(),
        }
    }

    fn timed(&self) -> Result<PeerBlock, (PeerError, Elapsed)> {
        let watch = Stopwatch::start();
        let map = match (self.peer, self.huge) {
            (Peer::SurplusHugetlb, Some(huge)) => Map::hugetlb(self.len, huge),
            (Peer::Thp, Some(huge)) => Map::aligned(self.len, huge).and_then(|map| {
                map.advise_hugepages()?;
                Ok(map)
            }),
            _ => Map::anonymous(self.len),
        };
        let populated = map.and_then(|map| {
            map.populate()?;
            Ok(map)
        });
        let obtained = watch.elapsed();
        let (pages, idle_before) = (self.pages, self.idle_before);
        match populated {
            Ok(map) => Ok(PeerBlock { map, idle_before, pages, obtained }),
            Err(e) => Err((e.into(), obtained)),
        }
    }
}

impl PeerBlock {
    /// Pages asked for; a hugetlb block is rounded up to whole hugepages.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// The time it took to obtain and populate.
    #[must_use]
    pub fn obtained(&self) -> Elapsed {
        self.obtained
    }

    /// The first address.
    pub(crate) fn address(&self) -> usize {
        self.map.address()
    }

    /// The longest run of adjacent page frames in address order, read from `/proc/self/pagemap`;
    /// `None` without the privilege to see frames. It may change at any time unless hugetlb.
    #[must_use]
    pub fn longest_run(&self) -> Option<Pages> {
        frames::longest_run(self.map.address(), self.pages)
    }

    /// Whether all pages are one physical run; `None` as in [`PeerBlock::longest_run`].
    #[must_use]
    pub fn is_one_run(&self) -> Option<bool> {
        Some(self.longest_run()? == self.pages)
    }

    /// Hugepages of the block that an idle pool may have given, so that the kernel had not to look
    /// for them: non-zero makes the sample too good. An upper bound: others use the pool as well.
    #[must_use]
    pub fn from_idle_pool(&self) -> u64 {
        self.idle_before
    }
}

/// Makes one request, looks at its frames and gives the memory back.
#[must_use]
pub fn measure(peer: Peer, pages: Pages) -> PeerSample {
    let outcome = peer
        .prepare(pages)
        .map_err(|e| (e, Elapsed::default()))
        .and_then(|request| request.obtain());
    match outcome {
        Ok(block) => PeerSample {
            wall_us: block.obtained.wall_us,
            cpu_us: block.obtained.cpu_us,
            longest_run: block.longest_run(),
            from_idle_pool: block.from_idle_pool(),
            failed: None,
        },
        Err((error, until)) => PeerSample {
            wall_us: until.wall_us,
            cpu_us: until.cpu_us,
            longest_run: None,
            from_idle_pool: 0,
            failed: Some(error.to_string()),
        },
    }
}

/// `MemAvailable`.
fn available() -> Result<Bytes, OsError> {
    const PATH: &str = "/proc/meminfo";
    let text = std::fs::read_to_string(PATH).map_err(|e| OsError::new("read", PATH, e))?;
    crate::machine::meminfo(&text, "MemAvailable")
        .ok_or_else(|| OsError::new("read", PATH, io::Error::from(io::ErrorKind::InvalidData)))
}

#[cfg(test)]
mod tests;
