//! [`Footing`] describes the memory under a reserve.

use super::error::ReserveError;
use super::memory::Memory;
use super::{Reserve, ReserveCore};
use crate::contig::{Certificate, Drift, HeldBy, Location, Node, Source};
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

/// [`Footing`] sums up the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footing {
    /// Source of the memory; [`Source::Divided`] if its parts differ.
    pub source: Source,
    /// Mechanism that keeps pages in their frames; [`HeldBy::Nothing`] if the memory's parts
    /// differ.
    pub held_by: HeldBy,
    /// Length in bytes.
    pub len: Bytes,
}

impl ReserveCore {
    pub(super) fn locate(&self, offset: Bytes) -> Option<Location> {
        let contig = self.lent().frames().contig();
        let fixed = || contig.query(contig.mapping().addr().checked_add(offset.as_usize())?);
        self.memory.as_ref().map_or_else(fixed, |memory| memory.locate(offset))
    }

    pub(super) fn footing(&self) -> Footing {
        let contig = self.lent().frames().contig();
        let (source, held_by, len) = (contig.source(), contig.held_by(), contig.len());
        self.memory.as_ref().map_or(Footing { source, held_by, len }, Memory::footing)
    }

    pub(super) fn nodes(&self) -> Result<Vec<(Extent, Node)>, OsError> {
        let teller = self.busy.near.teller();
        let fixed = || (teller.pages)(self.lent().frames().contig());
        self.memory.as_ref().map_or_else(fixed, |memory| memory.nodes_with(&[], teller))
    }
}

impl Reserve {
    /// Returns the number of pages with memory; in a forked child, the number when the reserve was
    /// built.
    #[must_use]
    pub fn len(&self) -> Pages {
        let memory = self.inner.get().ok().and_then(|inner| inner.memory.as_ref());
        let made = || self.contig.len().pages_down(page_size());
        memory.map_or_else(made, Memory::present)
    }

    /// Returns the extents of pages with memory, in order. Only a reserve with
    /// [room](super::ReserveOptions::room) can have several.
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn present(&self) -> Result<Vec<Extent>, ReserveError> {
        let memory = self.inner.get()?.memory.as_ref();
        let whole = || Extent::new(0, self.len().get()).into_iter().collect();
        Ok(memory.map_or_else(whole, Memory::extents))
    }

    /// Returns the greatest possible length; see
    /// [`ReserveOptions::room`](super::ReserveOptions::room). In a forked child returns the length
    /// when the reserve was built.
    #[must_use]
    pub fn room(&self) -> Bytes {
        let memory = self.inner.get().ok().and_then(|inner| inner.memory.as_ref());
        memory.map_or(self.contig.len(), Memory::room)
    }

    /// Returns the physical runs by position, with their source and proof.
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn certificate(&self) -> Result<Certificate, ReserveError> {
        let inner = self.inner.get()?;
        let (memory, teller) = (inner.memory.as_ref(), inner.busy.near.teller());
        let fixed = || self.contig.certificate();
        Ok(memory.map_or_else(fixed, |memory| memory.certificate(teller)))
    }

    /// Returns the positions with memory and their NUMA nodes, in order. Neighbours on one node are
    /// one entry. Pages that other processes have may be missing. Cost: as
    /// [`Contig::nodes`](crate::contig::Contig::nodes), for each part that was added.
    ///
    /// # Errors
    /// [`ReserveError::Forked`], and [`ReserveError::Os`] if the kernel refuses the question.
    pub fn nodes(&self) -> Result<Vec<(Extent, Node)>, ReserveError> {
        Ok(self.inner.get()?.nodes()?)
    }

    /// Returns a summary of the present memory.
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn footing(&self) -> Result<Footing, ReserveError> {
        Ok(self.inner.get()?.footing())
    }

    /// Returns the physical place of the byte at `offset`; `None` if no memory is there.
    ///
    /// # Errors
    /// [`ReserveError::Forked`].
    pub fn locate(&self, offset: Bytes) -> Result<Option<Location>, ReserveError> {
        Ok(self.inner.get()?.locate(offset))
    }

    /// Reads the page frames again, and returns the pages that moved; see
    /// [`Contig::verify`](crate::contig::Contig::verify).
    ///
    /// # Errors
    /// [`ReserveError::Forked`], and [`ReserveError::Os`] if the frames cannot be read.
    pub fn verify(&self) -> Result<Vec<Drift>, ReserveError> {
        let memory = self.inner.get()?.memory.as_ref();
        let all: Result<_, OsError> = memory.map_or_else(|| self.contig.verify(), Memory::verify);
        Ok(all?)
    }
}
