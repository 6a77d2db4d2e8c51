//! [`Error`]: why memory cannot be volatile, or not be read or written as it is, with the values.

use std::time::Duration;

use crate::error::OsError;
use crate::sys::vma::Refusal;
use crate::units::{Bytes, Pages};

/// Why a call on volatile memory failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A range that does not begin and end where its pages, or granules, do.
    #[error("{:#x} is not a multiple of {granule}", offset.get())]
    Unaligned {
        /// The offset, or the address, of the end at fault.
        offset: Bytes,
        /// What it must be a multiple of.
        granule: Bytes,
    },
    /// A range of no bytes, or one that ends before it starts.
    #[error("a range of no bytes")]
    Empty,
    /// A range that ends beyond the region, or the address space.
    #[error("a range ends at {:#x}; the limit is {:#x}", end.get(), limit.get())]
    Beyond {
        /// Where it ends; the greatest number on overflow.
        end: Bytes,
        /// How far it may go.
        limit: Bytes,
    },
    /// Some of it is marked volatile, where only what is not may be used.
    #[error("the page at {:#x} is marked volatile", offset.get())]
    Marked {
        /// The first such page.
        offset: Bytes,
    },
    /// Some of it is lost.
    #[error("the page at {:#x} was purged", offset.get())]
    Purged {
        /// The first such page.
        offset: Bytes,
    },
    /// Memory that cannot be volatile.
    #[error(transparent)]
    Unsuitable(Refusal),
    /// Arming more ranges could use up the mappings that the process may have.
    #[error("{armed} ranges are armed, of {limit} that may be")]
    MapBudget {
        /// Ranges armed now.
        armed: u64,
        /// The limit: a share of `vm.max_map_count`.
        limit: u64,
    },
    /// A cap of no bytes.
    #[error("a cap of 0 bytes; without a cap nothing is dropped")]
    ZeroCap,
    /// This kernel loses pages that were written.
    #[error("the self-test failed on Linux {release}: {what}; needed is {needed} or later")]
    SelfTest {
        /// The kernel's release.
        release: String,
        /// What was seen.
        what: String,
        /// The first release that is known to be right.
        needed: &'static str,
    },
    /// A page is there but cannot be made safe, as one whose hardware failed.
    #[error("the page at {:#x} and {pages} from it can be neither kept nor taken", offset.get())]
    Stuck {
        /// Where the page begins.
        offset: Bytes,
        /// How many were tried at once.
        pages: Pages,
    },
    /// Another handler of SIGBUS was installed after glebe's, and is asked first.
    #[error(
        "another SIGBUS handler was installed over glebe's: whether a touch of a lost page would \
        be refilled is for that one to say"
    )]
    HandlerCovered,
    /// The process was made by clone(2) and not by the C library's fork: no lock can be taken.
    #[error("this process was cloned without the C library: it can unmark, but not mark or drop")]
    Cloned,
    /// An option of shared memory that cannot be.
    #[error("{what}: {value}; the limit is {limit}")]
    BadOption {
        /// What is wrong with it.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// The least or the most that can be.
        limit: u64,
    },
    /// A file that cannot hold shared volatile memory.
    #[error("not a file that can be shared and purged: {0}")]
    UnsuitableFile(String),
    /// A file that holds no shared volatile memory, or that of another version or machine.
    #[error("not a file of shared volatile memory: {what} is {value:#x}, not {expected:#x}")]
    BadFile {
        /// Which part of its header.
        what: &'static str,
        /// What stands there.
        value: u64,
        /// What should, or its limit.
        expected: u64,
    },
    /// The file was cut, or could not give a page of what it says it has; what was there is gone.
    #[error("the file has {len} or lost a page; {needed} are needed")]
    Truncated {
        /// Its length now.
        len: Bytes,
        /// The length that it had.
        needed: Bytes,
    },
    /// As many processes use the file as can.
    #[error("{holders} processes use the file, as many as can")]
    NoHolderLeft {
        /// How many.
        holders: u32,
    },
    /// Another process joins or purges at this time; some may be stopped at it.
    #[error("{what} is under way in another process or thread; waited for {waited:?}")]
    Busy {
        /// What it does.
        what: &'static str,
        /// For how long this was waited for.
        waited: Duration,
    },
    /// A granule is being purged by a process that lives, and takes long.
    #[error("the granule at {:#x} is being purged; waited for {waited:?}", offset.get())]
    PurgeUnderWay {
        /// Where it begins.
        offset: Bytes,
        /// For how long this was waited for.
        waited: Duration,
    },
    /// A granule is pinned as often as can be counted.
    #[error("the granule at {:#x} has {limit} pins of this process, the most", offset.get())]
    PinsExhausted {
        /// Where it begins.
        offset: Bytes,
        /// The most.
        limit: u64,
    },
    /// More would be pinned than the file's creator allows a process.
    #[error("{pinned} granules are pinned by this process; the file's quota is {quota}")]
    Quota {
        /// Granules pinned before the call.
        pinned: u64,
        /// How many may be.
        quota: u64,
    },
    /// A pin that was made before this process was forked, and is its parent's.
    #[error("the pin is of the process that this one was forked from")]
    Forked,
    /// The kernel refused a call.
    #[error(transparent)]
    Os(#[from] OsError),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unknown(error) => Self::Os(error),
            refusal => Self::Unsuitable(refusal),
        }
    }
}
