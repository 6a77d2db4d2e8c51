//! `ReserveCore` grants blocks of one page from the [`Stock`] of free pages, without the positions'
//! lock. Each NUMA node has a stock of its own ([`near`](super::near)).
//!
//! Cost: one atomic exchange per block, and one search per chunk (32 pages) of stock.

use super::owner::pages_of;
use super::positions::Positions;
use super::stock::{self, Stock};
use super::ReserveCore;
use glebe_os::extent::Extent;
use glebe_os::internal::sync::lock;
use glebe_os::units::Pages;

impl ReserveCore {
    #[inline]
    pub(super) fn grant_at_hand(&self) -> Option<Extent> {
        let stock = self.busy.stock();
        if let Some(page) = stock.next() {
            self.lent().prefetch_to_recall(page as usize);
        }
        self.busy.alloc_ns.prefetch();
        let page = stock.take()?;
        self.move_out(&(page as usize..page as usize + 1));
        match self.lent().recall_page(page as usize) {
            Some(live) => stock.count_recalled(live),
            None if self.recall_busy(page) => {}
            None => return None,
        }
        Extent::new(page, 1)
    }

    /// Recalls a page that a tenant is writing. If the recall fails, puts the page back into the
    /// stock or frees it, and returns false.
    #[cold]
    fn recall_busy(&self, page: u64) -> bool {
        let extent = Extent::new(page, 1).expect("one page");
        let taken = matches!(self.recall(extent, false, true), Ok(true));
        if !taken && !self.busy.put_back(page) {
            self.free_positions(extent);
        }
        taken
    }

    /// Takes a page of the caller's node, or else of another one, and fills that node's stock.
    pub(super) fn restock(&self, positions: &mut Positions) -> Option<Extent> {
        let near = self.busy.near.slot();
        self.restock_of(near, positions).or_else(|| self.restock_far(near?, positions))
    }

    #[cold]
    fn restock_far(&self, near: usize, positions: &mut Positions) -> Option<Extent> {
        let mut others = (0..self.busy.near.slots()).filter(|slot| *slot != near);
        others.find_map(|slot| self.restock_of(Some(slot), positions))
    }

    fn restock_of(&self, slot: Option<usize>, positions: &mut Positions) -> Option<Extent> {
        if let Some(page) = self.busy.stock_of(slot).take() {
            return Extent::new(page, 1);
        }
        let first = positions.take_in_chunk(Stock::CHUNK, slot)?;
        let rest = Extent::new(first.start() + 1, first.len() - 1);
        self.fill_stock_of(slot, positions, rest);
        Extent::new(first.start(), 1)
    }

    pub(super) fn fill_stock(&self, positions: &mut Positions) {
        self.fill_stock_of(self.busy.near.slot(), positions, None);
    }

    /// `first` must be taken pages of one chunk.
    fn fill_stock_of(
        &self,
        slot: Option<usize>,
        positions: &mut Positions,
        mut first: Option<Extent>,
    ) {
        for _ in 0..stock::WORDS {
            let next = first.take().or_else(|| positions.take_in_chunk(Stock::CHUNK, slot));
            let Some(pages) = next else { break };
            if !self.busy.stock_of(slot).fill(pages) {
                positions.free(pages);
                break;
            }
        }
    }

    pub(super) fn largest_run(&self) -> Pages {
        self.of_free(Positions::largest)
    }

    pub(super) fn free_pages(&self) -> Pages {
        self.of_free(Positions::free_len)
    }

    /// Drains the stock first, because its pages are free.
    fn of_free(&self, count: impl FnOnce(&Positions) -> u64) -> Pages {
        let mut positions = lock(&self.positions);
        let is_stocked = self.busy.stocks().any(|stock| !stock.is_empty());
        let drained = is_stocked && self.drain_stock(&mut positions);
        let pages = count(&positions);
        if drained {
            self.fill_stock(&mut positions);
        }
        Pages::new(pages)
    }

    pub(super) fn drain_stock(&self, positions: &mut Positions) -> bool {
        let mut any = false;
        for run in self.busy.stocks().flat_map(Stock::drain) {
            self.lender().give_back(&pages_of(run));
            positions.free(run);
            any = true;
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use crate::reserve::{Reserve, ReserveError};
    use glebe_os::units::{Bytes, Pages};

    #[test]
    fn a_request_that_misses_leaves_pages_at_hand() {
        let reserve = Reserve::new(Bytes::mib(16)).unwrap();
        let inner = reserve.inner.get().unwrap();
        if inner.lent().critical().counts_writers() {
            return println!("skipped: writers are counted, so nothing is at hand");
        }
        let largest = inner.largest_run();
        let single = reserve.alloc(Pages::new(1)).unwrap();
        let missed = reserve.alloc(reserve.len() + Pages::new(1)).unwrap_err();
        let ReserveError::NoRun { largest: said, .. } = missed else { panic!("{missed}") };
        assert!(said >= largest - Pages::new(1), "{said} of {largest}");
        assert!(!inner.busy.stock.is_empty());
        drop(single);
        assert_eq!(inner.largest_run(), largest);
    }
}
