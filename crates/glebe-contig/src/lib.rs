//! [`Contig`] owns physically contiguous memory.
//!
//! ```
//! use glebe_contig::Contig;
//! use glebe_contig::units::Bytes;
//!
//! let memory = Contig::new(Bytes::mib(4))?;
//! memory.mapping().write(Bytes::ZERO, b"here");
//! println!("{}, longest run {}", memory.source(), memory.longest_run());
//! for reason in memory.why_not_better() {
//!     println!("{reason}");
//! }
//! # Ok::<(), glebe_contig::Error>(())
//! ```
//!
//! [`Contig::runs`] lists only proved runs. They may be short, unless [`Options::require_run`]
//! makes a short run an error. Every page is present, so no touch raises SIGBUS.
//!
//! By default, `build` maps hugetlb pages in physical order if frames are visible. For a wanted
//! run ([`Options::require_run`], [`Options::prefer_run`]) `build` may compact memory, add free
//! runs to the pool and split larger pages.
//!
//! Lengths are bytes. Positions and runs are base pages from the start of the mapping. Frames come
//! from `/proc/self/pagemap`; in a virtual machine they are the guest's. Cost: zeroing, 0.1 to 0.6
//! ms for 2 MiB. Lock: [`PoolLock`], while pages are found or ordered. Source: admin-guide/mm.
#![deny(unsafe_code)]
#![cfg(not(loom))]

mod assemble;
mod blocks;
mod bricks;
mod certificate;
mod choose;
mod elsewhere;
mod error;
mod explain;
mod frame_uses;
mod hold;
mod hugetlb;
mod nodes;
mod options;
mod order;
mod ordinary;
mod pool;
mod populate;
mod registered;
mod resident;
mod resize;
mod runs;
mod window;

use std::sync::{Arc, OnceLock};

use glebe_os::extent::Extent;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sync::AtomicU64;
use glebe_os::internal::sys::machine::hugetlb::sizes;
use glebe_os::internal::sys::memory::madvise::transparent_huge_page;
use glebe_os::internal::sys::memory::memfd::MemFile;
use glebe_os::units::{Bytes, PageSize, Pages, Pfn};

pub use blocks::{bank, mend_blocks};
pub use certificate::Certificate;
pub use error::Error;
pub use explain::{boot_parameter, explain, Outlook, Verdict};
pub use glebe_os::internal::sys::machine::numa::Node;
pub use hold::HeldBy;
pub use options::{Options, Plan, Progress};
pub use pool::PoolLock;
pub use resize::{grow_pool, shrink_pool, PoolChange};

/// The sources of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Hugetlb pages of this size ([`HeldBy::HugetlbPool`]).
    Hugetlb(PageSize),
    /// Transparent huge pages, which the kernel may move or split.
    Thp,
    /// Base pages.
    Plain,
    /// A dma-heap's buffer ([`Options::dma_heap`]).
    DmaHeap,
    /// One run of evacuated memory blocks (`CONFIG_MEMORY_HOTREMOVE`, root), never pinned. If the
    /// node has idle hugetlb pages, this memory reserves the pool's idle pages while the memory
    /// lives. `build` fails if more pages are idle than the blocks hold.
    Blocks,
    /// Several sources ([`Plan::Divide`]).
    Divided,
}

impl Source {
    /// Hugetlb pages of 1 GiB.
    pub const HUGETLB_1G: Self = Self::Hugetlb(PageSize::new(1 << 30).unwrap());
    /// Hugetlb pages of 2 MiB.
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

/// The pages of one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Positions in the mapping, in base pages.
    pub pages: Extent,
    /// Source, never [`Source::Divided`].
    pub source: Source,
}

/// The place of a byte in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Bytes of the run before the byte.
    pub offset_in_run: Bytes,
    /// Contiguous bytes from the byte on.
    pub contiguous: Bytes,
    /// Bytes of the whole run.
    pub run_len: Bytes,
    /// Frame of the byte's page, if visible.
    pub pfn: Option<Pfn>,
}

/// Physically contiguous positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Positions in the mapping, in base pages.
    pub pages: Extent,
    /// Frame of the first page, if visible.
    pub pfn: Option<Pfn>,
}

/// The evidence for runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Frames were read.
    Frames,
    /// Frames are hidden: only this many base pages are proved contiguous.
    Within(Pages),
}

impl Proof {
    /// Returns what both pieces of evidence prove.
    #[must_use]
    pub fn weaker(self, other: Self) -> Self {
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

/// Pages that left their frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    /// Positions in the mapping, in base pages.
    pub pages: Extent,
    /// Earlier frame of the first page; 0 if it was hidden.
    pub was: Pfn,
    /// Frame of the first page now, unless missing.
    pub now: Option<Pfn>,
}

/// Physically contiguous memory. At drop or exit, the kernel gets the memory back, also pages that
/// were added to a hugetlb pool.
#[derive(Debug)]
pub struct Contig {
    // `pin` drops before the memory that it pins.
    pin: Option<hold::Pin>,
    mapping: Mapping,
    // `blocks` drops after the mapping, which uses the blocks' pages.
    blocks: Option<blocks::HeldBlocks>,
    asked: Bytes,
    parts: Vec<Part>,
    runs: Vec<Run>,
    proof: Proof,
    tried: Option<String>,
    why_not_better: Vec<String>,
    why_not_pinned: Option<String>,
    /// Nodes of pages that cannot move to another node, once the kernel told them.
    nodes: OnceLock<Vec<(Extent, Node)>>,
    /// 1 while a device has the addresses, otherwise 0.
    registrations: AtomicU64,
}

impl Contig {
    /// Maps at least `len` bytes of the best available source.
    ///
    /// # Errors
    /// As [`Options::build`].
    pub fn new(len: Bytes) -> Result<Self, Error> {
        Self::options().build(len)
    }

    /// Returns the default options.
    pub fn options() -> Options {
        Options::default()
    }

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
            nodes: OnceLock::new(),
            registrations: AtomicU64::new(0),
        }
    }

    /// Returns the mapping, which forked children and core dumps lack.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns the file of the pages ([`Options::mappable`]).
    #[must_use]
    pub fn file(&self) -> Option<&Arc<MemFile>> {
        self.mapping.file()
    }

    /// Returns the mapped bytes.
    #[must_use]
    pub fn len(&self) -> Bytes {
        self.mapping.len()
    }

    /// Returns the bytes mapped beyond those requested.
    #[must_use]
    pub fn spare(&self) -> Bytes {
        self.len().saturating_sub(self.asked)
    }

    /// Returns the source.
    #[must_use]
    pub fn source(&self) -> Source {
        match self.parts[..] {
            [part] => part.source,
            _ => Source::Divided,
        }
    }

    /// Returns the parts in order of position.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the proved runs in order of position. If frames are hidden, no run exceeds one huge
    /// page.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the evidence for the runs.
    #[must_use]
    pub fn proof(&self) -> Proof {
        self.proof
    }

    /// Returns the longest proved run in base pages, at least one.
    #[must_use]
    pub fn longest_run(&self) -> Pages {
        runs::longest(&self.runs)
    }

    /// Returns the place of the byte at `addr`, or `None` outside the mapping. O(log runs).
    #[must_use]
    pub fn query(&self, addr: usize) -> Option<Location> {
        let offset = addr.checked_sub(self.mapping.addr())?;
        certificate::locate(&self.runs, self.len(), Bytes::new(offset as u64))
    }

    /// Returns the runs, their evidence and their nodes, at the cost of [`Contig::nodes`].
    #[must_use]
    pub fn certificate(&self) -> Certificate {
        let (source, held_by, len) = (self.source(), self.held_by(), self.len());
        let (runs, nodes) = (self.runs.clone(), self.nodes().unwrap_or_default());
        Certificate { source, held_by, len, runs, proof: self.proof, nodes }
    }

    /// Returns what keeps the pages in their frames.
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

    /// Returns why a long-term pin failed or is impossible.
    #[must_use]
    pub fn why_not_pinned(&self) -> Option<&str> {
        self.why_not_pinned.as_deref()
    }

    /// Returns why no better source or longer run was found.
    #[must_use]
    pub fn why_not_better(&self) -> &[String] {
        &self.why_not_better
    }

    /// Returns the pages that left their frames, or only missing pages if frames are hidden.
    ///
    /// # Errors
    /// If `/proc/self/pagemap` cannot be read, or in a forked child.
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
    fn page(self) -> PageSize {
        match self {
            Source::Hugetlb(size) => size,
            Source::Thp => transparent_huge_page().unwrap_or(page_size()),
            Source::Blocks => smallest_hugetlb().unwrap_or(page_size()),
            Source::Plain | Source::DmaHeap | Source::Divided => page_size(),
        }
    }

    /// Returns the unit to which lengths round up.
    fn rounds_to(self) -> PageSize {
        rounds_to(self, self.page())
    }

    /// Returns the length within which pages are contiguous by construction.
    fn grain(self) -> PageSize {
        match self {
            Source::Thp => page_size(),
            other => other.page(),
        }
    }
}

fn smallest_hugetlb() -> Option<PageSize> {
    pool_sizes().pop()
}

fn pool_sizes() -> Vec<PageSize> {
    large(sizes(), transparent_huge_page().ok())
}

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

#[doc(no_inline)]
pub use glebe_os::{error::OsError, extent, page_size, units};

/// Items for the crate `glebe` only.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod internal {
    pub use crate::blocks::glance::{glance, Glance};
    pub use crate::bricks::{bricks, cut, join, punch, recast};
    pub use crate::certificate::locate;
    pub use crate::explain::explain_on;
    pub use crate::frame_uses::FrameUses;
    pub use crate::nodes::joined_nodes;
    pub use crate::options::{chosen_for_runs, options_for_more};
    pub use crate::pool::Keeping;
    pub use crate::registered::{begin_registration, end_registration};
    pub use crate::resident::{moved_into, repin, return_unit, verify_runs};
    pub use crate::runs::push_run;
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
