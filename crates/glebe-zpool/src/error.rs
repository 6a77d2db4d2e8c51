//! Errors of a pool.

use crate::sizes::table::RulesError;
use glebe_os::error::OsError;
use glebe_os::units::Bytes;

/// The reason why a pool refused a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object has no bytes.
    #[error("an object of 0 bytes; the least is 1")]
    Empty,
    /// The object is longer than a page.
    #[error("an object of {len} bytes; the longest is a page of {page}")]
    TooLong {
        /// Bytes given.
        len: usize,
        /// The page size.
        page: Bytes,
    },
    /// The object was removed or evicted.
    #[error("the object of this handle is gone: it was removed or evicted")]
    Stale,
    /// The handle is not one of this pool.
    #[error("the handle is not one of this pool")]
    Foreign,
    /// The buffer is too small for the object.
    #[error("a buffer of {given} bytes for an object of {len}")]
    BufferTooSmall {
        /// Bytes given.
        given: usize,
        /// Bytes of the object.
        len: usize,
    },
    /// The limit leaves no room.
    #[error("no room for {len} bytes: the pool holds {held}, its limit is {limit}")]
    Full {
        /// Bytes given.
        len: usize,
        /// Bytes held.
        held: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// The pool holds more than the limit and can shed no more.
    #[error("a limit of {limit} where the pool holds {held} and can shed no more")]
    LimitBelowHeld {
        /// The limit asked for.
        limit: Bytes,
        /// Bytes held.
        held: Bytes,
    },
    /// The pool's addresses are used up.
    #[error(
        "the pool's address space is used up; make it with a larger limit, in a process that may \
             have the addresses (RLIMIT_AS, or RLIMIT_MEMLOCK where it locks its memory)"
    )]
    Space,
    /// The budget is zero.
    #[error("a budget of nothing")]
    NoBudget,
    /// The codec refused.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The rules make no table that this pool can have.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The new classes, plus old classes that still hold objects, exceed `limit`.
    #[error("{classes} size classes; a pool has room for {limit}, with those that are emptied")]
    Classes {
        /// Number of classes.
        classes: usize,
        /// Most classes.
        limit: usize,
    },
    /// The caller is a forked child.
    #[error("this process was forked from the pool's owner; the pool stayed there")]
    Forked,
    /// The kernel refused a call.
    #[error(transparent)]
    Os(#[from] OsError),
}

/// The reason why a codec refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The stored bytes are damaged.
    #[error("{len} stored bytes are not what {codec} makes of an object: {what}")]
    Corrupt {
        /// Stored bytes.
        len: usize,
        /// The codec.
        codec: &'static str,
        /// Its reason.
        what: &'static str,
    },
    /// Zstd has no such level.
    #[error("zstd level {given}: it has {min} to {max}")]
    Level {
        /// The level asked for.
        given: i32,
        /// The lowest level.
        min: i32,
        /// The highest level.
        max: i32,
    },
    /// Memory for the codec's state is missing.
    #[error("no memory for a {what} of zstd")]
    NoMemory {
        /// The state.
        what: &'static str,
    },
    /// The crate was built without this codec.
    #[error("this build of glebe has no {codec}: build it with the feature `{codec}`")]
    Missing {
        /// The feature that is off.
        codec: &'static str,
    },
}
