//! The words that packed pages of entries lie in, by units of a 64th of a page.
//!
//! Lowest first; a page of which no unit is in use is given back. Lock: that of [`Entries`]. Cost:
//! a search of bits, and a call where a page comes or goes.

use super::{Entries, SEGMENT};
use crate::zpool::memory::account::Account;
use crate::zpool::memory::bits::{resize_close, Bits};

/// Units of a page.
pub(super) const UNITS: u32 = SEGMENT;

/// Which units of the packed words are free.
#[derive(Debug, Default)]
pub(super) struct Store {
    free: Bits,
    /// From here on no unit was ever used.
    fresh: u32,
    /// Units in use of each page, which is present if there are any.
    used: Vec<u16>,
}

impl Store {
    pub(super) fn pages(&self) -> u64 {
        self.used.iter().filter(|used| **used > 0).count() as u64
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.free.held_bytes() + (self.used.capacity() * size_of::<u16>()) as u64
    }
}

impl Entries {
    /// Units of the packed words, on pages that are present.
    pub(super) fn take_units(
        &self,
        account: &Account,
        store: &mut Store,
        units: u32,
    ) -> Option<u32> {
        let all = self.tables.packed.len() as u32 / self.unit();
        let first = match store.free.take(units) {
            Some(first) => first,
            None if store.fresh + units > all => return None,
            None => {
                store.fresh += units;
                store.fresh - units
            }
        };
        for at in first..first + units {
            let page = (at / UNITS) as usize;
            if store.used.len() <= page {
                resize_close(&mut store.used, page + 1, 0);
            }
            if store.used[page] == 0
                && self.come(account, &self.tables.packed, page as u32).is_err()
            {
                self.give_back(account, store, first, at - first);
                store.free.put(at, first + units - at);
                return None;
            }
            store.used[page] += 1;
        }
        Some(first)
    }

    /// Gives units back, and pages that have no others.
    pub(super) fn give_back(&self, account: &Account, store: &mut Store, first: u32, units: u32) {
        for at in first..first + units {
            let page = at / UNITS;
            let used = &mut store.used[page as usize];
            if *used == 1 && self.tables.packed.discard(page as usize, self.page.bytes()).is_err() {
                // The unit is lost, its page stays.
                continue;
            }
            *used -= 1;
            if *used == 0 {
                account.release(self.page.bytes().get());
            }
            store.free.put(at, 1);
        }
        while store.fresh > 0 && store.free.contains(store.fresh - 1) {
            let Some((first, _)) = store.free.take_highest(store.fresh) else { break };
            store.fresh = first;
        }
    }
}
