//! First class: blocks and promises.
//!
//! Lock: the positions' mutex, between first-class callers only, held for the choice of a place
//! (O(log n), plus one step a granule for large blocks) and never while tenants are recalled.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::error::Error;
use super::lent::NotTaken;
use super::stats::Counter;
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
}

impl Request {
    /// A physically contiguous block of `pages`, contents unspecified.
    pub fn new(pages: Pages) -> Self {
        Self { pages, align: Pages::new(1), zeroed: false, any: false, no_wait: false }
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
    pub(super) fn alloc(self: &Arc<Self>, request: Request) -> Result<Block, Error> {
        let begin = Instant::now();
        self.check_fork()?;
        request.check()?;
        let extent = self.grant(request)?;
        self.counts().add(Counter::Allocs, 1);
        self.alloc_ns().record(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        Ok(Block { inner: Arc::clone(self), extent })
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
        let cost = |granule: usize| {
            let word = lent.granule(granule);
            let zeroing = request.zeroed && !word.is_zero();
            let waste = !request.zeroed && self.zero_target > 0 && word.is_zero();
            word.live()
                + if word.writers() > 0 { COST_OF_WRITER } else { 0 }
                + if zeroing { COST_OF_ZEROING } else { 0 }
                + u64::from(waste)
        };
        let mut positions = lock(&self.positions);
        let (pages, align) = (request.pages.get(), request.align.get());
        // Where writers are counted a small block too must be able to avoid one.
        let some_free = lent.unlent_granules() > 0 || lent.critical().counts_writers();
        positions.take(pages, align, request.any, some_free, cost).ok_or_else(|| {
            self.counts().add(Counter::AllocFailures, 1);
            let largest = if request.any { positions.largest_any() } else { positions.largest() };
            Error::NoRun { asked: request.pages, largest: Pages::new(largest) }
        })
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

    pub(super) fn promise(self: &Arc<Self>, pages: Pages, align: Pages) -> Result<Promise, Error> {
        self.check_fork()?;
        let request = Request::new(pages).align(align);
        request.check()?;
        let extent = self.place(request)?;
        Ok(Promise { inner: Arc::clone(self), extent: Some(extent) })
    }

    fn contiguity(&self, extent: Extent) -> Contiguity {
        // A child has no frames, and another thread may have held the lock when it was forked.
        if self.check_fork().is_err() || !lock(&self.positions).is_contiguous(extent) {
            return Contiguity::VirtualOnly;
        }
        match Positions::proof_grain(self.lent().frames().contig()) {
            None => Contiguity::Proved,
            Some(grain) => Contiguity::WithinGrain(Pages::new(grain)),
        }
    }
}

/// A first-class block: the caller's alone until it is dropped, then back with the tenants.
#[derive(Debug)]
pub struct Block {
    inner: Arc<Inner>,
    extent: Extent,
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
        self.inner.contiguity(self.extent)
    }

    /// Its first byte. The block's owner alone writes through it; in a forked child nothing is
    /// mapped there.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.lent().frames().at(self.extent.start() as usize)
    }

    fn len_bytes(&self) -> usize {
        self.pages().bytes(self.inner.lent().frames().page()).as_usize()
    }

    /// The bytes.
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[allow(unsafe_code)]
    pub fn bytes(&self) -> Result<&[u8], Error> {
        self.inner.check_fork()?;
        // SAFETY: the pages are mapped for as long as `inner` lives, recalled from the tenants by
        // `Lent::recall`, and no other block has them; a tenant's reader may still copy bytes out
        // and throw them away, but none writes.
        Ok(unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len_bytes()) })
    }

    /// The bytes, to be changed.
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[allow(unsafe_code)]
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], Error> {
        self.inner.check_fork()?;
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len_bytes()) })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.inner.check_fork().is_ok() {
            let run = pages_of(self.extent);
            self.inner.lent().give_back(&run);
            self.inner.tenant().give_back(&run);
            lock(&self.inner.positions).free(self.extent);
        }
    }
}

/// A run set aside for a later block: tenants use it until it is taken, other blocks cannot.
#[derive(Debug)]
#[must_use = "a promise that is dropped is given up"]
pub struct Promise {
    inner: Arc<Inner>,
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
        let begin = Instant::now();
        self.inner.check_fork()?;
        let Some(extent) = self.extent else { return Err(Error::ZeroPages) };
        // With `wait` a recall is never put off.
        self.inner.recall(extent, false, true)?;
        self.extent = None;
        self.inner.counts().add(Counter::Allocs, 1);
        let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.inner.alloc_ns().record(took);
        Ok(Block { inner: Arc::clone(&self.inner), extent })
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let (Some(extent), Ok(())) = (self.extent, self.inner.check_fork()) {
            lock(&self.inner.positions).free(extent);
        }
    }
}
