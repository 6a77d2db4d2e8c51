//! [`Registrable`] is memory that keeps its pages. A registration shares it.

use std::sync::Arc;

use super::error::CudaError;
use crate::contig::Contig;
use crate::reserve::{KeptLen, Request, Reserve, ReserveError};
use glebe_os::extent::Extent;
use glebe_os::internal::sys::page_size;
use glebe_os::units::Pages;

/// Memory that can be registered. Other memory of glebe may lose its pages.
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

/// Memory that stays mapped, with its length, until it is dropped.
#[derive(Debug)]
pub(super) struct Kept {
    memory: Registrable,
    _len: Option<KeptLen>,
}

impl Kept {
    /// Waits for a resize under way.
    pub(super) fn new(memory: Registrable) -> Result<Self, CudaError> {
        let _len = match &memory {
            Registrable::Reserve(reserve) => Some(reserve.keep_len()?),
            Registrable::Contig(contig) if contig.mapping().is_lost_by_fork() => {
                return Err(CudaError::Forked);
            }
            Registrable::Contig(_) => None,
        };
        Ok(Self { memory, _len })
    }

    fn contig(&self) -> &Contig {
        match &self.memory {
            Registrable::Reserve(reserve) => reserve.contig(),
            Registrable::Contig(contig) => contig,
        }
    }

    /// Returns the address of position 0.
    pub(super) fn base(&self) -> usize {
        self.contig().mapping().addr()
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

    /// Returns the first position, below `align`, of blocks that are aligned to `align` pages.
    /// Alignment is about frames, so the function takes such a block.
    pub(super) fn phase(&self, align: u64) -> u64 {
        let Registrable::Reserve(reserve) = &self.memory else { return 0 };
        let request = Request::new(Pages::new(1)).align(Pages::new(align)).any();
        reserve.alloc(request).map_or(0, |block| block.extent().start() % align)
    }
}
