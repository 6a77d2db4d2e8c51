//! [`Error`] says why pages cannot be mapped side by side.

use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::units::{Bytes, Pages};

/// The reason for a failed call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A view or space of no pages.
    #[error("no pages were asked for; the least is one")]
    Empty,
    /// A file whose page size differs from the space's.
    #[error("the file has pages of {given}, the space pages of {page}")]
    OtherPage {
        /// Page size of the file.
        given: Bytes,
        /// Page size of the space.
        page: Bytes,
    },
    /// An extent that is not whole pages of its file.
    #[error("pages {given} are not whole pages of the file, each of {}", .grain.get())]
    Unaligned {
        /// The extent, in base pages.
        given: Extent,
        /// Base pages in a page of the file.
        grain: Pages,
    },
    /// An extent beyond the end of the file.
    #[error("pages {given} of a file of {}", .len.get())]
    BeyondEnd {
        /// The extent, in base pages.
        given: Extent,
        /// Length of the file in base pages.
        len: Pages,
    },
    /// More mappings than a space's views, or all views, may have.
    #[error("a view of {asked} mappings; views have {used} of at most {limit}, by {of}")]
    ViewLimit {
        /// Mappings that the view needs.
        asked: u64,
        /// Mappings in use.
        used: u64,
        /// The limit.
        limit: u64,
        /// The source of the limit.
        of: &'static str,
    },
    /// More mappings than the process may have.
    #[error(
        "a view of {asked} mappings; the process has {used} of at most {limit} \
         (vm.max_map_count): {why}"
    )]
    MapCount {
        /// Mappings that the view needs.
        asked: u64,
        /// Mappings of the process.
        used: u64,
        /// The limit.
        limit: u64,
        /// The kernel's error.
        why: OsError,
    },
    /// No free range of addresses is long enough.
    #[error("no {asked} of addresses side by side; the longest run free has {largest} of {all}")]
    NoAddresses {
        /// Bytes asked for.
        asked: Bytes,
        /// The longest free range.
        largest: Bytes,
        /// All addresses of the space.
        all: Bytes,
    },
    /// Bytes beyond the end of a view.
    #[error("{len} bytes at {:#x} of a view of {all}", .offset.get())]
    BeyondView {
        /// The offset.
        offset: Bytes,
        /// Bytes asked for.
        len: usize,
        /// Bytes in the view.
        all: Bytes,
    },
    /// A page that another owner took out of the file.
    #[error("the page at {:#x} of the view is gone from its file", .offset.get())]
    Lost {
        /// The first byte that is missing.
        offset: Bytes,
    },
    /// This is a forked child.
    #[error("this process was forked from the views' owner; they stayed there")]
    Forked,
    /// The kernel refused a call.
    #[error(transparent)]
    Os(#[from] OsError),
}
