//! Memory that lies in a [`Window`]: moved in, and given back in parts.
//!
//! Lengths and offsets are bytes from the start of the memory.

use super::{runs, Contig, Drift, Run, Source};
use crate::error::OsError;
use crate::mapping::Window;
use crate::sys::io_uring::buffer_len;
use crate::units::{Bytes, PageSize};

impl Contig {
    /// Moves the memory to `offset` of a window, whose addresses it has from then on.
    ///
    /// # Errors
    /// As [`Window::take_in`]; the memory is given back then.
    pub(crate) fn moved_into(self, window: &Window, offset: Bytes) -> Result<Self, OsError> {
        let mapping = window.take_in(offset, self.mapping)?;
        Ok(Self { mapping, ..self })
    }

    /// The whole pages in which the memory can be given back: the largest of a pool, or what is
    /// pinned as one. `None` where it cannot be given back in parts.
    pub(crate) fn unit(&self) -> Option<PageSize> {
        let page = |source| match source {
            Source::DmaHeap => None,
            source => Some(Source::grain(source)),
        };
        let pinned = self.pin.as_ref().map(|_| buffer_len(self.len()).get());
        let mut pages = self.parts.iter().map(|part| page(part.source));
        let largest =
            pages.try_fold(crate::sys::page_size(), |most, page| Some(most.max(page?)))?;
        PageSize::new(largest.bytes().get().max(pinned.unwrap_or(0)))
    }

    /// Gives up the long-term pin, if there is one, of whole [units](Contig::unit); or, to `keep`
    /// them, pins again what was unpinned and is still there.
    ///
    /// # Errors
    /// What io_uring_register(2) refuses: kernels before 5.13, or a limit on locked memory. Then
    /// all is as before.
    pub(crate) fn repin(&self, offset: Bytes, len: Bytes, keep: bool) -> Result<(), OsError> {
        let Some(pin) = &self.pin else { return Ok(()) };
        let each = buffer_len(self.len());
        let (from, to) = (offset.get() / each.get(), (offset + len).get().div_ceil(each.get()));
        let at = keep.then(|| self.mapping.as_ptr().wrapping_add(offset.as_usize()));
        pin.ring.change(from as usize..to as usize, at, (each, len)).map_err(|source| {
            OsError::new("io_uring_register", format!("{len} at {offset}, keep {keep}"), source)
        })
    }

    /// As [`Contig::verify`], of the runs that are left.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn verify_runs(&self, left: &[Run]) -> Result<Vec<Drift>, OsError> {
        runs::drift(&self.mapping, left, self.source().grain())
    }
}
