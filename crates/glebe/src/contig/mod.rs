//! [`Contig`]: physically contiguous memory, populated, kept where it is, and proved.
//!
//! ```
//! use glebe::contig::Contig;
//! use glebe::units::Bytes;
//!
//! let memory = Contig::new(Bytes::mib(4))?;
//! memory.mapping().write(Bytes::ZERO, b"here");
//! println!("{}, longest run {}", memory.source(), memory.longest_run());
//! for reason in memory.why_not_better() {
//!     println!("{reason}");
//! }
//! # Ok::<(), glebe::contig::Error>(())
//! ```
//!
//! Lengths are bytes, positions and runs are base pages from the start of the mapping, frames are
//! those of `/proc/self/pagemap` (in a virtual machine, the guest's). Every page is present when
//! [`Options::build`] returns; no later touch is a SIGBUS. Making is dominated by the kernel's
//! zeroing, 0.1 to 0.6 ms for 2 MiB, 3 ms of memory that a virtual machine's host has yet to give;
//! the rest is 2 to 30 µs a huge page.
//!
//! How long runs are had from a pool of single huge pages: their frames are read, and the pages
//! moved side by side in ascending order. Where a run is asked for ([`Options::require_run`],
//! [`Options::prefer_run`]), or a length to look at ([`Options::search`]), the longest runs of free
//! memory are looked for in `/proc/kpageflags` and drawn into the pool, at first as they are, then
//! after a compaction of the machine's memory, then by splitting pages of the next larger size, as
//! far as [`Options::search_time`] allows. What came out is checked, never assumed.
//!
//! What is *guaranteed* is what [`Contig::runs`] lists; how long they are is best effort, unless
//! [`Options::require_run`] makes a shortage an error. Hugetlb pages stay in their frames; other
//! pages are pinned where the kernel allows that. [`Contig::held_by`] says what keeps the pages
//! still; where it is nothing they may be moved at any time, and [`Contig::verify`] tells whether
//! they were. [`Contig::query`] and [`Contig::certificate`] pass on what is known.
//!
//! Lock: that of the hugetlb pools ([`PoolLock`]), while pages are found or freed in order. Of
//! these only those that a search has chosen are zeroed meanwhile, for half a second at a time.
//! [`Options::lock_patience`] bounds the wait for it. Sources: admin-guide/mm/hugetlbpage,
//! admin-guide/mm/pagemap, admin-guide/mm/transhuge.

mod assemble;
mod blocks;
mod certificate;
mod choose;
mod error;
mod explain;
mod hold;
mod hugetlb;
mod options;
mod order;
mod ordinary;
mod pool;
mod populate;
mod resident;
mod resize;
mod runs;
mod window;

use std::sync::Arc;

use crate::error::OsError;
use crate::extent::Extent;
use crate::mapping::Mapping;
use crate::sys::hugetlb::sizes;
use crate::sys::madvise::transparent_huge_page;
use crate::sys::memfd::MemFile;
use crate::sys::page_size;
use crate::units::{Bytes, PageSize, Pages, Pfn};

pub use crate::sys::numa::Node;
pub use blocks::{bank, mend_blocks};
pub(crate) use certificate::locate;
pub use certificate::Certificate;
pub use error::Error;
pub use explain::{boot_parameter, explain, Outlook, Verdict};
pub use hold::HeldBy;
pub use options::{Options, Plan, Progress};
pub use pool::PoolLock;
pub use resize::{grow_pool, shrink_pool, PoolChange};
pub(crate) use runs::push_run;

/// Where memory comes from, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The hugetlb pool of this page size. Not moved, not swapped.
    Hugetlb(PageSize),
    /// Transparent huge pages. May be moved or split by the kernel.
    Thp,
    /// Base pages, as the kernel gives them.
    Plain,
    /// A buffer of the dma-heap that [`Options::dma_heap`] named.
    DmaHeap,
    /// Memory blocks that are evacuated for it (`CONFIG_MEMORY_HOTREMOVE`, root): one run of any
    /// length that blocks side by side have without memory of the kernel's own. Never tried unless
    /// asked for, and never pinned. While the memory lives, nobody else can use pages that lie
    /// idle in the hugetlb pool on its node. It is refused if there are more of those than the
    /// blocks hold.
    Blocks,
    /// Several sources, largest blocks first ([`Plan::Divide`]): see [`Contig::parts`].
    Divided,
}

impl Source {
    /// Huge pages of 1 GiB.
    pub const HUGETLB_1G: Self = Self::Hugetlb(PageSize::new(1 << 30).unwrap());
    /// Huge pages of 2 MiB.
    pub const HUGETLB_2M: Self = Self::Hugetlb(PageSize::new(2 << 20).unwrap());
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Hugetlb(size) => write!(f, "hugetlb {}", size.bytes()),
            Source::Thp => f.write_str("transparent huge pages"),
            Source::Plain => f.write_str("base pages"),
            Source::DmaHeap => f.write_str("dma-heap"),
            Source::Blocks => f.write_str("memory blocks"),
            Source::Divided => f.write_str("several sources"),
        }
    }
}

/// Positions that came from one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Positions in the mapping, in base pages.
    pub pages: Extent,
    /// Where they came from; never [`Source::Divided`].
    pub source: Source,
}

/// Where a byte lies, as far as that is proved: the answer of [`Contig::query`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Bytes of the run in front of it.
    pub offset_in_run: Bytes,
    /// Bytes from it on that are contiguous.
    pub contiguous: Bytes,
    /// Bytes of the whole run.
    pub run_len: Bytes,
    /// The frame of its page, where the caller may see it.
    pub pfn: Option<Pfn>,
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

impl Proof {
    /// What proves both.
    pub(crate) fn weaker(self, other: Self) -> Self {
        match (self, other) {
            (Self::Within(a), Self::Within(b)) => Self::Within(a.min(b)),
            (Self::Frames, other) | (other, Self::Frames) => other,
        }
    }
}

impl std::fmt::Display for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Proof::Frames => f.write_str("proved by page frame numbers"),
            Proof::Within(pages) => {
                write!(f, "contiguity proved only within {}", pages.bytes(page_size()))
            }
        }
    }
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

/// Physically contiguous memory. The kernel has it back, what a hugetlb pool was given for it too,
/// when this is dropped or the process ends.
#[derive(Debug)]
pub struct Contig {
    // Dropped before what it pins.
    pin: Option<hold::Pin>,
    mapping: Mapping,
    // Given back behind the mapping, which has their pages.
    blocks: Option<blocks::Held>,
    /// Bytes that were asked for.
    asked: Bytes,
    parts: Vec<Part>,
    runs: Vec<Run>,
    proof: Proof,
    /// What was tried for a run that was not had.
    tried: Option<String>,
    why_not_better: Vec<String>,
    why_not_pinned: Option<String>,
}

impl Contig {
    /// At least `len` bytes from the best source that can be had, kept in place where possible.
    ///
    /// # Errors
    /// Why none could be had.
    pub fn new(len: Bytes) -> Result<Self, Error> {
        Self::options().build(len)
    }

    /// Begins to say what memory is wanted; [`Options::build`] has it.
    pub fn options() -> Options {
        Options::default()
    }

    /// All of one source.
    fn of(source: Source, mapping: Mapping, (runs, proof): (Vec<Run>, Proof)) -> Self {
        let pages = Extent::new(0, mapping.len().pages_up(page_size()).get());
        let part = Part { pages: pages.expect("a mapping is never empty"), source };
        Self {
            pin: None,
            asked: mapping.len(),
            mapping,
            blocks: None,
            parts: vec![part],
            runs,
            proof,
            tried: None,
            why_not_better: Vec::new(),
            why_not_pinned: None,
        }
    }

    /// The bytes. They are not in a forked child, nor in a core dump.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The file that the pages are of, where [`Options::mappable`] was asked for.
    #[must_use]
    pub fn file(&self) -> Option<&Arc<MemFile>> {
        self.mapping.file()
    }

    /// Bytes mapped: what was asked for, rounded up as the plan says.
    #[must_use]
    pub fn len(&self) -> Bytes {
        self.mapping.len()
    }

    /// Bytes mapped beyond those asked for: the end of the last page, which a hugetlb pool does
    /// not take back alone.
    #[must_use]
    pub fn spare(&self) -> Bytes {
        self.len().saturating_sub(self.asked)
    }

    /// Where the memory came from.
    #[must_use]
    pub fn source(&self) -> Source {
        match self.parts[..] {
            [part] => part.source,
            _ => Source::Divided,
        }
    }

    /// Which positions came from which source, in order of position.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
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

    /// What is known of the byte at `addr`, as `posix_mem_offset` would answer: where in its run
    /// it lies, and how many contiguous bytes follow. `None` outside of the mapping. O(log runs).
    #[must_use]
    pub fn query(&self, addr: usize) -> Option<Location> {
        let offset = addr.checked_sub(self.mapping.addr())?;
        certificate::locate(&self.runs, self.len(), Bytes::new(offset as u64))
    }

    /// All that is known, to keep or to pass on.
    #[must_use]
    pub fn certificate(&self) -> Certificate {
        let (source, held_by, len) = (self.source(), self.held_by(), self.len());
        Certificate { source, held_by, len, runs: self.runs.clone(), proof: self.proof }
    }

    /// What keeps the pages in their frames, for as long as this lives.
    #[must_use]
    pub fn held_by(&self) -> HeldBy {
        if self.pin.is_some() {
            return HeldBy::LongTermPin;
        }
        if self.blocks.is_some() {
            return HeldBy::MovablePool;
        }
        match self.source() {
            Source::Hugetlb(_) => HeldBy::HugetlbPool,
            Source::DmaHeap => HeldBy::DmaBuffer,
            Source::Divided if self.parts.iter().all(Part::is_hugetlb) => HeldBy::HugetlbPool,
            _ => HeldBy::Nothing,
        }
    }

    /// Why there is no long-term pin, where one was tried or never can be.
    #[must_use]
    pub fn why_not_pinned(&self) -> Option<&str> {
        self.why_not_pinned.as_deref()
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
        runs::drift(&self.mapping, &self.runs, self.source().grain())
    }
}

impl Part {
    fn is_hugetlb(&self) -> bool {
        matches!(self.source, Source::Hugetlb(_))
    }
}

impl Source {
    /// The page of which whole ones are had.
    fn page(self) -> PageSize {
        match self {
            Source::Hugetlb(size) => size,
            Source::Thp => transparent_huge_page().unwrap_or(page_size()),
            Source::Blocks => smallest_hugetlb().unwrap_or(page_size()),
            Source::Plain | Source::DmaHeap | Source::Divided => page_size(),
        }
    }

    /// The pages that a length is rounded up to: not transparent huge pages that are larger than
    /// the usual, since what is beyond the last whole one can be in base pages.
    fn rounds_to(self) -> PageSize {
        rounds_to(self, self.page())
    }

    /// The page within which frames need not be looked at one by one.
    fn grain(self) -> PageSize {
        match self {
            Source::Thp => page_size(),
            other => other.page(),
        }
    }
}

/// The smallest size of [`pool_sizes`].
fn smallest_hugetlb() -> Option<PageSize> {
    pool_sizes().pop()
}

/// Returns the page sizes of the hugetlb pools that are tried where the caller names none, largest
/// first.
fn pool_sizes() -> Vec<PageSize> {
    large(sizes(), transparent_huge_page().ok())
}

/// Keeps the sizes of at least 2 MiB, or of at least a transparent huge page if that is smaller.
/// Transparent huge pages are larger, 32 and 512 MiB, with base pages of 16 and 64 KiB.
fn large(mut sizes: Vec<PageSize>, transparent: Option<PageSize>) -> Vec<PageSize> {
    let least = transparent.map_or(LARGE, |size| size.bytes().min(LARGE));
    sizes.retain(|size| size.bytes() >= least);
    sizes
}

const LARGE: Bytes = Bytes::mib(2);

fn rounds_to(source: Source, page: PageSize) -> PageSize {
    match source {
        Source::Thp if page.bytes() > LARGE => page_size(),
        _ => page,
    }
}

#[cfg(test)]
mod tests;
