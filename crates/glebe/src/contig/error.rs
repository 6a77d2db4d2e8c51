//! [`Error`]: why contiguous memory cannot be had, with the values.

use std::path::PathBuf;

use crate::error::OsError;
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
    #[error("no hugetlb pages of {}; sizes of this machine: {listed:?}", size.bytes())]
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
    #[error("a run of {wanted} is required, the longest to be had and proved is {longest}")]
    NotContiguous {
        /// The run required.
        wanted: Bytes,
        /// The longest that could be had.
        longest: Bytes,
    },
    /// The kernel refused a call.
    #[error(transparent)]
    Os(#[from] OsError),
}
