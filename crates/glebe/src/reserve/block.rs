//! [`Block`] and [`Promise`] own pages of first class until dropped.

use std::fmt;

use super::error::ReserveError;
use super::shared::Shared;
use super::{Footing, ReserveCore};
use crate::contig::Location;
use glebe_os::extent::Extent;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

/// [`Contiguity`] is what is known about a block's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contiguity {
    /// Proved by page frames read when the memory was added.
    Proved,
    /// The kernel hides page frames, but keeps groups of at least this many pages contiguous. The
    /// block is inside one group.
    WithinGrain(Pages),
    /// Contiguous in virtual addresses only.
    VirtualOnly,
}

impl fmt::Display for Contiguity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proved => f.write_str("proved"),
            Self::WithinGrain(pages) => write!(f, "within {pages}"),
            Self::VirtualOnly => f.write_str("in virtual addresses only"),
        }
    }
}

/// [`Block`] is its owner's memory until dropped. Then tenants may use the pages again.
///
/// ```
/// # use glebe::{reserve::Reserve, units::{Bytes, Pages}};
/// # let reserve = Reserve::new(Bytes::mib(2))?;
/// let mut block = reserve.alloc(Pages::new(1))?;
/// let bytes = block.bytes_mut()?;
/// bytes.fill(1);
/// drop(block);
/// # Ok::<(), glebe::reserve::ReserveError>(())
/// ```
///
/// A block is given back once:
///
/// ```compile_fail,E0382
/// # use glebe::{reserve::Reserve, units::{Bytes, Pages}};
/// # let reserve = Reserve::new(Bytes::mib(2))?;
/// let block = reserve.alloc(Pages::new(1))?;
/// drop(block);
/// drop(block);
/// # Ok::<(), glebe::reserve::ReserveError>(())
/// ```
///
/// A block has one owner:
///
/// ```compile_fail,E0382
/// # use glebe::{reserve::Reserve, units::{Bytes, Pages}};
/// # let reserve = Reserve::new(Bytes::mib(2))?;
/// let block = reserve.alloc(Pages::new(1))?;
/// let moved = block;
/// block.bytes()?;
/// # Ok::<(), glebe::reserve::ReserveError>(())
/// ```
///
/// Its bytes cannot outlive the block:
///
/// ```compile_fail,E0505
/// # use glebe::{reserve::Reserve, units::{Bytes, Pages}};
/// # let reserve = Reserve::new(Bytes::mib(2))?;
/// let block = reserve.alloc(Pages::new(1))?;
/// let bytes = block.bytes()?;
/// drop(block);
/// println!("{}", bytes[0]);
/// # Ok::<(), glebe::reserve::ReserveError>(())
/// ```
#[derive(Debug)]
pub struct Block {
    pub(super) inner: Shared<ReserveCore>,
    pub(super) extent: Extent,
    pub(super) addr: usize,
}

impl Block {
    /// Returns the number of pages.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::new(self.extent.len())
    }

    /// Returns the block's place in the reserve, in base pages.
    #[must_use]
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Returns the physical place of the byte at `offset`; `None` beyond the block's end.
    ///
    /// ```
    /// # use glebe::{reserve::Reserve, units::{Bytes, Pages}};
    /// # let reserve = Reserve::new(Bytes::mib(2))?;
    /// let block = reserve.alloc(Pages::new(1))?;
    /// let place = block.locate(Bytes::ZERO)?.expect("its first byte");
    /// println!("frame {:?}, then {} in one piece", place.pfn, place.contiguous);
    /// # Ok::<(), glebe::reserve::ReserveError>(())
    /// ```
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn locate(&self, offset: Bytes) -> Result<Option<Location>, ReserveError> {
        let inner = self.inner.get()?;
        let (page, len) = (page_size(), inner.len_bytes(self.extent) as u64);
        let start = Pages::new(self.extent.start()).bytes(page);
        let inside = (offset.get() < len).then(|| start + offset);
        Ok(inside.and_then(|offset| inner.locate(offset)))
    }

    /// Returns a summary of the reserve's present memory.
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn footing(&self) -> Result<Footing, ReserveError> {
        Ok(self.inner.get()?.footing())
    }

    /// Returns the known contiguity; in a forked child [`Contiguity::VirtualOnly`].
    #[must_use]
    pub fn contiguity(&self) -> Contiguity {
        self.inner.get().map_or(Contiguity::VirtualOnly, |inner| inner.contiguity(self.extent))
    }

    /// Returns the address. A forked child has nothing mapped there.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.addr)
    }

    /// Returns the bytes.
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    #[allow(unsafe_code)]
    pub fn bytes(&self) -> Result<&[u8], ReserveError> {
        let len = self.inner.get()?.len_bytes(self.extent);
        // SAFETY: `inner` keeps the pages mapped. First class took them from tenants before it made
        // this block, and no other block has them.
        Ok(unsafe { std::slice::from_raw_parts(self.as_ptr(), len) })
    }

    /// Returns the bytes for writing.
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    #[allow(unsafe_code)]
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], ReserveError> {
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

/// [`Promise`] is a run of pages set aside for a later block. Until [`Promise::take`], tenants may
/// use the pages.
///
/// ```
/// # use glebe::{reserve::Reserve, units::{Bytes, Pages}};
/// let reserve = Reserve::new(Bytes::mib(2))?;
/// let promise = reserve.promise(Pages::new(1))?;
/// let block = promise.take()?; // whatever first class has done since
/// assert_eq!(block.pages(), Pages::new(1));
/// # Ok::<(), glebe::reserve::ReserveError>(())
/// ```
#[derive(Debug)]
#[must_use = "a promise that is dropped is given up"]
pub struct Promise {
    pub(super) inner: Shared<ReserveCore>,
    /// `None` once taken.
    pub(super) extent: Option<Extent>,
    pub(super) zeroed: bool,
}

impl Promise {
    /// Returns the number of pages promised.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::new(self.extent.map_or(0, Extent::len))
    }

    /// Takes the block. There is always room, because the run was set aside.
    ///
    /// # Errors
    /// [`ReserveError::Forked`], or [`ReserveError::Os`] if membarrier(2) fails. An error ends the
    /// promise.
    pub fn take(mut self) -> Result<Block, ReserveError> {
        let inner = self.inner.get()?;
        let begin = inner.busy.clock.now();
        let Some(extent) = self.extent else { return Err(ReserveError::ZeroPages) };
        inner.recall(extent, self.zeroed, true)?;
        self.extent = None;
        inner.granted(begin);
        Ok(inner.block(&self.inner, extent))
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let (Some(extent), Ok(inner)) = (self.extent, self.inner.get()) {
            inner.end_promise(extent);
        }
    }
}
