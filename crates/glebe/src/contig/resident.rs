//! Memory that lies in a [`Window`]: had again as it was had before, moved in, and given back in
//! parts.
//!
//! Lengths and offsets are bytes from the start of the memory.

use std::path::PathBuf;
use std::time::Duration;

use super::options::{Options, Plan, SourceChoice};
use super::{certificate, runs, Contig, Drift, Location, Node, Run, Source};
use crate::error::OsError;
use crate::mapping::Window;
use crate::sys::io_uring::buffer_len;
use crate::units::{Bytes, PageSize};

/// Wishes that can be made again: all but an address, an alignment of it, and who is told of the
/// progress.
#[derive(Debug)]
pub(crate) struct Wishes {
    source: SourceChoice,
    plan: Plan,
    required: Option<Bytes>,
    preferred: Option<Bytes>,
    search: Option<Bytes>,
    search_time: Option<Duration>,
    block_patience: Duration,
    in_order: bool,
    for_runs: bool,
    node: Option<Node>,
    pin: Option<bool>,
    dma_heap: Option<PathBuf>,
    threads: usize,
    grow_pool: Option<bool>,
    lock_patience: Duration,
    mappable: bool,
}

impl Options<'_> {
    /// What can be wished for again.
    pub(crate) fn wishes(&self) -> Wishes {
        Wishes {
            source: self.source,
            plan: self.plan,
            required: self.required,
            preferred: self.preferred,
            search: self.search,
            search_time: self.search_time,
            block_patience: self.block_patience,
            in_order: self.in_order,
            for_runs: self.for_runs,
            node: self.node,
            pin: self.pin,
            dma_heap: self.dma_heap.clone(),
            threads: self.threads,
            grow_pool: self.grow_pool,
            lock_patience: self.lock_patience,
            mappable: self.mappable,
        }
    }
}

impl Wishes {
    /// The options that ask for them of `len`, which is no less than a run can be.
    pub(crate) fn options(&self, len: Bytes) -> Options<'static> {
        Options {
            source: self.source,
            plan: self.plan,
            required: self.required.map(|run| run.min(len)),
            preferred: self.preferred.map(|run| run.min(len)),
            search: self.search,
            search_time: self.search_time,
            block_patience: self.block_patience,
            in_order: self.in_order,
            for_runs: self.for_runs,
            node: self.node,
            pin: self.pin,
            dma_heap: self.dma_heap.clone(),
            threads: self.threads,
            grow_pool: self.grow_pool,
            lock_patience: self.lock_patience,
            mappable: self.mappable,
            ..Options::new()
        }
    }
}

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

    /// Gives up the long-term pin, if there is one, of whole [units](Contig::unit).
    ///
    /// # Errors
    /// What io_uring_register(2) refuses: kernels before 5.13. Then all is pinned as before.
    pub(crate) fn unpin(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        self.repin(offset, len, false)
    }

    /// Pins again what was unpinned and is still there.
    ///
    /// # Errors
    /// What io_uring_register(2) refuses: a limit on locked memory.
    pub(crate) fn pin_again(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        self.repin(offset, len, true)
    }

    fn repin(&self, offset: Bytes, len: Bytes, keep: bool) -> Result<(), OsError> {
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

/// What is known of the byte at `offset` of memory of `len`; `None` beyond its end.
pub(crate) fn locate(runs: &[Run], len: Bytes, offset: Bytes) -> Option<Location> {
    certificate::locate(runs, len, offset)
}
