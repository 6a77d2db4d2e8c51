//! What a reserve refuses, and why.

use crate::contig;
use crate::error::OsError;
use crate::units::{Bytes, Pages};

/// A call on a reserve that was refused; nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A block of no pages.
    #[error("a block of 0 pages was asked for; the least is 1")]
    ZeroPages,
    /// An alignment that is not a power of two.
    #[error("alignment of {} pages is not a power of two", .align.get())]
    BadAlign {
        /// The alignment asked for.
        align: Pages,
    },
    /// No free run is long enough.
    #[error("no run of {} pages is free; the longest has {}", .asked.get(), .largest.get())]
    NoRun {
        /// Pages asked for.
        asked: Pages,
        /// The longest run free now.
        largest: Pages,
    },
    /// A free run is long enough, but none where the alignment asked for puts it.
    #[error(
        "no {} free pages in a run start at a multiple of {} pages; the longest run, of whatever \
         alignment, has {}", .asked.get(), .align.get(), .largest.get()
    )]
    NoAlignedRun {
        /// Pages asked for.
        asked: Pages,
        /// The alignment asked for.
        align: Pages,
        /// The longest run free now.
        largest: Pages,
    },
    /// A tenant is copying into every run that fits, and the request would not wait. Only where
    /// restartable sequences are missing.
    #[error("tenants are copying into every run that fits, and the request would not wait")]
    WouldWait,
    /// The caller is a forked child: the reserve stayed with its parent.
    #[error("this process was forked from the reserve's owner; the reserve stayed there")]
    Forked,
    /// A buffer that is not exactly one page.
    #[error("a buffer of {given} bytes where a page is exactly {page}")]
    BadPageLen {
        /// Bytes given.
        given: usize,
        /// The page size.
        page: Bytes,
    },
    /// Memory too small, or not a whole number of granules.
    #[error("a reserve is a whole number of granules of {granule}, at least one; given {given}")]
    BadLen {
        /// The length given.
        given: Bytes,
        /// The granule.
        granule: Bytes,
    },
    /// The reserve was built to keep its length.
    #[error("the reserve can neither grow nor shrink: {why}")]
    FixedLen {
        /// What it was built with, or without.
        why: &'static str,
    },
    /// More than the reserve has room for.
    #[error(
        "{asked} more asked for; {left} are left in whole pages of {unit}, of a room of {room}"
    )]
    NoRoom {
        /// Bytes asked for.
        asked: Bytes,
        /// Bytes of the room without memory.
        left: Bytes,
        /// The page of the memory.
        unit: Bytes,
        /// The most that the reserve may be.
        room: Bytes,
    },
    /// More than can be given back now.
    #[error(
        "{asked} asked back; {free} can be given in whole pages of {unit}: the rest is held by \
         blocks and promises, or is the last of the reserve"
    )]
    NotGiven {
        /// Bytes asked for.
        asked: Bytes,
        /// Bytes that could be given.
        free: Bytes,
        /// The page of the memory.
        unit: Bytes,
    },
    /// There is no directory to serve statistics in.
    #[error(
        "no directory for the socket of statistics: XDG_RUNTIME_DIR names none that user {user} \
         owns, nor is there /run/user/{user}; name one"
    )]
    NoRuntimeDir {
        /// The effective user.
        user: u32,
    },
    /// The pool of compressed pages could not be made.
    #[error(transparent)]
    Packed(#[from] crate::zpool::Error),
    /// The memory could not be had.
    #[error(transparent)]
    Contig(#[from] contig::Error),
    /// The kernel refused a call.
    #[error(transparent)]
    Os(#[from] OsError),
}
