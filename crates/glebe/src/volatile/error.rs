//! [`Error`]: why memory cannot be volatile, or not be read or written as it is, with the values.

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
