//! Counts commands, hits and misses; sets and hits of large items also in a second counter.
//!
//! Argument `hit` is `None` for a miss. For a hit it says whether the item is large.

use super::counters::Counter;
use super::execute::Hands;
use crate::store::{Changed, Outcome, HEAD};

impl Hands<'_> {
    pub(super) fn count_touch(&self, hit: Option<bool>) {
        let counters = self.counters;
        counters.cmd_touch.add(1);
        count(hit, [&counters.touch_misses, &counters.touch_hits, &counters.large_touch_hits]);
    }

    #[inline]
    pub(super) fn count_get(&self, hit: Option<bool>) {
        let counters = self.counters;
        counters.cmd_get.add(1);
        count(hit, [&counters.get_misses, &counters.get_hits, &counters.large_get_hits]);
    }

    /// Returns true for a large item.
    #[inline]
    pub(super) fn count_set(&self, key: &[u8], value: &[u8]) -> bool {
        let is_large = self.shared.store.is_large(HEAD + key.len() + value.len());
        self.counters.cmd_set.add(1);
        self.counters.large_cmd_set.add(is_large.into());
        self.shared.prefixes.count_set(key);
        is_large
    }

    pub(super) fn count_cas(&self, outcome: Outcome, is_large: bool) {
        let counters = self.counters;
        let (all, large) = match outcome {
            Outcome::Stored => (&counters.cas_hits, &counters.large_cas_hits),
            Outcome::NotFound => return counters.cas_misses.add(1),
            _ => (&counters.cas_badval, &counters.large_cas_badval),
        };
        all.add(1);
        large.add(is_large.into());
    }

    pub(super) fn count_delete(&self, hit: Option<bool>) {
        let counters = self.counters;
        count(hit, [&counters.delete_misses, &counters.delete_hits, &counters.large_delete_hits]);
    }

    /// Converts the result of a change to a `hit`.
    pub(super) fn done(&self, changed: &Changed) -> Option<bool> {
        match changed {
            Changed::Done(head, _) => Some(self.shared.store.is_large(head.total())),
            _ => None,
        }
    }

    pub(super) fn count_arithmetic(&self, down: bool, hit: Option<bool>) {
        let counters = self.counters;
        let which = match down {
            false => [&counters.incr_misses, &counters.incr_hits, &counters.large_incr_hits],
            true => [&counters.decr_misses, &counters.decr_hits, &counters.large_decr_hits],
        };
        count(hit, which);
    }
}

#[inline]
fn count(hit: Option<bool>, [misses, hits, large_hits]: [&Counter; 3]) {
    match hit {
        None => misses.add(1),
        Some(is_large) => {
            hits.add(1);
            large_hits.add(is_large.into());
        }
    }
}
