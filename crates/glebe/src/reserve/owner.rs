//! First class: how a block is placed, recalled and given back.
//!
//! Lock: the positions' mutex, between first-class callers only, held for the choice of a place
//! (O(log n), plus one step a granule where something is to be avoided) and never while tenants
//! are recalled. A block of one page mostly comes from the [`Stock`], without it.

use std::ops::Range;

use super::block::{Block, Contiguity, Promise, Request};
use super::error::Error;
use super::lent::NotTaken;
use super::positions::Search;
use super::shared::Shared;
use super::stats::Counter;
use super::stock::{self, Stock};
use super::{Inner, Positions, Reserve};
use crate::extent::Extent;
use crate::sync::lock;
use crate::units::Pages;

/// Places tried in turn before a request waits for a tenant's copy to end.
const PLACES_MAX: u32 = 8;
/// What a granule costs that must be zeroed before it is given.
const COST_OF_ZEROING: u64 = 1;
/// What a granule costs in which a counted writer is copying: more than to zero all others.
const COST_OF_WRITER: u64 = 1 << 32;

pub(super) fn pages_of(extent: Extent) -> Range<usize> {
    extent.start() as usize..extent.end() as usize
}

impl Reserve {
    /// A physically contiguous block of `pages` at a multiple of `align` pages, contents
    /// unspecified. Never fails because of tenants.
    ///
    /// # Errors
    /// [`Error::NoRun`] with the longest free run; [`Error::NoAlignedRun`] where that is long
    /// enough; [`Error::ZeroPages`], [`Error::BadAlign`], [`Error::Forked`]; [`Error::Os`] where
    /// the kernel refuses the barrier that it granted when the reserve was built (a filter set up
    /// since; its own memory used up).
    #[inline]
    pub fn alloc(&self, pages: Pages, align: Pages) -> Result<Block, Error> {
        self.alloc_with(Request::new(pages).align(align))
    }

    /// As [`Reserve::alloc`], but never waits for a tenant's copy.
    ///
    /// # Errors
    /// Also [`Error::WouldWait`], only where writers are counted.
    #[inline]
    pub fn try_alloc(&self, pages: Pages, align: Pages) -> Result<Block, Error> {
        self.alloc_with(Request::new(pages).align(align).no_wait())
    }

    /// The block that `request` describes.
    ///
    /// # Errors
    /// As [`Reserve::alloc`] and [`Reserve::try_alloc`].
    #[inline]
    pub fn alloc_with(&self, request: Request) -> Result<Block, Error> {
        Inner::alloc(&self.inner, request)
    }

    /// Sets a run aside for later: until it is taken tenants use it, and no other block gets it.
    ///
    /// # Errors
    /// As [`Reserve::alloc`].
    pub fn promise(&self, pages: Pages, align: Pages) -> Result<Promise, Error> {
        Inner::promise(&self.inner, pages, align)
    }

    /// The longest block that could be had now.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn largest_run(&self) -> Result<Pages, Error> {
        Ok(self.inner.get()?.largest_run())
    }
}

impl Inner {
    #[inline]
    pub(super) fn alloc(shared: &Shared<Self>, request: Request) -> Result<Block, Error> {
        let inner = shared.get()?;
        let begin = inner.clock().now();
        if let Some(extent) = inner.grant_at_hand(&request) {
            inner.granted(begin);
            return Ok(inner.block(shared, extent));
        }
        inner.alloc_placed(shared, request, begin)
    }

    #[cold]
    fn alloc_placed(
        &self,
        shared: &Shared<Self>,
        request: Request,
        begin: u64,
    ) -> Result<Block, Error> {
        request.check()?;
        let extent = self.grant(request)?;
        self.granted(begin);
        Ok(self.block(shared, extent))
    }

    #[inline]
    pub(super) fn block(&self, shared: &Shared<Self>, extent: Extent) -> Block {
        let at = self.lent().frames().at(extent.start() as usize);
        Block { inner: shared.clone(), extent, addr: at.expose_provenance() }
    }

    #[inline]
    pub(super) fn granted(&self, begin: u64) {
        self.alloc_ns().record(self.clock().nanos_since(begin));
    }

    /// A page that was at hand, recalled.
    #[inline]
    fn grant_at_hand(&self, request: &Request) -> Option<Extent> {
        // Where writers are counted the place must be chosen to avoid them.
        if !request.is_any_page() || self.lent().critical().counts_writers() {
            return None;
        }
        // All lines that are needed start on their way together.
        if let Some(page) = self.stock().next() {
            self.lent().prefetch_to_recall(page as usize);
        }
        self.alloc_ns().prefetch();
        let page = self.stock().take()?;
        self.move_out(&(page as usize..page as usize + 1));
        match self.lent().recall_page(page as usize) {
            Some(live) => self.stock().count_recalled(live),
            None if self.recall_busy(page) => {}
            None => return None,
        }
        Extent::new(page, 1)
    }

    /// Takes a page of the stock into which a tenant is copying; false, and it is where it was,
    /// if the kernel refuses the barrier that this needs.
    #[cold]
    fn recall_busy(&self, page: u64) -> bool {
        let extent = Extent::new(page, 1).expect("one page");
        let taken = matches!(self.recall(extent, false, true), Ok(true));
        if !taken && !self.stock().put_back(page) {
            self.free_positions(extent);
        }
        taken
    }

    fn grant(&self, request: Request) -> Result<Extent, Error> {
        for place in 0.. {
            let extent = self.place(request)?;
            let wait = !request.no_wait && place + 1 >= PLACES_MAX;
            let taken = self.recall(extent, request.zeroed, wait);
            if let Ok(true) = taken {
                return Ok(extent);
            }
            lock(&self.positions).free(extent);
            taken?;
            if place + 1 >= PLACES_MAX {
                break;
            }
        }
        Err(Error::WouldWait)
    }

    /// What a place for `request` must have; where something is to be avoided, with what each
    /// granule costs.
    fn search(&self, positions: &mut Positions, request: Request) -> Search {
        let lent = self.lent();
        let zeros = request.zeroed && lent.zero_granules() > 0;
        let by_cost = zeros || lent.critical().counts_writers();
        if by_cost {
            for (granule, cost) in positions.costs().iter_mut().enumerate() {
                let word = lent.granule(granule);
                let avoided = word.writers() > 0 || word.is_absent();
                *cost = if avoided { COST_OF_WRITER } else { 0 }
                    + if zeros && !word.is_zero() { COST_OF_ZEROING } else { 0 };
            }
        }
        let (len, align) = (request.pages.get(), request.align.get());
        Search { len, align, any: request.any, by_cost }
    }

    /// Takes the positions of a block.
    fn place(&self, request: Request) -> Result<Extent, Error> {
        let mut positions = lock(&self.positions);
        if request.is_any_page() && !self.lent().critical().counts_writers() {
            if let Some(extent) = self.restock(&mut positions) {
                return Ok(extent);
            }
        }
        let search = self.search(&mut positions, request);
        let mut taken = positions.take(&search);
        if taken.is_none() && self.drain_stock(&mut positions) {
            taken = positions.take(&search);
        }
        taken.ok_or_else(|| {
            self.counts().add(Counter::AllocFailures, 1);
            let largest = if request.any { positions.largest_any() } else { positions.largest() };
            let (asked, align, largest) = (request.pages, request.align, Pages::new(largest));
            match asked <= largest && align > Pages::new(1) {
                true => Error::NoAlignedRun { asked, align, largest },
                false => Error::NoRun { asked, largest },
            }
        })
    }

    /// Takes one page of the stock, which another may have filled meanwhile, or else the positions
    /// of one and, for the next requests, of as many more as the stock has room for.
    fn restock(&self, positions: &mut Positions) -> Option<Extent> {
        if let Some(page) = self.stock().take() {
            return Extent::new(page, 1);
        }
        let first = positions.take_in_chunk(Stock::CHUNK)?;
        self.fill_stock(positions, Extent::new(first.start() + 1, first.len() - 1));
        Extent::new(first.start(), 1)
    }

    /// Stocks `first`, pages of one chunk that are taken, and positions that it takes.
    fn fill_stock(&self, positions: &mut Positions, mut first: Option<Extent>) {
        for _ in 0..stock::WORDS {
            let next = first.take().or_else(|| positions.take_in_chunk(Stock::CHUNK));
            let Some(pages) = next else { break };
            if !self.stock().fill(pages) {
                positions.free(pages);
                break;
            }
        }
    }

    /// The longest run that a block could be. A stock that must be drained for it is filled again,
    /// so that no request pays for the question.
    pub(super) fn largest_run(&self) -> Pages {
        let mut positions = lock(&self.positions);
        let drained = !self.stock().is_empty() && self.drain_stock(&mut positions);
        let largest = positions.largest();
        if drained {
            self.fill_stock(&mut positions, None);
        }
        Pages::new(largest)
    }

    /// Gives the stock back to the positions; whether there was any.
    pub(super) fn drain_stock(&self, positions: &mut Positions) -> bool {
        let mut any = false;
        for run in self.stock().drain() {
            self.lender().give_back(&pages_of(run)); // what is free of it is used first
            positions.free(run);
            any = true;
        }
        any
    }

    /// Takes placed pages from the tenants; false if a counted writer is there and `wait` is not
    /// set.
    pub(super) fn recall(&self, extent: Extent, zeroed: bool, wait: bool) -> Result<bool, Error> {
        let counts = self.counts();
        self.move_out(&pages_of(extent));
        let recalled = match self.lent().recall(&pages_of(extent), zeroed, wait) {
            Ok(recalled) => recalled,
            Err(NotTaken::Busy) => return Ok(false),
            Err(NotTaken::NoBarrier { why, pages }) => {
                counts.add(Counter::Recalled, pages);
                return Err(Error::Os(why));
            }
        };
        for (counter, n) in [
            (Counter::Recalled, recalled.pages),
            (Counter::Barriers, recalled.barrier.into()),
            (Counter::WaitedForWriter, recalled.waited.into()),
        ] {
            if n > 0 {
                counts.add(counter, n);
            }
        }
        Ok(true)
    }

    pub(super) fn promise(
        shared: &Shared<Self>,
        pages: Pages,
        align: Pages,
    ) -> Result<Promise, Error> {
        let inner = shared.get()?;
        let request = Request::new(pages).align(align);
        request.check()?;
        let extent = inner.place(request)?;
        Ok(Promise { inner: shared.clone(), extent: Some(extent) })
    }

    /// Ends a block.
    #[inline]
    pub(super) fn give_back(&self, extent: Extent) {
        if extent.len() == 1 {
            self.lent().give_back_page(extent.start() as usize);
            if !self.stock().put_back(extent.start()) {
                self.free_positions(extent);
            }
        } else {
            self.give_back_run(extent);
        }
    }

    #[cold]
    fn give_back_run(&self, extent: Extent) {
        self.lent().give_back(&pages_of(extent));
        self.free_positions(extent);
    }

    #[cold]
    pub(super) fn free_positions(&self, extent: Extent) {
        self.lender().give_back(&pages_of(extent));
        lock(&self.positions).free(extent);
    }

    /// Ends a promise that was not taken.
    pub(super) fn end_promise(&self, extent: Extent) {
        lock(&self.positions).free(extent);
    }

    pub(super) fn len_bytes(&self, extent: Extent) -> usize {
        Pages::new(extent.len()).bytes(self.lent().frames().page()).as_usize()
    }

    pub(super) fn contiguity(&self, extent: Extent) -> Contiguity {
        let positions = lock(&self.positions);
        if !positions.is_contiguous(extent) {
            return Contiguity::VirtualOnly;
        }
        match positions.grain() {
            None => Contiguity::Proved,
            Some(grain) => Contiguity::WithinGrain(Pages::new(grain)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Reserve;
    use crate::units::{Bytes, Pages};

    #[test]
    fn asking_for_the_longest_run_leaves_pages_at_hand_and_the_run_to_be_had() {
        let reserve = Reserve::builder().map(Bytes::mib(4)).unwrap();
        let inner = reserve.inner.get().unwrap();
        if inner.lent().critical().counts_writers() {
            println!("skipped: without restartable sequences nothing is kept at hand");
            return;
        }
        let one = Pages::new(1);
        let before = reserve.largest_run().unwrap();
        drop(reserve.alloc(one, one).unwrap());
        assert!(!inner.stock().is_empty());
        assert_eq!(reserve.largest_run().unwrap(), before);
        assert!(!inner.stock().is_empty());
        assert_eq!(reserve.alloc(before, one).unwrap().pages(), before);
    }
}
