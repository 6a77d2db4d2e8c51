//! What a store refuses, and why.

use super::key::Key;
use crate::error::OsError;
use crate::units::{Bytes, Pages};
use crate::zpool;

/// A call on a store that was refused. Nothing was changed, but that others may have been evicted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An object of no bytes, or too many.
    #[error("an object of {len} bytes; a store takes 1 to {max}")]
    Len {
        /// Bytes given.
        len: usize,
        /// The most.
        max: usize,
    },
    /// The object of this key was freed or taken.
    #[error("the object of this key is gone: it was freed or taken")]
    Stale,
    /// The key is another store's.
    #[error("the key is not one of this store")]
    Foreign,
    /// The program said that the object is dead.
    #[error("the object is dead: its bytes were given up")]
    Dead,
    /// Guards of the object stand against the call.
    #[error(
        "the object is pinned: no one else may write it, and none ends it, until its guards go"
    )]
    Pinned,
    /// A pin more than an object may have.
    #[error("the object has {max} pins already; drop some")]
    TooManyPins {
        /// The most.
        max: u64,
    },
    /// What is pinned leaves no room in the budget.
    #[error("no room for {len} in memory: {pinned} are pinned, the budget is {budget}")]
    Budget {
        /// Bytes of memory asked for.
        len: Bytes,
        /// Bytes of memory that guards pin, as seen when the call gave up.
        pinned: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// A budget below a page.
    #[error("a budget of {given}; the least is a page of {page}")]
    NoBudget {
        /// The budget given.
        given: Bytes,
        /// The page size.
        page: Bytes,
    },
    /// A budget below what is pinned. The budget stays as it was.
    #[error("a budget of {given} where {pinned} are pinned")]
    BudgetBelowPinned {
        /// The budget given.
        given: Bytes,
        /// Bytes of memory that guards pin.
        pinned: Bytes,
    },
    /// A swap cache was named where it is of no use.
    #[error("no swap cache can be used here: {why}")]
    NotCached {
        /// Why not.
        why: &'static str,
    },
    /// The pool of compressed objects is full, so that nothing more can leave memory.
    #[error("no room for what must leave memory: compressed objects take {held} of {limit}")]
    Full {
        /// Bytes that the pool holds, everything counted.
        held: Bytes,
        /// Its limit.
        limit: Bytes,
    },
    /// The file is full as well.
    #[error(
        "no room for what must leave memory: the pool is full, the file holds {held} of {limit}"
    )]
    FileFull {
        /// Bytes that the file holds.
        held: Bytes,
        /// Its limit. Free runs that are too short for the next record count as free.
        limit: Bytes,
    },
    /// There are not so many addresses side by side.
    #[error("no addresses for {len}: of {capacity} in all, the longest free run is {largest}")]
    Addresses {
        /// Bytes of addresses asked for.
        len: Bytes,
        /// The longest free run.
        largest: Bytes,
        /// The addresses of the store.
        capacity: Bytes,
    },
    /// A capacity below a page, or beyond what a store can name.
    #[error("a capacity of {given}; a store has from {min} to {max}")]
    Capacity {
        /// The capacity given.
        given: Bytes,
        /// The least.
        min: Bytes,
        /// The most.
        max: Bytes,
    },
    /// The copy of an object that left memory is not what was stored. Its bytes are lost, and the
    /// object can only be freed.
    #[error("the copy of object {key:?} is damaged: {what}")]
    Damaged {
        /// The object.
        key: Key,
        /// What is wrong with the copy.
        what: &'static str,
    },
    /// An offset beyond the end of an area.
    #[error("offset {offset} in an area of {pages}")]
    Offset {
        /// The offset given.
        offset: u64,
        /// Pages of the area.
        pages: Pages,
    },
    /// Bytes that are not one page.
    #[error("{len} bytes where a page of {page} is wanted")]
    NotAPage {
        /// Bytes given.
        len: usize,
        /// The page size.
        page: Bytes,
    },
    /// An area of no page, or too many.
    #[error("an area of {given}; one has 1 to {max}")]
    AreaPages {
        /// Pages asked for.
        given: Pages,
        /// The most.
        max: Pages,
    },
    /// A page of an area is not what was stored. It is lost, and can only be replaced or
    /// invalidated.
    #[error("page {offset} of area {area} is damaged: {what}")]
    DamagedPage {
        /// The area's number.
        area: u32,
        /// The page's offset.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Put-back below what is stored in an area without a file. It stayed as it was.
    #[error("a put-back of {put_back} where {stored} are stored, and no file to write them to")]
    PutBackBelowStored {
        /// Bytes that are stored.
        stored: Bytes,
        /// The put-back given.
        put_back: Bytes,
    },
    /// The copy of a page of a region is not what was stored. Its bytes are lost.
    #[error("the copy of the page at {:#x} of the region is damaged: {what}", .offset.get())]
    LostPage {
        /// Bytes from the region's start.
        offset: Bytes,
        /// What is wrong with the copy.
        what: &'static str,
    },
    /// Bytes behind the end of a region.
    #[error("bytes up to {:#x} of a region of {:#x}", .end.get(), .limit.get())]
    Beyond {
        /// Where the bytes end that were asked for.
        end: Bytes,
        /// Where the region ends.
        limit: Bytes,
    },
    /// The calling thread blocks SIGBUS: a touch of what is not in memory would kill the process.
    #[error("the thread blocks SIGBUS, by which a region serves touches; unblock it")]
    SignalBlocked,
    /// Another handler of SIGBUS was installed over the one by which regions serve touches.
    #[error("another SIGBUS handler was installed over glebe's, by which a region serves touches")]
    HandlerCovered,
    /// The alternate signal stack of the calling thread is too small for the handler of a region.
    #[error("an alternate signal stack of {given}; a region's handler needs {least}, or none")]
    SignalStack {
        /// What the thread has.
        given: Bytes,
        /// The least.
        least: Bytes,
    },
    /// The caller is a forked child: the store stayed with its parent.
    #[error("this process was forked from the one that has the store")]
    Forked,
    /// What the pool of compressed objects refuses beside.
    #[error(transparent)]
    Pool(#[from] zpool::Error),
    /// What the kernel refuses.
    #[error(transparent)]
    Os(#[from] OsError),
}
