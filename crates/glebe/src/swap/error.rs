//! [`SwapError`] says why a call was refused.

use super::key::Key;
use crate::zpool;
use glebe_os::error::OsError;
use glebe_os::units::{Bytes, Pages};

/// `SwapError` is a refused call, which may have evicted objects.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// The length is zero or too long.
    #[error("an object of {len} bytes; a store takes 1 to {max}")]
    Len {
        /// Bytes given.
        len: usize,
        /// The maximum.
        max: usize,
    },
    /// The object was freed.
    #[error("the object of this key is gone: it was freed or taken")]
    Stale,
    /// The key belongs to another store.
    #[error("the key is not one of this store")]
    Foreign,
    /// The program declared the object dead.
    #[error("the object is dead: its bytes were given up")]
    Dead,
    /// The object has a guard.
    #[error(
        "the object is pinned: no one else may write it, and none ends it, until its guards go"
    )]
    Pinned,
    /// The object has too many pins.
    #[error("the object has {max} pins already; drop some")]
    TooManyPins {
        /// The maximum.
        max: u64,
    },
    /// Pinned memory leaves no room in the budget.
    #[error("no room for {len} in memory: {pinned} are pinned, the budget is {budget}")]
    Budget {
        /// Bytes requested.
        len: Bytes,
        /// Bytes pinned.
        pinned: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// The budget is below a page.
    #[error("a budget of {given}; the least is a page of {page}")]
    NoBudget {
        /// The budget.
        given: Bytes,
        /// The page size.
        page: Bytes,
    },
    /// The budget would be below the pinned memory.
    #[error("a budget of {given} where {pinned} are pinned")]
    BudgetBelowPinned {
        /// The budget.
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
    /// The pool is full, so nothing can leave memory.
    #[error("no room for what must leave memory: compressed objects take {held} of {limit}")]
    Full {
        /// Bytes held.
        held: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// Pool and file are full.
    #[error(
        "no room for what must leave memory: the pool is full, the file holds {held} of {limit}"
    )]
    FileFull {
        /// Bytes held.
        held: Bytes,
        /// The limit. Too short free runs count as free.
        limit: Bytes,
    },
    /// No free run of addresses is long enough.
    #[error("no addresses for {len}: of {capacity} in all, the longest free run is {largest}")]
    Addresses {
        /// Bytes requested.
        len: Bytes,
        /// The longest free run.
        largest: Bytes,
        /// All addresses.
        capacity: Bytes,
    },
    /// The capacity is below a page or too large.
    #[error("a capacity of {given}; a store has from {min} to {max}")]
    Capacity {
        /// The capacity.
        given: Bytes,
        /// The minimum.
        min: Bytes,
        /// The maximum.
        max: Bytes,
    },
    /// The object's copy is damaged. The object can only be freed.
    #[error("the copy of object {key:?} is damaged: {what}")]
    Damaged {
        /// The object.
        key: Key,
        /// The damage.
        what: &'static str,
    },
    /// The offset is beyond the area's end.
    #[error("offset {offset} in an area of {pages}")]
    Offset {
        /// The offset.
        offset: u64,
        /// The area's pages.
        pages: Pages,
    },
    /// The length is not one page.
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
    /// The area's page is damaged. It can only be replaced or invalidated.
    #[error("page {offset} of area {area} is damaged: {what}")]
    DamagedPage {
        /// The area's number.
        area: u32,
        /// The page's offset.
        offset: u64,
        /// The damage.
        what: &'static str,
    },
    /// Put-back would be below the stored bytes, and the area has no file.
    #[error("a put-back of {put_back} where {stored} are stored, and no file to write them to")]
    PutBackBelowStored {
        /// Bytes stored.
        stored: Bytes,
        /// The put-back.
        put_back: Bytes,
    },
    /// The copy of a region's page is damaged.
    #[error("the copy of the page at {:#x} of the region is damaged: {what}", .offset.get())]
    LostPage {
        /// Bytes from the start.
        offset: Bytes,
        /// The damage.
        what: &'static str,
    },
    /// The bytes reach beyond the region.
    #[error("bytes up to {:#x} of a region of {:#x}", .end.get(), .limit.get())]
    Beyond {
        /// The end.
        end: Bytes,
        /// The length.
        limit: Bytes,
    },
    /// The thread blocks SIGBUS, so a touch would kill the process.
    #[error("the thread blocks SIGBUS, by which a region serves touches; unblock it")]
    SignalBlocked,
    /// Another SIGBUS handler covers the region's.
    #[error("another SIGBUS handler was installed over glebe's, by which a region serves touches")]
    HandlerCovered,
    /// The alternate signal stack is too small.
    #[error("an alternate signal stack of {given}; a region's handler needs {least}, or none")]
    SignalStack {
        /// The stack's size.
        given: Bytes,
        /// The minimum.
        least: Bytes,
    },
    /// The caller is a forked child.
    #[error("this process was forked from the one that has the store")]
    Forked,
    /// Another error of the pool.
    #[error(transparent)]
    Pool(#[from] zpool::Error),
    /// The kernel refused.
    #[error(transparent)]
    Os(#[from] OsError),
}
