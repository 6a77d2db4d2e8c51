//! The words that packed pages of entries lie in, by units of a 64th of a page.
//!
//! Lowest first; a page of which no unit is in use is given back. Lock: that of [`Entries`]. Cost:
//! a search of bits, and a call where a page comes or goes.

use super::segments::State;
use super::{Entries, SEGMENT};
use crate::zpool::memory::account::Account;
use crate::zpool::memory::bits::{resize_close, Bits};

/// Units of a page.
pub(super) const UNITS: u32 = SEGMENT;
/// For so many units in use one may be a gap.
const GAPS_PER_USED: u32 = 32;
/// And so many, as a part of a page.
const GAPS_PART: u32 = 8;

/// Which units of the packed words are free.
#[derive(Debug, Default)]
pub(super) struct Store {
    free: Bits,
    /// From here on no unit was ever used.
    pub(super) fresh: u32,
    in_use: u32,
    /// The page of entries that is looked at next for a chunk that lies high.
    pub(super) hand: u32,
    /// Units in use of each page, which is present if there are any.
    used: Vec<u16>,
}

impl Store {
    /// Whether a chunk lies behind where all would end, had they few gaps.
    pub(super) fn is_high(&self, first: u32) -> bool {
        first > self.in_use + self.in_use / GAPS_PER_USED + UNITS / GAPS_PART
    }

    pub(super) fn pages(&self) -> u64 {
        self.used.iter().filter(|used| **used > 0).count() as u64
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.free.held_bytes() + (self.used.capacity() * size_of::<u16>()) as u64
    }
}

impl Entries {
    /// Units of the packed words, on pages that are present, which begin below another one.
    pub(super) fn take_units(
        &self,
        account: &Account,
        state: &mut State,
        units: u32,
        below: u32,
    ) -> Option<u32> {
        let all = self.tables.packed.len() as u32 / self.unit();
        let first = match state.store.free.take(units) {
            Some(first) if first < below => first,
            Some(first) => {
                state.store.free.put(first, units);
                return None;
            }
            None if below < u32::MAX => return None,
            None if state.store.fresh + units > all => return None,
            None => {
                state.store.fresh += units;
                state.store.fresh - units
            }
        };
        for at in first..first + units {
            let page = (at / UNITS) as usize;
            if state.store.used.len() <= page {
                resize_close(&mut state.store.used, page + 1, 0);
            }
            if state.store.used[page] == 0
                && self.come(account, &self.tables.packed, page as u32).is_err()
            {
                self.give_back(account, state, first, at - first);
                state.store.free.put(at, first + units - at);
                return None;
            }
            state.store.used[page] += 1;
            state.store.in_use += 1;
        }
        Some(first)
    }

    /// Gives units back, and pages that have no others.
    pub(super) fn give_back(&self, account: &Account, state: &mut State, first: u32, units: u32) {
        for at in first..first + units {
            let page = at / UNITS;
            let used = &mut state.store.used[page as usize];
            if *used == 1 && self.tables.packed.discard(page as usize, self.page.bytes()).is_err() {
                // The unit is lost, its page stays.
                continue;
            }
            *used -= 1;
            state.store.in_use -= 1;
            if *used == 0 {
                account.release(self.page.bytes().get());
            }
            state.store.free.put(at, 1);
        }
        let store = &mut state.store;
        while store.fresh > 0 && store.free.contains(store.fresh - 1) {
            let Some((first, _)) = store.free.take_highest(store.fresh) else { break };
            store.fresh = first;
        }
    }
}
