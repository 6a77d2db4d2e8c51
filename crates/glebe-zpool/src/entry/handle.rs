//! [`Handle`] names an object in a pool.
//!
//! ```text
//!  63     50 49          30 29                       0
//! +---------+--------------+--------------------------+
//! |  pool   |  generation  |          index           |     4 KiB pages
//! |   14    |      20      |            30            |
//! +---------+--------------+--------------------------+
//! ```
//!
//! `index` names the [entry](super::word). `generation` counts the entry's uses; the entry stores
//! only its lower bits. `pool` counts pools, wraps and is never zero. A handle names no class,
//! because its object may move to another class.

use std::num::NonZeroU64;

use crate::entry::word::{EPOCH_BITS, GENERATION_BITS};

pub(crate) const INDEX_BITS: u32 = 30;
const USE_BITS: u32 = GENERATION_BITS + EPOCH_BITS;
const POOL_AT: u32 = INDEX_BITS + USE_BITS;
const POOL_BITS: u32 = 64 - POOL_AT;

/// The name of one object in one pool.
///
/// A handle stays valid when the object's bytes move or are replaced. No two objects of a pool get
/// the same handle, so every call refuses the handle of an object that no longer exists. On x86-64,
/// a pool also refuses handles of the next and the previous 16382 pools; elsewhere, of more pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(NonZeroU64);

impl Handle {
    #[inline]
    pub(crate) fn new(pool: u32, generation: u32, index: u32) -> Self {
        let word =
            u64::from(pool) << POOL_AT | u64::from(generation) << INDEX_BITS | u64::from(index);
        Self(NonZeroU64::new(word).unwrap_or(NonZeroU64::MAX))
    }

    /// Returns the handle as a number, to be stored elsewhere.
    #[must_use]
    pub const fn to_raw(self) -> u64 {
        self.0.get()
    }

    /// Returns the handle of a number from [`Handle::to_raw`], or `None` for zero. A number from
    /// elsewhere may name no object or a wrong one.
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
