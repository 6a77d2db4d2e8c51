//! [`Error`]: why contiguous memory cannot be had, with the values.

use std::path::PathBuf;

use crate::error::OsError;
use crate::sys::numa::Node;
use crate::units::{Bytes, PageSize};

/// Why contiguous memory cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No bytes were asked for.
    #[error("a length of 0 bytes was asked for; at least 1 is needed")]
    ZeroLength,
    /// More than the machine has to give.
    #[error("{asked} asked for, {available} available in this machine")]
    TooLarge {
        /// What was asked for.
        asked: Bytes,
        /// What could be had without swapping or killing.
        available: Bytes,
    },
    /// A cgroup would be filled, and somebody in it killed.
    #[error("{asked} more asked for, but {} is {limit} and {usage} of it are used", path.display())]
    CgroupLimit {
        /// The file that holds the limit.
        path: PathBuf,
        /// The limit.
        limit: Bytes,
        /// What is used of it, less what the kernel drops first.
        usage: Bytes,
        /// What was to be added.
        asked: Bytes,
    },
    /// A hugetlb pool has too few pages and cannot be grown enough.
    #[error("{wanted} pages of {size} wanted, {got} to be had in {}; {how_to}", path.display())]
    PoolShort {
        /// The size of a page.
        size: Bytes,
        /// Pages needed.
        wanted: u64,
        /// Pages that could be had.
        got: u64,
        /// The file that sets the number of pages.
        path: PathBuf,
        /// What to do about it.
        how_to: String,
    },
    /// The machine has no hugetlb pool of this size.
    #[error(
        "no hugetlb pages of {}; sizes of this machine: {}",
        size.bytes(),
        list(listed.iter().map(|size| size.bytes()))
    )]
    NoSuchSize {
        /// The size asked for.
        size: PageSize,
        /// The sizes there are.
        listed: Vec<PageSize>,
    },
    /// Transparent huge pages were asked for and the kernel gave none.
    #[error(
        "{huge} of {len} are in transparent huge pages; memory is too fragmented or cgroup \
        and system settings forbid them"
    )]
    NotHuge {
        /// Bytes in huge pages.
        huge: Bytes,
        /// Bytes mapped.
        len: Bytes,
    },
    /// The memory could be had, but not as contiguous as required.
    #[error(
        "a run of {wanted} is required, the longest that was had and proved is {longest}{}",
        after(tried.as_deref())
    )]
    NotContiguous {
        /// The run required.
        wanted: Bytes,
        /// The longest that was had.
        longest: Bytes,
        /// What was tried for a longer one, in words.
        tried: Option<String>,
    },
    /// The address space has no room at such an alignment.
    #[error("no room in the address space for {len} at a multiple of {align}: {why}")]
    NoAddresses {
        /// What was asked for.
        len: Bytes,
        /// The alignment asked for.
        align: Bytes,
        /// What the kernel said.
        why: OsError,
    },
    /// An alignment that is no power of two, or that the address asked for has not.
    #[error("an alignment of {align}: a power of two is needed, and an address that has it")]
    BadAlign {
        /// The alignment asked for.
        align: Bytes,
    },
    /// The machine has no such NUMA node.
    #[error("{node} is not online; those that are: {}", list(online.iter().map(|node| node.0)))]
    NoSuchNode {
        /// The node asked for.
        node: Node,
        /// The nodes there are.
        online: Vec<Node>,
    },
    /// A dma-heap was asked for by no path.
    #[error(
        "no dma-heap named; those of this machine: {}",
        list(heaps.iter().map(|heap| heap.display()))
    )]
    NoHeap {
        /// The heaps there are.
        heaps: Vec<PathBuf>,
    },
    /// The hugetlb pool must be changed for this, and the caller may not.
    #[error("the hugetlb pool of {size} pages cannot be changed by this process")]
    PoolFixed {
        /// The size of a page.
        size: Bytes,
    },
    /// The kernel refused a call.
    #[error(transparent)]
    Os(#[from] OsError),
    /// Memory blocks cannot be taken off line here.
    #[error("memory blocks cannot be taken off line: {why}")]
    NoBlocks {
        /// What stands in the way.
        why: String,
    },
    /// No memory blocks side by side that can be evacuated are long enough.
    #[error(
        "{wanted} wanted in one run; of {all} memory blocks of {size}, {fixed} hold memory that \
        cannot be moved and {pool} pages of hugetlb pools; the longest stretch of others is \
        {longest}"
    )]
    BlocksShort {
        /// What was asked for.
        wanted: Bytes,
        /// The longest stretch that could be evacuated.
        longest: Bytes,
        /// The length of a block.
        size: Bytes,
        /// All blocks.
        all: u64,
        /// Blocks that hold something that cannot be moved.
        fixed: u64,
        /// Blocks that hold pages of a hugetlb pool: somebody counts on their place.
        pool: u64,
    },
    /// Evacuating would leave the machine too little memory.
    #[error(
        "{taken} of memory blocks would be taken, {occupied} of them in use; {available} are \
        available, and {margin} must be left"
    )]
    NoRoomToEvacuate {
        /// The blocks to take.
        taken: Bytes,
        /// What is in use in them.
        occupied: Bytes,
        /// What the machine has available.
        available: Bytes,
        /// What must be left of that.
        margin: Bytes,
    },
    /// Too much memory would be movable, which the kernel cannot use for itself.
    #[error(
        "{more} more would be movable memory, {movable} are already, and {limit} may be: the \
        kernel itself needs the rest"
    )]
    TooMuchMovable {
        /// What was to become movable.
        more: Bytes,
        /// What is movable already.
        movable: Bytes,
        /// What may be.
        limit: Bytes,
    },
    /// Memory blocks could not be emptied, although nothing in them showed why.
    #[error("memory blocks {} could not be emptied, the last: {why}", list(tried.iter()))]
    BlocksStuck {
        /// Those that were tried.
        tried: Vec<u64>,
        /// What the kernel said of the last.
        why: OsError,
    },
    /// Others took pages of evacuated blocks each time, before they were had.
    #[error("memory blocks were evacuated {attempts} times, and others took pages of them first")]
    BlocksTaken {
        /// How often.
        attempts: u32,
    },
    /// A memory block stays as it is for now.
    #[error("memory block {block} {why}")]
    BlockStays {
        /// The block's number.
        block: u64,
        /// What holds it.
        why: String,
    },
    /// A long-term pin is required and cannot be had.
    #[error("a long-term pin is required: {why}")]
    NotPinned {
        /// What stands in the way.
        why: String,
    },
}

/// What was tried, behind what came of it.
fn after(tried: Option<&str>) -> String {
    tried.map_or(String::new(), |tried| format!("; {tried}"))
}

/// Things side by side; "none" if there are none.
fn list(things: impl Iterator<Item = impl std::fmt::Display>) -> String {
    let words: Vec<String> = things.map(|thing| thing.to_string()).collect();
    if words.is_empty() {
        return "none".to_owned();
    }
    words.join(", ")
}
