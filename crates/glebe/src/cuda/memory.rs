//! [`Registrable`] is memory that keeps its pages. A registration shares it.

use std::sync::Arc;

use super::error::CudaError;
use crate::contig::internal::{begin_registration, end_registration};
use crate::contig::Contig;
use crate::reserve::{KeptLen, Reserve, ReserveError};
use glebe_os::extent::Extent;
use glebe_os::internal::sys::page_size;

/// Memory that can be registered. Other memory of glebe may lose its pages.
///
/// Name the source, for example [`Source::Thp`](crate::contig::Source::Thp). The default first
/// tries the blocks of a [`bank`](crate::contig::bank), which are movable memory, and a
/// registration moves pages out of that.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Registrable {
    /// A reserve, which neither grows nor shrinks meanwhile.
    Reserve(Reserve),
    /// Contiguous memory.
    Contig(Arc<Contig>),
}

impl From<&Reserve> for Registrable {
    fn from(reserve: &Reserve) -> Self {
        Self::Reserve(reserve.clone())
    }
}

impl From<&Arc<Contig>> for Registrable {
    fn from(contig: &Arc<Contig>) -> Self {
        Self::Contig(Arc::clone(contig))
    }
}

impl Registrable {
    /// Returns the memory. A reserve was built on it.
    fn contig(&self) -> &Contig {
        match self {
            Self::Reserve(reserve) => reserve.contig(),
            Self::Contig(contig) => contig,
        }
    }
}

/// Memory that stays mapped, with its length, until it is dropped. Nobody else registers it.
#[derive(Debug)]
pub(super) struct KeptMemory {
    memory: Registrable,
    _len: Option<KeptLen>,
}

impl KeptMemory {
    /// Waits for a resize under way.
    pub(super) fn new(memory: Registrable) -> Result<Self, CudaError> {
        let len = match &memory {
            Registrable::Reserve(reserve) => Some(reserve.keep_len()?),
            Registrable::Contig(contig) if contig.mapping().is_lost_by_fork() => {
                return Err(CudaError::Forked);
            }
            Registrable::Contig(_) => None,
        };
        if !begin_registration(memory.contig()) {
            return Err(CudaError::Registered);
        }
        Ok(Self { memory, _len: len })
    }

    /// Returns the address of position 0.
    pub(super) fn base(&self) -> usize {
        self.memory.contig().mapping().addr()
    }

    pub(super) fn present(&self) -> Result<Vec<Extent>, ReserveError> {
        match &self.memory {
            Registrable::Reserve(reserve) => reserve.present(),
            Registrable::Contig(contig) => {
                let pages = contig.len().pages_down(page_size());
                Ok(Extent::new(0, pages.get()).into_iter().collect())
            }
        }
    }

    /// Returns the position, below `piece` pages, of the first border of pieces: there, aligned
    /// blocks begin.
    pub(super) fn first_border(&self, piece: u64) -> u64 {
        match &self.memory {
            Registrable::Reserve(reserve) => reserve.first_aligned(piece),
            Registrable::Contig(_) => 0,
        }
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        end_registration(self.memory.contig());
    }
}
