//! [`Packed::sweep`] finds lost pages, and moves objects of sparse zspages to ordinary memory (the
//! staging).

use super::{with_buffer, LostPages, Packed, Rest, PAGES_MAX};
use crate::reserve::lender::Lender;
use glebe_os::internal::sync::Ordering;

/// The sweep empties zspages that use at most this many quarters of their slots.
const SPARSE: u32 = 2;
const SPARSE_ASKED: u32 = 3;

impl Packed {
    pub(in crate::reserve) fn sweep(&self, lender: &Lender, zspages: u64) {
        let mut sparse = None;
        for zspage in self.next_zspages(zspages) {
            self.look_at(lender, zspage);
            sparse = sparse.or_else(|| {
                let objects = self.staging.sparse_objects(zspage, SPARSE);
                (self.rest == Rest::Stays && !objects.is_empty()).then_some(objects)
            });
        }
        self.take_out(lender, &sparse.unwrap_or_default());
        self.staging.settle();
        self.let_go(lender);
    }

    /// Continues where the last call of any thread ended.
    fn next_zspages(&self, most: u64) -> impl Iterator<Item = u32> {
        let end = self.staging.zspages_end();
        let first = self.hand.fetch_add(most, Ordering::Relaxed);
        let end = u64::from(end);
        (0..most.min(end)).map(move |at| (first.wrapping_add(at) % end) as u32)
    }

    fn take_out(&self, lender: &Lender, objects: &[(u32, u32)]) -> u64 {
        let mut moved = 0;
        for (index, named) in objects {
            let Some(pinned) = self.staging.pin(*index, *named) else { continue };
            if !pinned.is_sealed {
                self.staging.unpin(&pinned);
                continue;
            }
            moved += with_buffer(pinned.entry.len(), |buf| {
                if let Err(lost) = self.copy_sealed(lender, &pinned, buf) {
                    let zspage = pinned.entry.place().zspage;
                    self.lose(zspage, self.refs.seal(zspage), &lost);
                    self.staging.unpin(&pinned);
                    return 0;
                }
                u64::from(self.staging.restore((*index, *named), &pinned, buf))
            });
        }
        self.counters.taken_out.fetch_add(moved, Ordering::Relaxed);
        moved
    }

    /// Returns the number of objects moved and of pages freed.
    pub(in crate::reserve) fn compact(
        &self,
        lender: &Lender,
        goes_on: impl Fn(u64) -> bool,
    ) -> (u64, u64) {
        let (mut moved, before) = (0, self.counters.ended_pages.load(Ordering::Relaxed));
        let end = self.staging.zspages_end();
        let freed = || self.counters.ended_pages.load(Ordering::Relaxed) - before;
        for zspage in self.next_zspages(end.into()) {
            if !goes_on(freed()) || !self.has_room(lender) {
                break;
            }
            self.look_at(lender, zspage);
            moved += self.take_out(lender, &self.staging.sparse_objects(zspage, SPARSE_ASKED));
            self.staging.settle();
            self.settle(lender);
        }
        (moved, freed())
    }

    fn look_at(&self, lender: &Lender, zspage: u32) {
        if !self.staging.is_sealed(zspage) {
            return;
        }
        let seal = self.refs.seal(zspage);
        let mut lost = 0;
        for nth in 0..PAGES_MAX {
            let Some(at) = self.refs.at(zspage, nth) else { break };
            let meta = self.meta(zspage, nth, seal);
            if lender.lent().holds_use(at).is_none_or(|(_, _, other)| other != meta)
                && self.refs.at(zspage, nth) == Some(at)
            {
                lost |= 1 << nth;
            }
        }
        if lost != 0 && seal != 0 {
            self.lose(zspage, seal, &LostPages(lost));
        }
    }
}
