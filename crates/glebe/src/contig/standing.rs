//! [`StandingPool`]: huge pages set aside once, in physical order, of which runs are mapped in
//! microseconds.
//!
//! The pages lie in one file without a name, which is mapped whole. A [`Piece`] is a run of base
//! pages of that mapping, had without a system call; a [`Window`] is one with a mapping of its own.
//! Both are physically contiguous as far as frames can be seen, else within one huge page. What was
//! not asked for is never taken: a piece of 3 MiB leaves the fourth MiB of its page to others.
//!
//! Positions and lengths are base pages of the file. Free positions are kept in a tree with a gap
//! wherever frames are not adjacent. A request is O(log n); a window costs the system calls that
//! map it, some 3 µs, and 0.5 µs a huge page. Contents are unspecified: zeros, or what was there.
//!
//! Lock: the state's, held over a search. In a forked child every call is an error.

mod state;

use std::sync::Arc;

use super::options::Options;
use super::{smallest_hugetlb, Contig, Error, Source};
use crate::error::OsError;
use crate::extent::Extent;
use crate::mapping::Mapping;
use crate::sync::{lock, Mutex, MutexGuard};
use crate::sys::memfd::MemFile;
use crate::sys::page_size;
use crate::units::{Bytes, PageSize, Pages};

use state::State;

/// Huge pages set aside, of which runs are had. Clones share it.
///
/// ```
/// use glebe::contig::StandingPool;
/// use glebe::units::Bytes;
///
/// let Ok(pool) = StandingPool::new(Bytes::mib(4)) else {
///     return Ok(()); // no huge pages to be had
/// };
/// let piece = pool.take(Bytes::new(3 << 14))?; // a run of the mapping that is there already
/// piece.write(Bytes::ZERO, b"here");
/// let window = pool.map(Bytes::mib(2))?; // one with a mapping of its own
/// println!("{} at {:#x}", window.piece().len(), window.mapping().addr());
/// # Ok::<(), glebe::contig::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StandingPool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    contig: Contig,
    file: Arc<MemFile>,
    size: PageSize,
    state: Mutex<State>,
}

/// How a standing pool is made. Made by [`StandingPool::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct StandingOptions(Options);

impl StandingOptions {
    /// The memory that is set aside: a source of hugetlb, a node, a run, how much to look at for
    /// it ([`Options::search`]).
    pub fn memory(self, memory: Options) -> Self {
        Self(memory)
    }

    /// Sets aside `len`, rounded up to huge pages.
    ///
    /// # Errors
    /// As [`Options::build`]; [`Error::NotHugetlb`] for another source.
    pub fn build(self, len: Bytes) -> Result<StandingPool, Error> {
        let smallest = || smallest_hugetlb().map_or(Source::HUGETLB_2M, Source::Hugetlb);
        let asked = self.0.source.unwrap_or_else(smallest);
        let Source::Hugetlb(size) = asked else { return Err(Error::NotHugetlb { asked }) };
        let options = self.0.source(Source::Hugetlb(size)).chosen_for_runs().mappable();
        let contig = options.build(len)?;
        // Its pages are a file's, as was asked for.
        let file = contig.file().map(Arc::clone).ok_or(Error::ZeroLength)?;
        let state = State::new(contig.runs(), size.bytes().pages_down(page_size()))?;
        Ok(StandingPool(Arc::new(Inner { contig, file, size, state: Mutex::new(state) })))
    }
}

impl StandingPool {
    /// Sets aside `len`, rounded up to the smallest huge pages.
    ///
    /// # Errors
    /// As [`StandingOptions::build`].
    pub fn new(len: Bytes) -> Result<Self, Error> {
        Self::options().build(len)
    }

    /// Begins to say what is set aside; [`StandingOptions::build`] has it.
    pub fn options() -> StandingOptions {
        StandingOptions(Contig::options())
    }

    /// The memory: its length, its runs and what they rest on, held or not.
    #[must_use]
    pub fn contig(&self) -> &Contig {
        &self.0.contig
    }

    /// The longest run that can be had now.
    ///
    /// # Errors
    /// In a forked child.
    pub fn largest_free_run(&self) -> Result<Pages, Error> {
        Ok(self.0.state()?.largest())
    }

    /// Pages that nobody holds.
    ///
    /// # Errors
    /// In a forked child.
    pub fn free(&self) -> Result<Pages, Error> {
        Ok(self.0.state()?.free_pages())
    }

    /// A contiguous run of `len`, rounded up to base pages, of the mapping that is there already.
    ///
    /// # Errors
    /// [`Error::NotContiguous`] with the longest run there is, [`Error::ZeroLength`]; in a forked
    /// child.
    pub fn take(&self, len: Bytes) -> Result<Piece, Error> {
        let pages = len.pages_up(page_size());
        self.piece(pages, Pages::new(1), len)
    }

    /// A contiguous run of `len`, rounded up to huge pages, in a mapping of its own.
    ///
    /// # Errors
    /// As [`StandingPool::take`]; [`Error::NotAligned`] where a run is long enough but no huge page
    /// of it is whole; and what mmap(2) refuses.
    pub fn map(&self, len: Bytes) -> Result<Window, Error> {
        let inner = &self.0;
        let grain = inner.size.bytes().pages_down(page_size());
        let pages = Pages::new(len.pages_up(inner.size).get().saturating_mul(grain.get()));
        let piece = self.piece(pages, grain, len)?;
        let offset = piece.offset();
        let mapping = Mapping::window(inner.file.as_file(), offset, piece.len(), inner.size)?;
        Ok(Window { mapping, piece })
    }

    fn piece(&self, pages: Pages, align: Pages, wanted: Bytes) -> Result<Piece, Error> {
        if wanted == Bytes::ZERO {
            return Err(Error::ZeroLength);
        }
        let mut state = self.0.state()?;
        if let Some(pages) = state.take(pages, align) {
            return Ok(Piece { pool: Arc::clone(&self.0), pages });
        }
        let (longest, align) = (state.largest().bytes(page_size()), align.bytes(page_size()));
        Err(match pages <= state.largest() {
            true => Error::NotAligned { wanted, align, longest },
            false => Error::NotContiguous { wanted, longest, tried: None },
        })
    }
}

impl Inner {
    /// The state, locked; a child of a fork may find the lock held for ever, and does not look.
    fn state(&self) -> Result<MutexGuard<'_, State>, Error> {
        if self.contig.mapping.is_lost_by_fork() {
            let gone = "not inherited by a forked child";
            let source = std::io::Error::new(std::io::ErrorKind::NotFound, gone);
            let subject = format!("{:#x}", self.contig.mapping.addr());
            return Err(OsError::new("standing pool", subject, source).into());
        }
        Ok(lock(&self.state))
    }
}

/// A run of a standing pool, given back when this is dropped. Contents are unspecified.
#[derive(Debug)]
pub struct Piece {
    pool: Arc<Inner>,
    pages: Extent,
}

impl Piece {
    fn offset(&self) -> Bytes {
        Pages::new(self.pages.start()).bytes(page_size())
    }

    /// Bytes: what was asked for, rounded up to pages.
    #[must_use]
    pub fn len(&self) -> Bytes {
        Pages::new(self.pages.len()).bytes(page_size())
    }

    /// The first address, in the mapping that all pieces share.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.pool.contig.mapping.addr() + self.offset().as_usize()
    }

    /// The first byte. What is done through the pointer is the caller's to order and to bound.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.pool.contig.mapping.as_ptr().wrapping_add(self.offset().as_usize())
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If `offset + buf.len()` is beyond the end, or in a forked child.
    pub fn read(&self, offset: Bytes, buf: &mut [u8]) {
        self.pool.contig.mapping.read(self.checked(offset, buf.len()), buf);
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If `offset + bytes.len()` is beyond the end, or in a forked child.
    pub fn write(&self, offset: Bytes, bytes: &[u8]) {
        self.pool.contig.mapping.write(self.checked(offset, bytes.len()), bytes);
    }

    /// Sets all bytes to zero.
    ///
    /// # Panics
    /// In a forked child.
    pub fn zero(&self) {
        self.pool.contig.mapping.zero(self.offset(), self.len());
    }

    fn checked(&self, offset: Bytes, count: usize) -> Bytes {
        let end = offset.checked_add(Bytes::new(count as u64));
        let (from, len) = (offset.get(), self.len());
        assert!(end.is_some_and(|end| end <= len), "{count} bytes at {from:#x} of {len}");
        self.offset() + offset
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // In a child the lock may be held for ever, and the positions are the parent's.
        if let Ok(mut state) = self.pool.state() {
            state.give_back(self.pages);
        }
    }
}

/// A run of a standing pool in a mapping of its own, which goes when this is dropped.
#[derive(Debug)]
pub struct Window {
    // Unmapped before the run is given back.
    mapping: Mapping,
    piece: Piece,
}

impl Window {
    /// The bytes. They are not in a forked child.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The same bytes in the mapping that all pieces share.
    #[must_use]
    pub fn piece(&self) -> &Piece {
        &self.piece
    }
}

#[cfg(test)]
mod tests;
