//! First class chooses a block's place, recalls its pages from tenants, and gives the block back.
//!
//! The positions' lock is never held during a recall.

use std::ops::Range;

use super::block::{Block, Contiguity, Promise};
use super::error::ReserveError;
use super::lent::NotTaken;
use super::positions::{Search, COST_OF_WAITING};
use super::shared::Shared;
use super::stats::Counter;
use super::{Positions, Reserve, ReserveCore};
use glebe_os::extent::Extent;
use glebe_os::internal::sync::{lock, Ordering};
use glebe_os::units::Pages;

/// Most places that a request tries. Only the last try may wait for tenants' copies.
const PLACES_MAX: u32 = 8;
const COST_OF_ZEROING: u64 = 1;

/// [`Request`] describes a block.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Request {
    pages: Pages,
    align: Pages,
    zeroed: bool,
    any: bool,
    no_wait: bool,
}

impl Request {
    /// Asks for `pages` physically contiguous pages with unspecified contents.
    pub fn new(pages: Pages) -> Self {
        let align = Pages::new(1);
        Self { pages, align, zeroed: false, any: false, no_wait: false }
    }

    /// Aligns the first page frame to `align` pages, a power of two. Aligns the offset in the
    /// reserve instead if frames are hidden, or with [`Request::any`] if there are several physical
    /// runs.
    pub fn align(self, align: Pages) -> Self {
        Self { align, ..self }
    }

    /// Asks for pages filled with zeros.
    pub fn zeroed(self) -> Self {
        Self { zeroed: true, ..self }
    }

    /// Accepts a block that is contiguous only in virtual addresses; see
    /// [`Block::contiguity`](super::Block::contiguity).
    pub fn any(self) -> Self {
        Self { any: true, ..self }
    }

    /// Makes the request fail with [`ReserveError::WouldWait`] instead of waiting.
    pub fn no_wait(self) -> Self {
        Self { no_wait: true, ..self }
    }

    pub(super) fn rounded_to_bricks(self, each: u64) -> Self {
        let pages = Pages::new(self.pages.get().checked_next_multiple_of(each).unwrap_or(u64::MAX));
        Self { pages, align: self.align.max(Pages::new(each)), zeroed: true, ..self }
    }

    #[inline]
    fn is_any_page(&self) -> bool {
        self.pages == Pages::new(1) && self.align == Pages::new(1) && !self.zeroed
    }

    #[inline]
    fn check(&self) -> Result<(), ReserveError> {
        if self.pages == Pages::ZERO {
            return Err(ReserveError::ZeroPages);
        }
        if !self.align.get().is_power_of_two() {
            return Err(ReserveError::BadAlign { align: self.align });
        }
        Ok(())
    }
}

impl From<Pages> for Request {
    fn from(pages: Pages) -> Self {
        Self::new(pages)
    }
}

pub(super) fn pages_of(extent: Extent) -> Range<usize> {
    extent.start() as usize..extent.end() as usize
}

impl Reserve {
    /// Takes a block, if needed from tenants. A number of [`Pages`] converts by [`Request::new`].
    /// If the memory is on several NUMA nodes, pages of the caller's node come first.
    ///
    /// The search usually takes O(log n) steps. [`Request::zeroed`] and
    /// [`Writers::Counted`](super::Writers::Counted) add one per granule (2 MiB), and several nodes
    /// up to 64 times as many.
    ///
    /// ```
    /// use glebe::{reserve::{Request, Reserve}, units::{Bytes, Pages}};
    ///
    /// let reserve = Reserve::new(Bytes::mib(2))?;
    /// let one = reserve.alloc(Pages::new(1))?;
    /// let aligned = reserve.alloc(Request::new(Pages::new(1)).align(Pages::new(1)).zeroed())?;
    /// assert!(aligned.bytes()?.iter().all(|byte| *byte == 0));
    /// # drop(one);
    /// # Ok::<(), glebe::reserve::ReserveError>(())
    /// ```
    ///
    /// # Errors
    /// [`ReserveError::NoRun`], or [`ReserveError::NoAlignedRun`] if the longest free run is long
    /// enough; [`ReserveError::ZeroPages`], [`ReserveError::BadAlign`], [`ReserveError::Forked`];
    /// [`ReserveError::WouldWait`] with [`Request::no_wait`]; [`ReserveError::Os`] if the kernel
    /// refuses the barrier.
    #[inline]
    pub fn alloc(&self, request: impl Into<Request>) -> Result<Block, ReserveError> {
        ReserveCore::alloc(&self.inner, request.into())
    }

    /// Takes a block as [`Reserve::alloc`] does, but never waits for a tenant's copy.
    ///
    /// # Errors
    /// As [`Reserve::alloc`].
    #[inline]
    pub fn try_alloc(&self, request: impl Into<Request>) -> Result<Block, ReserveError> {
        self.alloc(request.into().no_wait())
    }

    /// Sets a run aside for a later block.
    ///
    /// # Errors
    /// As [`Reserve::alloc`], except [`ReserveError::WouldWait`] and [`ReserveError::Os`].
    pub fn promise(&self, request: impl Into<Request>) -> Result<Promise, ReserveError> {
        let inner = self.inner.get()?;
        let request = request.into();
        request.check()?;
        let extent = Some(inner.place(request)?);
        Ok(Promise { inner: self.inner.clone(), extent, zeroed: request.zeroed })
    }

    /// Returns the length of the longest free run.
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn largest_run(&self) -> Result<Pages, ReserveError> {
        Ok(self.inner.get()?.largest_run())
    }
}

impl ReserveCore {
    #[inline]
    pub(super) fn alloc(shared: &Shared<Self>, request: Request) -> Result<Block, ReserveError> {
        let inner = shared.get()?;
        let begin = inner.busy.clock.now();
        if inner.may_be_at_hand(&request) {
            if let Some(extent) = inner.grant_at_hand() {
                inner.granted(begin);
                return Ok(inner.block(shared, extent));
            }
        }
        inner.alloc_placed(shared, request, begin)
    }

    #[cold]
    fn alloc_placed(
        &self,
        shared: &Shared<Self>,
        request: Request,
        begin: u64,
    ) -> Result<Block, ReserveError> {
        Ok(self.block(shared, self.grant_timed(request, begin)?))
    }

    pub(super) fn grant_timed(&self, request: Request, begin: u64) -> Result<Extent, ReserveError> {
        request.check()?;
        let extent = self.grant(request)?;
        self.granted(begin);
        Ok(extent)
    }

    /// Returns false with `Writers::Counted`, because a tenant may be copying to the granule of the
    /// page at hand.
    #[inline]
    fn may_be_at_hand(&self, request: &Request) -> bool {
        request.is_any_page() && !self.lent().critical().counts_writers()
    }

    #[inline]
    pub(super) fn block(&self, shared: &Shared<Self>, extent: Extent) -> Block {
        let at = self.lent().frames().at(extent.start() as usize);
        Block { inner: shared.clone(), extent, addr: at.expose_provenance() }
    }

    #[inline]
    pub(super) fn granted(&self, begin: u64) {
        self.busy.alloc_ns.record(self.busy.clock.nanos_since(begin));
    }

    fn grant(&self, request: Request) -> Result<Extent, ReserveError> {
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
        Err(ReserveError::WouldWait)
    }

    fn search(&self, positions: &mut Positions, request: Request) -> Search {
        let lent = self.lent();
        let zeros = request.zeroed && lent.zero_granules() > 0;
        let by_cost = zeros || lent.critical().counts_writers();
        if by_cost {
            for (granule, cost) in positions.costs().iter_mut().enumerate() {
                let word = lent.granule(granule);
                let avoided = word.writers() > 0 || word.is_absent();
                *cost = if avoided { COST_OF_WAITING } else { 0 }
                    + if zeros && !word.is_zero() { COST_OF_ZEROING } else { 0 };
            }
        }
        let (len, align) = (request.pages.get(), request.align.get());
        let (any, near) = (request.any, self.busy.near.slot());
        Search { len, align, any, by_cost, near }
    }

    fn place(&self, request: Request) -> Result<Extent, ReserveError> {
        let mut positions = lock(&self.positions);
        if self.may_be_at_hand(&request) {
            if let Some(extent) = self.restock(&mut positions) {
                return Ok(extent);
            }
        }
        let search = self.search(&mut positions, request);
        if let Some(extent) = positions.take(&search) {
            return Ok(extent);
        }
        let drained = self.drain_stock(&mut positions);
        let taken = positions.take(&search).ok_or_else(|| self.refused(&positions, &request));
        if drained {
            self.fill_stock(&mut positions);
        }
        taken
    }

    #[cold]
    fn refused(&self, positions: &Positions, request: &Request) -> ReserveError {
        self.counts().add(Counter::AllocFailures, 1);
        let largest = if request.any { positions.largest_any() } else { positions.largest() };
        let (asked, align, largest) = (request.pages, request.align, Pages::new(largest));
        match asked <= largest && align > Pages::new(1) {
            true => ReserveError::NoAlignedRun { asked, align, largest },
            false => ReserveError::NoRun { asked, largest },
        }
    }

    #[inline]
    pub(super) fn move_out(&self, run: &Range<usize>) {
        if self.busy.moves.load(Ordering::Relaxed) != 0 {
            self.movers.move_out(&self.lender, run);
        }
    }

    /// Returns false if `wait` is false and, with `Writers::Counted`, a tenant is copying to a
    /// granule of `extent`.
    pub(super) fn recall(
        &self,
        extent: Extent,
        zeroed: bool,
        wait: bool,
    ) -> Result<bool, ReserveError> {
        let counts = self.counts();
        self.move_out(&pages_of(extent));
        let recalled = match self.lent().recall(&pages_of(extent), zeroed, wait) {
            Ok(recalled) => recalled,
            Err(NotTaken::Busy) => return Ok(false),
            Err(NotTaken::NoBarrier { why, pages }) => {
                counts.add(Counter::Recalled, pages);
                return Err(ReserveError::Os(why));
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

    #[inline]
    pub(super) fn give_back(&self, extent: Extent) {
        if extent.len() == 1 {
            self.lent().give_back_page(extent.start() as usize);
            if !self.busy.put_back(extent.start()) {
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

#[cfg(test)]
mod tests {
    use super::super::Reserve;
    use glebe_os::units::{Bytes, Pages};

    #[test]
    fn asking_for_the_longest_run_leaves_pages_at_hand_and_the_run_to_be_had() {
        let reserve = Reserve::new(Bytes::mib(4)).unwrap();
        let inner = reserve.inner.get().unwrap();
        if inner.lent().critical().counts_writers() {
            println!("skipped: without restartable sequences nothing is kept at hand");
            return;
        }
        let one = Pages::new(1);
        let before = reserve.largest_run().unwrap();
        drop(reserve.alloc(one).unwrap());
        assert!(!inner.busy.stock.is_empty());
        assert_eq!(reserve.largest_run().unwrap(), before);
        assert!(!inner.busy.stock.is_empty());
        assert_eq!(reserve.alloc(before).unwrap().pages(), before);
    }
}
