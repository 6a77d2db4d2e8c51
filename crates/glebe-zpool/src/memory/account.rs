//! [`Account`] counts the bytes that a pool holds, against its limit.
//!
//! Pages are charged before they are taken. Classes of a new table (tens of KiB) and codec states
//! of further threads are charged afterwards, and may exceed the limit. No lock.

use glebe_os::error::OsError;
use glebe_os::internal::sync::{AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) enum NoRoom {
    Limit,
    Space,
    Os(OsError),
}

#[derive(Debug)]
pub(crate) struct Account {
    held: AtomicU64,
    most: AtomicU64,
    limit: AtomicU64,
}

impl Account {
    /// Takes `u64::MAX` for no limit.
    pub(crate) fn new(limit: u64) -> Self {
        let word = AtomicU64::new;
        Self { held: word(0), most: word(0), limit: word(limit) }
    }

    pub(crate) fn charge(&self, bytes: u64) -> bool {
        let limit = self.limit();
        let add = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= limit);
        let charged = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        charged.is_ok_and(|before| {
            self.most.fetch_max(before + bytes, Ordering::Relaxed);
            true
        })
    }

    pub(crate) fn charge_past(&self, bytes: u64) {
        let sum = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(sum, Ordering::Relaxed);
    }

    pub(crate) fn release(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

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
