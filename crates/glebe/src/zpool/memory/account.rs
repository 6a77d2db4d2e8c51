//! [`Account`]: the bytes that a pool holds, against its limit.
//!
//! Everything is charged before it is taken: pages of objects, pages of tables, room for zspages'
//! own words. So the limit is passed by the classes of a new table alone, some tens of KiB at most,
//! and by the state of codecs for further threads, until objects go or are evicted for the next
//! insert. Unit: bytes. Cost: an atomic addition each time that pages come or go, none an object.
//! No lock.

use crate::error::OsError;
use crate::sync::{AtomicU64, Ordering};

/// Why memory was not to be had.
#[derive(Debug)]
pub(crate) enum NoRoom {
    /// The limit.
    Limit,
    /// Address space, or numbers.
    Space,
    /// The kernel.
    Os(OsError),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Account {
    held: AtomicU64,
    most: AtomicU64,
    limit: AtomicU64,
}

impl Account {
    /// Nothing held; without a limit, `u64::MAX`.
    pub(crate) fn new(limit: u64) -> Self {
        let word = AtomicU64::new;
        Self { held: word(0), most: word(0), limit: word(limit) }
    }

    /// Counts bytes that are about to be taken; false, and nothing counted, if they do not fit.
    pub(crate) fn charge(&self, bytes: u64) -> bool {
        let limit = self.limit();
        let add = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= limit);
        let charged = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        charged.is_ok_and(|before| {
            self.most.fetch_max(before + bytes, Ordering::Relaxed);
            true
        })
    }

    /// Counts bytes that are there already, also past the limit.
    pub(crate) fn charge_past(&self, bytes: u64) {
        let sum = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(sum, Ordering::Relaxed);
    }

    /// Counts bytes off that were given back.
    pub(crate) fn release(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// The most that was ever held.
    pub(crate) fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets another limit. What is held above it stays, and nothing is added until it fits.
    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_byte_above_the_limit() {
        let account = Account::new(10);
        assert!(account.charge(10) && !account.charge(1) && !account.charge(u64::MAX));
        account.release(4);
        assert!(account.charge(4));
        account.set_limit(5);
        assert!(!account.charge(0) || account.held() == 10);
        account.release(6);
        assert!(account.charge(1));
        assert_eq!((account.held(), account.most(), account.limit()), (5, 10, 5));
    }
}
