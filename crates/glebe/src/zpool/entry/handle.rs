//! [`Handle`]: the name of an object in a pool.
//!
//! ```text
//!  63     50 49          30 29                       0
//! +---------+--------------+--------------------------+
//! |  pool   |  generation  |          index           |     4 KiB pages
//! |   14    |      20      |            30            |
//! +---------+--------------+--------------------------+
//! ```
//!
//! `index` is the place of the [entry](super::word), `generation` the one use of it that is meant:
//! its lower bits stand in the entry, the upper ones in the *epoch* of the entry. `pool` is a
//! number of the pool, never zero, which wraps. The class is not in it, since compaction and a new
//! table may move the object to another one: the entry, one load away, names the zspage, and that
//! its class, so that no lock of the whole pool is taken for a removal either.

use std::num::NonZeroU64;

use crate::zpool::entry::word::{EPOCH_BITS, GENERATION_BITS};

/// Bits of an entry's index.
pub(crate) const INDEX_BITS: u32 = 30;
const USE_BITS: u32 = GENERATION_BITS + EPOCH_BITS;
const POOL_AT: u32 = INDEX_BITS + USE_BITS;
const POOL_BITS: u32 = 64 - POOL_AT;

/// The name of one object in one pool, for as long as that object is there.
///
/// It stays the same when the object's bytes are moved or replaced. A handle of an object that is
/// gone is an error wherever it is used, however long it is kept: what a handle is made of is
/// never used twice. So is one of another pool, of 16383 that a process makes one after the other
/// (more where pages are larger than 4 KiB).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(NonZeroU64);

impl Handle {
    /// `pool` is a number of [`pool_number`].
    #[inline]
    pub(crate) fn new(pool: u32, generation: u32, index: u32) -> Self {
        let word =
            u64::from(pool) << POOL_AT | u64::from(generation) << INDEX_BITS | u64::from(index);
        Self(NonZeroU64::new(word).unwrap_or(NonZeroU64::MAX))
    }

    /// The handle as a number, to be kept where a handle cannot be.
    #[must_use]
    pub const fn to_raw(self) -> u64 {
        self.0.get()
    }

    /// The handle of a number that [`Handle::to_raw`] gave; any other names no object, or
    /// whichever it happens to name. `None` for zero.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Option<Self> {
        match NonZeroU64::new(raw) {
            Some(word) => Some(Self(word)),
            None => None,
        }
    }

    #[inline]
    pub(crate) fn pool(self) -> u32 {
        (self.0.get() >> POOL_AT) as u32
    }

    #[inline]
    pub(crate) fn generation(self) -> u32 {
        (self.0.get() >> INDEX_BITS) as u32 & ((1 << USE_BITS) - 1)
    }

    #[inline]
    pub(crate) fn index(self) -> u32 {
        self.0.get() as u32 & ((1 << INDEX_BITS) - 1)
    }
}

/// The number of the `nth` pool of a process.
pub(crate) fn pool_number(nth: u64) -> u32 {
    (nth % ((1 << POOL_BITS) - 1)) as u32 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back() {
        let (generation, index) = ((1 << USE_BITS) - 1, (1 << INDEX_BITS) - 1);
        for pool in [pool_number(0), pool_number((1 << POOL_BITS) - 2)] {
            let handle = Handle::new(pool, generation, index);
            assert_eq!(Handle::from_raw(handle.to_raw()), Some(handle));
            assert_eq!((handle.pool(), handle.index()), (pool, index));
            assert_eq!(handle.generation(), generation);
        }
        assert_eq!((pool_number((1 << POOL_BITS) - 1), Handle::from_raw(0)), (1, None));
    }
}
