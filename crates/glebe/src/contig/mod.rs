//! [`Contig`]: physically contiguous memory, populated, kept where it is, and proved.
//!
//! ```
//! use glebe::contig::Contig;
//! use glebe::units::Bytes;
//!
//! let memory = Contig::options().map(Bytes::mib(4))?;
//! memory.mapping().write(Bytes::ZERO, b"here");
//! println!("{:?}, longest run {}", memory.source(), memory.longest_run());
//! for reason in memory.why_not_better() {
//!     println!("{reason}");
//! }
//! # Ok::<(), glebe::contig::Error>(())
//! ```
//!
//! Lengths are bytes, positions and runs are base pages from the start of the mapping, frames are
//! those of `/proc/self/pagemap` (in a virtual machine, the guest's). Every page is present when
//! [`Options::map`] returns; no later touch is a SIGBUS. Making is dominated by the kernel's
//! zeroing, 0.3 to 3 ms for 2 MiB; the rest is 10 to 20 µs a huge page.
//!
//! How long runs are had from a pool of single huge pages: more are taken than needed, their
//! frames read, the fewest runs that suffice chosen, and all given back to the pool in descending
//! frame order; the pool hands out what came last first, so that the next mapping, touched from
//! its start on, has them ascending. Where those runs are more than pages of the next larger size
//! would make, the pool is grown by splitting such pages first, if they can be had. What came out
//! is checked, never assumed; what was not needed goes back.
//!
//! What is *guaranteed* is what [`Contig::runs`] lists; how long they are is best effort, unless
//! [`Options::require_run`] makes a shortage an error. Hugetlb pages stay in their frames
//! ([`Contig::pinned`]); transparent huge pages and small pages may be moved at any time, and
//! [`Contig::verify`] tells whether they were.
//!
//! Locks: the lock file of the hugetlb pools, while the number of pages is changed or their order
//! made; it is held by no caller of this module. Sources: admin-guide/mm/hugetlbpage,
//! admin-guide/mm/pagemap, admin-guide/mm/transhuge.

mod claims;
mod error;
mod hugetlb;
mod options;
mod order;
mod ordinary;
mod pool;
mod populate;
mod runs;

use crate::error::OsError;
use crate::extent::Extent;
use crate::mapping::Mapping;
use crate::sys::page_size;
use crate::units::{Bytes, PageSize, Pages, Pfn};

pub use error::Error;
pub use options::{Options, Progress, SourceChoice};

/// Where memory comes from, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The hugetlb pool of this page size. Not moved, not swapped.
    Hugetlb(PageSize),
    /// Transparent huge pages. May be moved or split by the kernel.
    Thp,
    /// Base pages, as the kernel gives them.
    Plain,
}

impl Source {
    /// Huge pages of 1 GiB.
    pub const HUGETLB_1G: Self = Self::Hugetlb(known_size(1 << 30));
    /// Huge pages of 2 MiB.
    pub const HUGETLB_2M: Self = Self::Hugetlb(known_size(2 << 20));
}

const fn known_size(bytes: u64) -> PageSize {
    match PageSize::new(bytes) {
        Some(size) => size,
        None => panic!("a power of two"),
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Hugetlb(size) => write!(f, "hugetlb {}", size.bytes()),
            Source::Thp => f.write_str("transparent huge pages"),
            Source::Plain => f.write_str("base pages"),
        }
    }
}

/// Positions that are physically contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Positions in the mapping, in base pages.
    pub pages: Extent,
    /// The frame of the first, where the caller may see it.
    pub pfn: Option<Pfn>,
}

/// What the runs rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Page frame numbers were read.
    Frames,
    /// Frames are hidden from the caller: contiguity is proved only within this many base pages.
    Within(Pages),
}

/// A run that is no longer where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    /// Positions in the mapping, in base pages.
    pub pages: Extent,
    /// The frame that the first had.
    pub was: Pfn,
    /// The frame that it has now; `None` if no page is there.
    pub now: Option<Pfn>,
}

/// Physically contiguous memory. Dropping it gives back what was taken, the growth of a hugetlb
/// pool too.
#[derive(Debug)]
pub struct Contig {
    // Dropped in this order: pages are free before the pool is shrunk by them.
    mapping: Mapping,
    claim: Option<pool::PoolClaim>,
    source: Source,
    runs: Vec<Run>,
    proof: Proof,
    why_not_better: Vec<String>,
}

impl Contig {
    /// How memory is to be had; [`Options::map`] has it.
    pub fn options<'a>() -> Options<'a> {
        Options::new()
    }

    /// The bytes. They are not in a forked child, nor in a core dump.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Bytes mapped: what was asked for, rounded up to the source's pages.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> Bytes {
        self.mapping.len()
    }

    /// Where the memory came from.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// The runs, in order of position, none longer than proved. Adjacent positions with adjacent
    /// frames are one run. Where frames are hidden, each huge page is one; empty where even that
    /// is not proved.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// What the runs rest on.
    #[must_use]
    pub fn proof(&self) -> Proof {
        self.proof
    }

    /// The longest contiguity that is proved: at least one page.
    #[must_use]
    pub fn longest_run(&self) -> Pages {
        runs::longest(&self.runs)
    }

    /// Whether the frames stay the same for as long as this lives.
    #[must_use]
    pub fn pinned(&self) -> bool {
        matches!(self.source, Source::Hugetlb(_))
    }

    /// Pages by which the hugetlb pool was grown for this, of the source's size.
    #[must_use]
    pub fn grown_by(&self) -> u64 {
        self.claim.as_ref().map_or(0, pool::PoolClaim::pages)
    }

    /// For every better source that was refused: what, the value, the limit, and how to get it.
    #[must_use]
    pub fn why_not_better(&self) -> &[String] {
        &self.why_not_better
    }

    /// Reads the frames again and lists the runs that moved, as far as they moved. Where frames
    /// are hidden only a page that has gone can be told.
    ///
    /// # Errors
    /// If the frames cannot be read, or this is a forked child, which has no such memory.
    pub fn verify(&self) -> Result<Vec<Drift>, OsError> {
        let grain = match self.source {
            Source::Hugetlb(size) => size,
            Source::Thp | Source::Plain => page_size(),
        };
        runs::drift(&self.mapping, &self.runs, grain)
    }
}

#[cfg(test)]
mod tests;
