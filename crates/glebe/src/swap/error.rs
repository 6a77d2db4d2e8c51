//! Errors of stores, regions and areas.

use super::key::Key;
use crate::zpool;
use glebe_os::error::OsError;
use glebe_os::units::{Bytes, Pages};

/// Reason for a refused call. The call may have evicted objects.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// The length is zero or too long.
    #[error("an object of {len} bytes; a store takes 1 to {max}")]
    Len {
        /// Bytes given.
        len: usize,
        /// Maximum.
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
    /// A guard pins the object.
    #[error(
        "the object is pinned: no one else may write it, and none ends it, until its guards go"
    )]
    Pinned,
    /// The object has too many pins.
    #[error("the object has {max} pins already; drop some")]
    TooManyPins {
        /// Maximum.
        max: u64,
    },
    /// Pinned memory leaves no room.
    #[error("no room for {len} in memory: {pinned} are pinned, the budget is {budget}")]
    Budget {
        /// Bytes requested.
        len: Bytes,
        /// Bytes pinned.
        pinned: Bytes,
        /// Budget.
        budget: Bytes,
    },
    /// The budget is too small: below a page, or for a region below four.
    #[error("a budget of {given}; the least is {least}")]
    NoBudget {
        /// Budget.
        given: Bytes,
        /// Least budget.
        least: Bytes,
    },
    /// Guards pin more than they may of this budget.
    #[error("a budget of {given} is too small where {pinned} are pinned")]
    BudgetBelowPinned {
        /// Budget.
        given: Bytes,
        /// Bytes pinned.
        pinned: Bytes,
    },
    /// A swap cache cannot be used here.
    #[error("no swap cache can be used here: {why}")]
    NotCached {
        /// Reason.
        why: &'static str,
    },
    /// The pool is full, and there is no file.
    #[error("no room for what must leave memory: compressed objects take {held} of {limit}")]
    Full {
        /// Bytes held.
        held: Bytes,
        /// Limit.
        limit: Bytes,
    },
    /// Pool and file are full.
    #[error(
        "no room for what must leave memory: the pool is full, the file holds {held} of {limit}"
    )]
    FileFull {
        /// Bytes held.
        held: Bytes,
        /// Limit; free runs that are too short count as free.
        limit: Bytes,
    },
    /// No free run of addresses is long enough.
    #[error("no addresses for {len}: of {capacity} in all, the longest free run is {largest}")]
    Addresses {
        /// Bytes requested.
        len: Bytes,
        /// Longest free run.
        largest: Bytes,
        /// All addresses.
        capacity: Bytes,
    },
    /// The capacity is too small or too large.
    #[error("a capacity of {given}; a store has from {min} to {max}")]
    Capacity {
        /// Capacity.
        given: Bytes,
        /// Minimum.
        min: Bytes,
        /// Maximum.
        max: Bytes,
    },
    /// The object's copy is damaged, so the object can only be freed.
    #[error("the copy of object {key:?} is damaged: {what}")]
    Damaged {
        /// Object.
        key: Key,
        /// Damage.
        what: &'static str,
    },
    /// The offset is beyond the area's end.
    #[error("offset {offset} in an area of {pages}")]
    Offset {
        /// Offset.
        offset: u64,
        /// Pages of the area.
        pages: Pages,
    },
    /// The length is not one page.
    #[error("{len} bytes where a page of {page} is wanted")]
    NotAPage {
        /// Bytes given.
        len: usize,
        /// Page size.
        page: Bytes,
    },
    /// The area would have no page or too many.
    #[error("an area of {given}; one has 1 to {max}")]
    AreaPages {
        /// Pages requested.
        given: Pages,
        /// Maximum.
        max: Pages,
    },
    /// The page is damaged, so it can only be replaced or invalidated.
    #[error("page {offset} of area {area} is damaged: {what}")]
    DamagedPage {
        /// Number of the area.
        area: u32,
        /// Offset of the page.
        offset: u64,
        /// Damage.
        what: &'static str,
    },
    /// The put-back limit is below the stored bytes, and the area has no file.
    #[error("a put-back of {put_back} where {stored} are stored, and no file to write them to")]
    PutBackBelowStored {
        /// Bytes stored.
        stored: Bytes,
        /// Put-back limit.
        put_back: Bytes,
    },
    /// The copy of a region's page is damaged.
    #[error("the copy of the page at {:#x} of the region is damaged: {what}", .offset.get())]
    LostPage {
        /// Bytes from the start.
        offset: Bytes,
        /// Damage.
        what: &'static str,
    },
    /// The bytes reach beyond the region.
    #[error("bytes up to {:#x} of a region of {:#x}", .end.get(), .limit.get())]
    Beyond {
        /// End.
        end: Bytes,
        /// Length.
        limit: Bytes,
    },
    /// The thread blocks SIGBUS, so a touch would kill the process.
    #[error("the thread blocks SIGBUS, by which a region serves touches; unblock it")]
    SignalBlocked,
    /// Another SIGBUS handler was installed after the region's.
    #[error("another SIGBUS handler was installed over glebe's, by which a region serves touches")]
    HandlerCovered,
    /// The alternate signal stack is too small.
    #[error("an alternate signal stack of {given}; a region's handler needs {least}, or none")]
    SignalStack {
        /// Size.
        given: Bytes,
        /// Minimum.
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
