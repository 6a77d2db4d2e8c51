//! [`Error`]: why pages cannot be mapped side by side, with the values.

use crate::error::OsError;
use crate::extent::Extent;
use crate::units::{Bytes, Pages};

/// A call that was refused; nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A view of no pages, or a space of none.
    #[error("no pages were asked for; the least is one")]
    Empty,
    /// Pages of another size than the space has.
    #[error("the file has pages of {given}, the space pages of {page}")]
    OtherPage {
        /// The page of the file.
        given: Bytes,
        /// The page of the space.
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
    /// An extent that the file does not have.
    #[error("pages {given} of a file of {}", .len.get())]
    BeyondEnd {
        /// The extent, in base pages.
        given: Extent,
        /// Base pages in the file now.
        len: Pages,
    },
    /// More mappings than views may have.
    #[error("a view of {asked} mappings; views have {used} of at most {limit}, by {of}")]
    ViewLimit {
        /// Mappings that the view needs.
        asked: u64,
        /// Mappings that views have now.
        used: u64,
        /// The most that they may have.
        limit: u64,
        /// What sets the limit.
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
        /// Mappings that the process has, those of the view left out.
        used: u64,
        /// The most that it may have.
        limit: u64,
        /// What the kernel said.
        why: OsError,
    },
    /// No addresses left that are long enough.
    #[error("no {asked} of addresses side by side; the longest run free has {largest} of {all}")]
    NoAddresses {
        /// Bytes asked for.
        asked: Bytes,
        /// The longest free run.
        largest: Bytes,
        /// All addresses of the space.
        all: Bytes,
    },
    /// Bytes beyond the end of a view.
    #[error("{len} bytes at {:#x} of a view of {all}", .offset.get())]
    BeyondView {
        /// The offset given.
        offset: Bytes,
        /// Bytes asked for.
        len: usize,
        /// Bytes in the view.
        all: Bytes,
    },
    /// A page that others took out of the file.
    #[error("the page at {:#x} of the view is gone from its file", .offset.get())]
    Lost {
        /// The first byte that could not be had.
        offset: Bytes,
    },
    /// The caller is a forked child: views stayed with its parent.
    #[error("this process was forked from the views' owner; they stayed there")]
    Forked,
    /// The kernel refused a call.
    #[error(transparent)]
    Os(#[from] OsError),
}
