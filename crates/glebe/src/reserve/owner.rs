//! First class: blocks and promises.
//!
//! Lock: the positions' mutex, between first-class callers only, held for the choice of a place
//! (O(log n), plus one step a granule for large blocks) and never while tenants are recalled. A
//! block of one page mostly comes from the [`Stock`], without it.

use std::ops::Range;

use super::error::Error;
use super::lent::NotTaken;
use super::positions::Search;
use super::shared::Shared;
use super::stats::Counter;
use super::stock::Stock;
use super::{Inner, Positions};
use crate::extent::Extent;
use crate::sync::lock;
use crate::units::Pages;

/// Places tried in turn before a request waits for a tenant's copy to end.
const PLACES_MAX: u32 = 8;
/// The cost of a granule in which a counted writer is copying.
const COST_OF_WRITER: u64 = 1 << 32;

/// The cost of a granule that must be zeroed before it is given: more than any eviction.
const COST_OF_ZEROING: u64 = 1 << 12;

/// What a first-class caller asks for.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Request {
    pages: Pages,
    align: Pages,
    zeroed: bool,
    any: bool,
    no_wait: bool,
    long_lived: bool,
}

impl Request {
    /// A physically contiguous block of `pages`, contents unspecified.
    pub fn new(pages: Pages) -> Self {
        let align = Pages::new(1);
        Self { pages, align, zeroed: false, any: false, no_wait: false, long_lived: false }
    }

    /// At a multiple of `align` pages, a power of two: of the page frames where they are known.
    pub fn align(self, align: Pages) -> Self {
        Self { align, ..self }
    }

    /// Filled with zeros.
    pub fn zeroed(self) -> Self {
        Self { zeroed: true, ..self }
    }

    /// Contiguous in virtual addresses only, if need be: [`Block::contiguity`] says which.
    pub fn any(self) -> Self {
        Self { any: true, ..self }
    }

    /// Rather an error than waiting for a tenant's copy, which happens only where restartable
    /// sequences are missing.
    pub fn no_wait(self) -> Self {
        Self { no_wait: true, ..self }
    }

    /// To be held for much longer than most: from the top of the reserve, where it does not pin
    /// space between blocks that come and go.
    pub fn long_lived(self) -> Self {
        Self { long_lived: true, ..self }
    }

    /// Whether any page will do.
    #[inline]
    fn is_any_page(&self) -> bool {
        let plain = !self.zeroed && !self.long_lived;
        self.pages == Pages::new(1) && self.align == Pages::new(1) && plain
    }

    #[inline]
    fn check(&self) -> Result<(), Error> {
        if self.pages == Pages::ZERO {
            return Err(Error::ZeroPages);
        }
        if !self.align.get().is_power_of_two() {
            return Err(Error::BadAlign { align: self.align });
        }
        Ok(())
    }
}

/// How far a block is known to be physically contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contiguity {
    /// One run of page frames, read from the kernel when the reserve was built.
    Proved,
    /// One run, because the kernel keeps so many pages together; frames could not be read.
    WithinGrain(Pages),
    /// In virtual addresses only.
    VirtualOnly,
}

fn pages_of(extent: Extent) -> Range<usize> {
    extent.start() as usize..extent.end() as usize
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
    fn block(&self, shared: &Shared<Self>, extent: Extent) -> Block {
        let at = self.lent().frames().at(extent.start() as usize);
        Block { inner: shared.clone(), extent, addr: at.expose_provenance() }
    }

    #[inline]
    fn granted(&self, begin: u64) {
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
        self.lent().prefetch_to_recall(self.stock().next()? as usize);
        self.alloc_ns().prefetch();
        let page = self.stock().take()?;
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

    /// Takes the positions of a block.
    fn place(&self, request: Request) -> Result<Extent, Error> {
        let lent = self.lent();
        let cost = &|granule: usize| {
            let word = lent.granule(granule);
            let zeroing = request.zeroed && !word.is_zero();
            let waste = !request.zeroed && self.zero_target > 0 && word.is_zero();
            word.live()
                + if word.writers() > 0 { COST_OF_WRITER } else { 0 }
                + if zeroing { COST_OF_ZEROING } else { 0 }
                + u64::from(waste)
        };
        let mut positions = lock(&self.positions);
        // Where writers are counted a small block too must be able to avoid one.
        let counted = lent.critical().counts_writers();
        let zeros = request.zeroed && lent.zero_granules() > 0;
        let search = Search {
            len: request.pages.get(),
            align: request.align.get(),
            any: request.any,
            placement: self.placement,
            top: request.long_lived,
            avoid: if zeros { COST_OF_ZEROING } else { COST_OF_WRITER },
            some_free: lent.unlent_granules() > 0 || counted,
        };
        if request.is_any_page() && !counted {
            if let Some(extent) = self.restock(&mut positions, &search, cost) {
                return Ok(extent);
            }
        }
        let mut taken = positions.take(&search, cost);
        if taken.is_none() && self.drain_stock(&mut positions) {
            taken = positions.take(&search, cost);
        }
        taken.ok_or_else(|| {
            self.counts().add(Counter::AllocFailures, 1);
            let largest = if request.any { positions.largest_any() } else { positions.largest() };
            Error::NoRun { asked: request.pages, largest: Pages::new(largest) }
        })
    }

    /// Takes the positions of one page and, for the next requests, those of pages that follow it.
    fn restock(
        &self,
        positions: &mut Positions,
        search: &Search,
        cost: impl Fn(usize) -> u64,
    ) -> Option<Extent> {
        let taken = positions.take_with_next(Stock::chunk_end, search, cost)?;
        if let Some(rest) = Extent::new(taken.start() + 1, taken.len() - 1) {
            if !self.stock().fill(rest) {
                positions.free(rest);
            }
        }
        Extent::new(taken.start(), 1)
    }

    /// Gives the stock back to the positions; whether there was any.
    pub(super) fn drain_stock(&self, positions: &mut Positions) -> bool {
        let mut any = false;
        for run in self.stock().drain() {
            positions.free(run);
            any = true;
        }
        any
    }

    /// Takes placed pages from the tenants; false if a counted writer is there and `wait` is not
    /// set.
    fn recall(&self, extent: Extent, zeroed: bool, wait: bool) -> Result<bool, Error> {
        let counts = self.counts();
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
    fn give_back(&self, extent: Extent) {
        if extent.len() == 1 && self.stock().is_of_chunk(extent.start()) {
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
    fn free_positions(&self, extent: Extent) {
        self.tenant().give_back(&pages_of(extent));
        lock(&self.positions).free(extent);
    }

    fn len_bytes(&self, extent: Extent) -> usize {
        Pages::new(extent.len()).bytes(self.lent().frames().page()).as_usize()
    }

    fn contiguity(&self, extent: Extent) -> Contiguity {
        if !lock(&self.positions).is_contiguous(extent) {
            return Contiguity::VirtualOnly;
        }
        match Positions::proof_grain(self.lent().frames().contig()) {
            None => Contiguity::Proved,
            Some(grain) => Contiguity::WithinGrain(Pages::new(grain)),
        }
    }
}

/// A first-class block: the caller's alone until it is dropped, then back with the tenants.
///
/// ```
/// # use glebe::{reserve::Reserve, units::{Bytes, Pages}};
/// # let reserve = Reserve::builder().map(Bytes::mib(2))?;
/// let mut block = reserve.alloc(Pages::new(1), Pages::new(1))?;
/// let bytes = block.bytes_mut()?;
/// bytes.fill(1);
/// drop(block);
/// # Ok::<(), glebe::reserve::Error>(())
/// ```
///
/// It is given back once:
///
/// ```compile_fail,E0382
/// # use glebe::{reserve::Reserve, units::{Bytes, Pages}};
/// # let reserve = Reserve::builder().map(Bytes::mib(2))?;
/// let block = reserve.alloc(Pages::new(1), Pages::new(1))?;
/// drop(block);
/// drop(block);
/// # Ok::<(), glebe::reserve::Error>(())
/// ```
///
/// and has one owner:
///
/// ```compile_fail,E0382
/// # use glebe::{reserve::Reserve, units::{Bytes, Pages}};
/// # let reserve = Reserve::builder().map(Bytes::mib(2))?;
/// let block = reserve.alloc(Pages::new(1), Pages::new(1))?;
/// let moved = block;
/// block.bytes()?;
/// # Ok::<(), glebe::reserve::Error>(())
/// ```
///
/// Its bytes are not to be had once it is given back:
///
/// ```compile_fail,E0505
/// # use glebe::{reserve::Reserve, units::{Bytes, Pages}};
/// # let reserve = Reserve::builder().map(Bytes::mib(2))?;
/// let block = reserve.alloc(Pages::new(1), Pages::new(1))?;
/// let bytes = block.bytes()?;
/// drop(block);
/// println!("{}", bytes[0]);
/// # Ok::<(), glebe::reserve::Error>(())
/// ```
#[derive(Debug)]
pub struct Block {
    inner: Shared<Inner>,
    extent: Extent,
    addr: usize,
}

impl Block {
    /// Pages in the block.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::new(self.extent.len())
    }

    /// Its place: pages from the start of the reserve.
    #[must_use]
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// How far it is known to be physically contiguous; in a forked child, not at all.
    #[must_use]
    pub fn contiguity(&self) -> Contiguity {
        self.inner.get().map_or(Contiguity::VirtualOnly, |inner| inner.contiguity(self.extent))
    }

    /// Its first byte. The block's owner alone writes through it; in a forked child nothing is
    /// mapped there.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.addr)
    }

    /// The bytes.
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[allow(unsafe_code)]
    pub fn bytes(&self) -> Result<&[u8], Error> {
        let len = self.inner.get()?.len_bytes(self.extent);
        // SAFETY: the pages are mapped for as long as `inner` lives, recalled from the tenants by
        // `Lent::recall`, and no other block has them; a tenant's reader may still copy bytes out
        // and throw them away, but none writes.
        Ok(unsafe { std::slice::from_raw_parts(self.as_ptr(), len) })
    }

    /// The bytes, to be changed.
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[allow(unsafe_code)]
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], Error> {
        let len = self.inner.get()?.len_bytes(self.extent);
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), len) })
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        if let Ok(inner) = self.inner.get() {
            inner.give_back(self.extent);
        }
    }
}

/// A run set aside for a later block: tenants use it until it is taken, other blocks cannot.
#[derive(Debug)]
#[must_use = "a promise that is dropped is given up"]
pub struct Promise {
    inner: Shared<Inner>,
    /// Until it is taken.
    extent: Option<Extent>,
}

impl Promise {
    /// Pages promised.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::new(self.extent.map_or(0, Extent::len))
    }

    /// The block. It cannot fail for want of room, whatever first class has done since.
    ///
    /// # Errors
    /// [`Error::Forked`], and [`Error::Os`] where the kernel refuses the barrier that it granted
    /// when the reserve was built: then the promise is given up.
    pub fn take(mut self) -> Result<Block, Error> {
        let inner = self.inner.get()?;
        let begin = inner.clock().now();
        let Some(extent) = self.extent else { return Err(Error::ZeroPages) };
        // With `wait` a recall is never put off.
        inner.recall(extent, false, true)?;
        self.extent = None;
        inner.granted(begin);
        Ok(inner.block(&self.inner, extent))
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let (Some(extent), Ok(inner)) = (self.extent, self.inner.get()) {
            lock(&inner.positions).free(extent);
        }
    }
}
