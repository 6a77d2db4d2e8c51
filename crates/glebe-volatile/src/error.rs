//! Failures of calls.

use std::time::Duration;

use glebe_os::error::OsError;
use glebe_os::internal::sys::memory::vma::Refusal;
use glebe_os::units::{Bytes, Pages};

/// A failure of a call on volatile memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The start or end of a range is unaligned.
    #[error("{:#x} is not a multiple of {granule}", offset.get())]
    Unaligned {
        /// Unaligned offset, address or length.
        offset: Bytes,
        /// Required alignment.
        granule: Bytes,
    },
    /// The range has no bytes or no whole page.
    #[error("a range of no bytes")]
    Empty,
    /// The range ends beyond the region or the address space.
    #[error("a range ends at {:#x}; the limit is {:#x}", end.get(), limit.get())]
    Beyond {
        /// End of the range; the maximum on overflow.
        end: Bytes,
        /// Limit.
        limit: Bytes,
    },
    /// A page is marked.
    #[error("the page at {:#x} is marked volatile", offset.get())]
    Marked {
        /// Offset of the first marked page.
        offset: Bytes,
    },
    /// A page is lost.
    #[error("the page at {:#x} was purged", offset.get())]
    Purged {
        /// Its offset.
        offset: Bytes,
    },
    /// The memory cannot be volatile.
    #[error(transparent)]
    Unsuitable(Refusal),
    /// Armed ranges could use up the process's mappings.
    #[error("{armed} ranges are armed, of {limit} that may be")]
    MapBudget {
        /// Ranges armed now.
        armed: u64,
        /// Most ranges: a share of `vm.max_map_count`.
        limit: u64,
    },
    /// A cap is 0 bytes.
    #[error("a cap of 0 bytes; without a cap nothing is dropped")]
    ZeroCap,
    /// The kernel may purge written pages.
    #[error("the self-test failed on Linux {release}: {what}; needed is {needed} or later")]
    SelfTest {
        /// Kernel release.
        release: String,
        /// Reason.
        what: String,
        /// First release that works.
        needed: &'static str,
    },
    /// The kernel neither keeps nor frees a present page.
    #[error("the page at {:#x} and {pages} from it can be neither kept nor taken", offset.get())]
    Stuck {
        /// Its offset.
        offset: Bytes,
        /// Pages tried at once.
        pages: Pages,
    },
    /// Another SIGBUS handler runs before glebe's.
    #[error(
        "another SIGBUS handler was installed over glebe's: whether a touch of a lost page would \
        be refilled is for that one to say"
    )]
    HandlerCovered,
    /// clone(2) made the process without the C library, so no lock can be taken.
    #[error("this process was cloned without the C library: it can unmark, but not mark or drop")]
    Cloned,
    /// An option of shared memory is out of range.
    #[error("{what}: {value}; the limit is {limit}")]
    BadOption {
        /// Reason.
        what: &'static str,
        /// Value requested.
        value: u64,
        /// Bound.
        limit: u64,
    },
    /// The file cannot hold shared volatile memory.
    #[error("not a file that can be shared and purged: {0}")]
    UnsuitableFile(String),
    /// The file holds no shared volatile memory of this version and machine.
    #[error("not a file of shared volatile memory: {what} is {value:#x}, not {expected:#x}")]
    BadFile {
        /// Part of the header.
        what: &'static str,
        /// Value found.
        value: u64,
        /// Expected value or limit.
        expected: u64,
    },
    /// The file was cut or could not supply a page.
    #[error("the file has {len} or lost a page; {needed} are needed")]
    Truncated {
        /// Length now.
        len: Bytes,
        /// Required length.
        needed: Bytes,
    },
    /// The file admits no further holder.
    #[error("{holders} processes use the file, as many as can")]
    NoHolderLeft {
        /// Most holders.
        holders: u32,
    },
    /// Another process or thread joins or purges.
    #[error("{what} is under way in another process or thread; waited for {waited:?}")]
    Busy {
        /// Operation.
        what: &'static str,
        /// Time waited.
        waited: Duration,
    },
    /// A live process takes too long to purge a granule.
    #[error("the granule at {:#x} is being purged; waited for {waited:?}", offset.get())]
    PurgeUnderWay {
        /// Offset of the granule.
        offset: Bytes,
        /// Time waited.
        waited: Duration,
    },
    /// This process's pin counter of a granule is full.
    #[error("the granule at {:#x} has {limit} pins of this process, the most", offset.get())]
    PinsExhausted {
        /// Offset of the granule.
        offset: Bytes,
        /// Most pins.
        limit: u64,
    },
    /// The call would exceed the pin quota.
    #[error("{pinned} granules are pinned by this process; the file's quota is {quota}")]
    Quota {
        /// Granules already pinned.
        pinned: u64,
        /// Most granules pinned at once.
        quota: u64,
    },
    /// The pin belongs to the parent process.
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
