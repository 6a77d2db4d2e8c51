//! [`ReserveError`] is the reason why a call failed.

use crate::contig;
use glebe_os::error::OsError;
use glebe_os::units::{Bytes, Pages};

/// [`ReserveError`] is the reason why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The block has no pages.
    #[error("a block of 0 pages was asked for; the least is 1")]
    ZeroPages,
    /// The alignment is not a power of two.
    #[error("alignment of {} pages is not a power of two", .align.get())]
    BadAlign {
        /// Alignment requested.
        align: Pages,
    },
    /// No free run is long enough.
    #[error("no run of {} pages is free; the longest has {}", .asked.get(), .largest.get())]
    NoRun {
        /// Pages requested.
        asked: Pages,
        /// Longest free run.
        largest: Pages,
    },
    /// A free run is long enough, but has no place of this alignment.
    #[error(
        "no {} free pages in a run start at a multiple of {} pages; the longest run, of whatever \
         alignment, has {}", .asked.get(), .align.get(), .largest.get()
    )]
    NoAlignedRun {
        /// Pages requested.
        asked: Pages,
        /// Alignment requested.
        align: Pages,
        /// Longest free run.
        largest: Pages,
    },
    /// Tenants were copying into every run that was tried. Possible only with
    /// [`Writers::Counted`](super::Writers::Counted).
    #[error("tenants are copying into every run that fits, and the request would not wait")]
    WouldWait,
    /// The caller is a forked child.
    #[error("this process was forked from the reserve's owner; the reserve stayed there")]
    Forked,
    /// The buffer is not exactly one page.
    #[error("a buffer of {given} bytes where a page is exactly {page}")]
    BadPageLen {
        /// Length in bytes.
        given: usize,
        /// The page size.
        page: Bytes,
    },
    /// The length is 0, or not a whole number of granules or of the source's pages.
    #[error("a reserve is a whole number of granules of {granule}, at least one; given {given}")]
    BadLen {
        /// Length given.
        given: Bytes,
        /// A granule, or the source's page if larger.
        granule: Bytes,
    },
    /// The reserve was built with a fixed length, or a device has its addresses.
    #[error("the reserve can neither grow nor shrink: {why}")]
    FixedLen {
        /// The reason.
        why: &'static str,
    },
    /// The memory is not made of bricks.
    #[error("the reserve has no bricks: build it with contig::Options::bricks()")]
    NoBricks,
    /// The memory is made of bricks, so the reserve may unmap pages.
    #[error("a reserve of bricks cannot be registered with a device: it may unmap its pages")]
    Bricks,
    /// The room is too small.
    #[error(
        "{asked} more asked for; {left} are left in whole pages of {unit}, of a room of {room}"
    )]
    NoRoom {
        /// Bytes requested.
        asked: Bytes,
        /// Bytes that still fit.
        left: Bytes,
        /// A granule.
        unit: Bytes,
        /// Greatest length.
        room: Bytes,
    },
    /// The reserve cannot give back this much now.
    #[error(
        "{asked} asked back; {free} can be given in whole pages of {unit}: the rest is held by \
         blocks and promises, or is the last of the reserve"
    )]
    NotGiven {
        /// Bytes requested.
        asked: Bytes,
        /// Bytes that could be given.
        free: Bytes,
        /// A granule, or the source's page if larger.
        unit: Bytes,
    },
    /// No directory for the statistics' socket exists.
    #[error(
        "no directory for the socket of statistics: XDG_RUNTIME_DIR names none that user {user} \
         owns, nor is there /run/user/{user}; name one"
    )]
    NoRuntimeDir {
        /// Effective user.
        user: u32,
    },
    /// The pool of compressed pages could not be made.
    #[error(transparent)]
    Packed(#[from] crate::zpool::Error),
    /// The memory could not be allocated.
    #[error(transparent)]
    Contig(#[from] contig::Error),
    /// The kernel refused a call.
    #[error(transparent)]
    Os(#[from] OsError),
}
