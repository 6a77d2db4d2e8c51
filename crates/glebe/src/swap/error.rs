//! [`SwapError`]: the reasons why a call is refused.

use super::key::Key;
use crate::zpool;
use glebe_os::error::OsError;
use glebe_os::units::{Bytes, Pages};

/// A refused call. It changed nothing, but may have evicted other objects.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// The object would have no bytes or too many.
    #[error("an object of {len} bytes; a store takes 1 to {max}")]
    Len {
        /// Length in bytes.
        len: usize,
        /// Longest length.
        max: usize,
    },
    /// The object was freed or taken.
    #[error("the object of this key is gone: it was freed or taken")]
    Stale,
    /// The key belongs to another store.
    #[error("the key is not one of this store")]
    Foreign,
    /// The program declared the object dead.
    #[error("the object is dead: its bytes were given up")]
    Dead,
    /// A guard of the object prevents the call.
    #[error(
        "the object is pinned: no one else may write it, and none ends it, until its guards go"
    )]
    Pinned,
    /// The object already has the maximum of pins.
    #[error("the object has {max} pins already; drop some")]
    TooManyPins {
        /// Most pins.
        max: u64,
    },
    /// Pinned memory leaves no room in the budget.
    #[error("no room for {len} in memory: {pinned} are pinned, the budget is {budget}")]
    Budget {
        /// Bytes requested.
        len: Bytes,
        /// Bytes pinned when the call gave up.
        pinned: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// The budget is below a page.
    #[error("a budget of {given}; the least is a page of {page}")]
    NoBudget {
        /// The budget given.
        given: Bytes,
        /// The page size.
        page: Bytes,
    },
    /// The budget is below the pinned memory. It stays unchanged.
    #[error("a budget of {given} where {pinned} are pinned")]
    BudgetBelowPinned {
        /// The budget given.
        given: Bytes,
        /// Bytes pinned.
        pinned: Bytes,
    },
    /// A swap cache cannot be used here.
    #[error("no swap cache can be used here: {why}")]
    NotCached {
        /// The reason.
        why: &'static str,
    },
    /// The pool of compressed objects is full, so nothing can leave memory.
    #[error("no room for what must leave memory: compressed objects take {held} of {limit}")]
    Full {
        /// Bytes that the pool holds, with all overhead.
        held: Bytes,
        /// The pool's limit.
        limit: Bytes,
    },
    /// The pool and the file are full.
    #[error(
        "no room for what must leave memory: the pool is full, the file holds {held} of {limit}"
    )]
    FileFull {
        /// Bytes that the file holds.
        held: Bytes,
        /// The file's limit. Free runs that are too short count as free.
        limit: Bytes,
    },
    /// No free run of addresses is long enough.
    #[error("no addresses for {len}: of {capacity} in all, the longest free run is {largest}")]
    Addresses {
        /// Bytes of addresses requested.
        len: Bytes,
        /// The longest free run.
        largest: Bytes,
        /// All addresses of the store.
        capacity: Bytes,
    },
    /// The capacity is below a page or above the maximum.
    #[error("a capacity of {given}; a store has from {min} to {max}")]
    Capacity {
        /// The capacity given.
        given: Bytes,
        /// The minimum.
        min: Bytes,
        /// The maximum.
        max: Bytes,
    },
    /// The copy of an object is damaged and its bytes are lost. The object can only be freed.
    #[error("the copy of object {key:?} is damaged: {what}")]
    Damaged {
        /// The object.
        key: Key,
        /// The damage.
        what: &'static str,
    },
    /// The offset is beyond the end of an area.
    #[error("offset {offset} in an area of {pages}")]
    Offset {
        /// The offset given.
        offset: u64,
        /// Pages of the area.
        pages: Pages,
    },
    /// The bytes are not exactly one page.
    #[error("{len} bytes where a page of {page} is wanted")]
    NotAPage {
        /// Bytes given.
        len: usize,
        /// The page size.
        page: Bytes,
    },
    /// The area would have no page or too many.
    #[error("an area of {given}; one has 1 to {max}")]
    AreaPages {
        /// Pages requested.
        given: Pages,
        /// The maximum.
        max: Pages,
    },
    /// A page of an area is damaged and lost. It can only be replaced or invalidated.
    #[error("page {offset} of area {area} is damaged: {what}")]
    DamagedPage {
        /// The area's number.
        area: u32,
        /// The page's offset.
        offset: u64,
        /// The damage.
        what: &'static str,
    },
    /// Put-back is below the stored bytes of an area without a file. It stays unchanged.
    #[error("a put-back of {put_back} where {stored} are stored, and no file to write them to")]
    PutBackBelowStored {
        /// Bytes stored.
        stored: Bytes,
        /// The put-back given.
        put_back: Bytes,
    },
    /// The copy of a region's page is damaged and its bytes are lost.
    #[error("the copy of the page at {:#x} of the region is damaged: {what}", .offset.get())]
    LostPage {
        /// Bytes from the region's start.
        offset: Bytes,
        /// The damage.
        what: &'static str,
    },
    /// The bytes reach beyond the end of a region.
    #[error("bytes up to {:#x} of a region of {:#x}", .end.get(), .limit.get())]
    Beyond {
        /// The end requested.
        end: Bytes,
        /// The region's end.
        limit: Bytes,
    },
    /// The thread blocks SIGBUS, so a touch of an absent page would kill the process.
    #[error("the thread blocks SIGBUS, by which a region serves touches; unblock it")]
    SignalBlocked,
    /// Another SIGBUS handler covers the one that serves touches.
    #[error("another SIGBUS handler was installed over glebe's, by which a region serves touches")]
    HandlerCovered,
    /// The thread's alternate signal stack is too small for the handler.
    #[error("an alternate signal stack of {given}; a region's handler needs {least}, or none")]
    SignalStack {
        /// The stack's size.
        given: Bytes,
        /// The minimum.
        least: Bytes,
    },
    /// The caller is a forked child of the store's process.
    #[error("this process was forked from the one that has the store")]
    Forked,
    /// Another error of the pool of compressed objects.
    #[error(transparent)]
    Pool(#[from] zpool::Error),
    /// The kernel refused.
    #[error(transparent)]
    Os(#[from] OsError),
}
