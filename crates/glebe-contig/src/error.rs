//! [`Error`] says why a call was refused.

use std::path::PathBuf;

use glebe_os::error::OsError;
use glebe_os::internal::sys::machine::numa::Node;
use glebe_os::units::{Bytes, PageSize};

/// The reasons for a refusal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A length of 0 was requested.
    #[error("a length of 0 bytes was asked for; at least 1 is needed")]
    ZeroLength,
    /// The machine has too little memory.
    #[error("{asked} asked for, {available} available{}", after(elsewhere.as_deref()))]
    TooLarge {
        /// Requested bytes.
        asked: Bytes,
        /// Bytes available without swapping or killing; on the requested nodes, if any.
        available: Bytes,
        /// Free memory of each NUMA node, if nodes were requested.
        elsewhere: Option<String>,
    },
    /// A cgroup would exceed its limit.
    #[error("{asked} more asked for, but {} is {limit} and {usage} of it are used", path.display())]
    CgroupLimit {
        /// File of the limit.
        path: PathBuf,
        /// Limit in bytes.
        limit: Bytes,
        /// Bytes used, without droppable page cache.
        usage: Bytes,
        /// Bytes to add.
        asked: Bytes,
    },
    /// A hugetlb pool has too few pages and cannot grow enough.
    #[error("{wanted} pages of {size} wanted, {got} to be had in {}; {how_to}", path.display())]
    PoolShort {
        /// Bytes of a page.
        size: Bytes,
        /// Pages needed.
        wanted: u64,
        /// Pages available.
        got: u64,
        /// File of the pool.
        path: PathBuf,
        /// Remedy.
        how_to: String,
    },
    /// The machine has no hugetlb pool of this size.
    #[error(
        "no hugetlb pages of {}; sizes of this machine: {}",
        size.bytes(),
        list(listed.iter().map(|size| size.bytes()))
    )]
    NoSuchSize {
        /// Requested size.
        size: PageSize,
        /// Existing sizes.
        listed: Vec<PageSize>,
    },
    /// The kernel gave no transparent huge pages.
    #[error(
        "{huge} of {len} are in transparent huge pages; memory is too fragmented or cgroup \
        and system settings forbid them{}", after(elsewhere.as_deref())
    )]
    NotHuge {
        /// Bytes in huge pages.
        huge: Bytes,
        /// Bytes mapped.
        len: Bytes,
        /// Free memory of each NUMA node, if nodes were requested.
        elsewhere: Option<String>,
    },
    /// No run is as long as required.
    #[error(
        "a run of {wanted} is required, the longest that was had and proved is {longest}{}",
        after(tried.as_deref())
    )]
    NotContiguous {
        /// Required bytes.
        wanted: Bytes,
        /// Longest run in bytes.
        longest: Bytes,
        /// Steps of the search.
        tried: Option<String>,
    },
    /// The address space has no room at this alignment.
    #[error("no room in the address space for {len} at a multiple of {align}: {why}")]
    NoAddresses {
        /// Requested bytes.
        len: Bytes,
        /// Requested alignment.
        align: Bytes,
        /// The kernel's error.
        why: OsError,
    },
    /// The alignment is no power of two, or the address is unaligned.
    #[error("an alignment of {align}: a power of two is needed, and an address that has it")]
    BadAlign {
        /// Requested alignment.
        align: Bytes,
    },
    /// The NUMA node is not online.
    #[error("{node} is not online; those that are: {}", list(online.iter().map(|node| node.0)))]
    NoSuchNode {
        /// Requested node.
        node: Node,
        /// Online nodes.
        online: Vec<Node>,
    },
    /// The NUMA node has no memory.
    #[error(
        "{node} has no memory; those that have some: {}",
        list(with_memory.iter().map(|node| node.0))
    )]
    EmptyNode {
        /// Requested node.
        node: Node,
        /// Nodes with memory.
        with_memory: Vec<Node>,
    },
    /// An empty set of NUMA nodes was requested.
    #[error(
        "a set of no NUMA node was asked for; at least one is needed of those with memory: {}",
        list(with_memory.iter().map(|node| node.0))
    )]
    NoNodes {
        /// Nodes with memory.
        with_memory: Vec<Node>,
    },
    /// A dma-heap was requested without a path.
    #[error(
        "no dma-heap named; those of this machine: {}",
        list(heaps.iter().map(|heap| heap.display()))
    )]
    NoHeap {
        /// Existing heaps.
        heaps: Vec<PathBuf>,
    },
    /// The caller may not change the hugetlb pool.
    #[error("the hugetlb pool of {size} pages cannot be changed by this process")]
    PoolFixed {
        /// Bytes of a page.
        size: Bytes,
    },
    /// The kernel refused a call.
    #[error(transparent)]
    Os(#[from] OsError),
    /// Memory blocks cannot be taken off line.
    #[error("memory blocks cannot be taken off line: {why}")]
    NoBlocks {
        /// Reason.
        why: String,
    },
    /// No stretch of blocks that can be evacuated is long enough.
    #[error(
        "{wanted} wanted in one run; of {all} memory blocks of {size}, {fixed} hold memory that \
        cannot be moved and {pool} pages of hugetlb pools; the longest stretch of others is \
        {longest}"
    )]
    BlocksShort {
        /// Requested bytes.
        wanted: Bytes,
        /// Longest stretch that can be evacuated, in bytes.
        longest: Bytes,
        /// Bytes of a block.
        size: Bytes,
        /// All blocks.
        all: u64,
        /// Blocks with immovable pages.
        fixed: u64,
        /// Blocks with hugetlb pages.
        pool: u64,
    },
    /// Evacuating would leave the machine too little memory.
    #[error(
        "{taken} of memory blocks would be taken, {occupied} of them in use; {available} are \
        available, and {margin} must be left"
    )]
    NoRoomToEvacuate {
        /// Bytes of the blocks.
        taken: Bytes,
        /// Bytes in use in them.
        occupied: Bytes,
        /// Available bytes.
        available: Bytes,
        /// Bytes that must stay available.
        margin: Bytes,
    },
    /// Too much memory would be movable.
    #[error(
        "{more} more would be movable memory, {movable} are already, and {limit} may be: the \
        kernel itself needs the rest"
    )]
    TooMuchMovable {
        /// Additional bytes.
        more: Bytes,
        /// Movable bytes so far.
        movable: Bytes,
        /// Limit in bytes.
        limit: Bytes,
    },
    /// The kernel could not empty memory blocks that looked movable.
    #[error("memory blocks {} could not be emptied, the last: {why}", list(tried.iter()))]
    BlocksStuck {
        /// Blocks tried.
        tried: Vec<u64>,
        /// The kernel's error for the last.
        why: OsError,
    },
    /// Other programs took evacuated pages in each attempt.
    #[error("memory blocks were evacuated {attempts} times, and others took pages of them first")]
    BlocksTaken {
        /// Number of attempts.
        attempts: u32,
    },
    /// A memory block cannot be given back now.
    #[error("memory block {block} {why}")]
    BlockStays {
        /// Number of the block.
        block: u64,
        /// Reason.
        why: String,
    },
    /// A required long-term pin is impossible.
    #[error("a long-term pin is required: {why}")]
    NotPinned {
        /// Reason.
        why: String,
    },
}

impl Error {
    pub(super) fn too_large(asked: Bytes, available: Bytes) -> Self {
        Self::TooLarge { asked, available, elsewhere: None }
    }
}

fn after(more: Option<&str>) -> String {
    more.map_or(String::new(), |more| format!("; {more}"))
}

fn list(things: impl Iterator<Item = impl std::fmt::Display>) -> String {
    let words: Vec<String> = things.map(|thing| thing.to_string()).collect();
    if words.is_empty() {
        return "none".to_owned();
    }
    words.join(", ")
}
