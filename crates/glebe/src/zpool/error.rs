//! What a pool refuses, and why.

use crate::error::OsError;
use crate::units::Bytes;
use crate::zpool::sizes::table::RulesError;

/// A call on a pool that was refused; nothing was changed, but where that is said.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An object without bytes.
    #[error("an object of 0 bytes; the least is 1")]
    Empty,
    /// An object that is longer than a page.
    #[error("an object of {len} bytes; the longest is a page of {page}")]
    TooLong {
        /// Bytes given.
        len: usize,
        /// The page size.
        page: Bytes,
    },
    /// The object is gone: removed, or evicted.
    #[error("the object of this handle is gone: it was removed or evicted")]
    Stale,
    /// The handle is another pool's, or none at all.
    #[error("the handle is not one of this pool")]
    Foreign,
    /// A buffer too small for the object.
    #[error("a buffer of {given} bytes for an object of {len}")]
    BufferTooSmall {
        /// Bytes given.
        given: usize,
        /// Bytes of the object.
        len: usize,
    },
    /// The limit leaves no room, and nothing may be evicted or can be.
    #[error("no room for {len} bytes: the pool holds {held}, its limit is {limit}")]
    Full {
        /// Bytes given.
        len: usize,
        /// What the pool holds, everything counted.
        held: Bytes,
        /// Its limit.
        limit: Bytes,
    },
    /// A limit below what the pool holds and cannot shed, or below what an empty one does.
    #[error("a limit of {limit} where the pool holds {held} and can shed no more")]
    LimitBelowHeld {
        /// The limit asked for.
        limit: Bytes,
        /// What the pool holds.
        held: Bytes,
    },
    /// The address space of the pool is used up. Its limit decides when the pool is made how much
    /// there is; without one, the machine's memory and what the process may have.
    #[error(
        "the pool's address space is used up; make it with a larger limit, in a process that may \
             have the addresses (RLIMIT_AS, or RLIMIT_MEMLOCK where it locks its memory)"
    )]
    Space,
    /// A budget of nothing.
    #[error("a budget of nothing")]
    NoBudget,
    /// What a codec refuses: stored bytes that it did not make, or its own parameters.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// Rules that make no table, or none that this pool can have.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// Too many classes, those among them that are still being emptied.
    #[error("{classes} size classes; a pool has room for {limit}, with those that are emptied")]
    Classes {
        /// Classes that there would be.
        classes: usize,
        /// The limit.
        limit: usize,
    },
    /// The caller is a forked child: the pool stayed with its parent.
    #[error("this process was forked from the pool's owner; the pool stayed there")]
    Forked,
    /// The kernel refused a call.
    #[error(transparent)]
    Os(#[from] OsError),
}

/// What a codec was given or made that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// Stored bytes that no coder made.
    #[error("{len} stored bytes are not what {codec} makes of an object: {what}")]
    Corrupt {
        /// Of the stored bytes.
        len: usize,
        /// Which codec was to read them.
        codec: &'static str,
        /// What it says of them.
        what: &'static str,
    },
    /// A level that zstd does not have.
    #[error("zstd level {given}: it has {min} to {max}")]
    Level {
        /// The level asked for.
        given: i32,
        /// The lowest.
        min: i32,
        /// The highest.
        max: i32,
    },
    /// No memory for a coder's working state.
    #[error("no memory for a {what} of zstd")]
    NoMemory {
        /// Which state.
        what: &'static str,
    },
    /// The crate was built without the codec.
    #[error("this build of glebe has no {codec}: build it with the feature `{codec}`")]
    Missing {
        /// The feature that is off.
        codec: &'static str,
    },
}
