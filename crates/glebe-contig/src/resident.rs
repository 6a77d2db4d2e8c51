//! Moves memory into a [`Window`] (a reserve's addresses), and unpins parts to be given back.

use super::{runs, Contig, Drift, Run, Source};
use glebe_os::error::OsError;
use glebe_os::internal::mapping::Window;
use glebe_os::internal::sys::memory::io_uring::buffer_len;
use glebe_os::units::{Bytes, PageSize};

/// Moves the memory to `offset` of a window.
///
/// # Errors
/// See [`Window::take_in`]; the memory is then freed.
pub fn moved_into(contig: Contig, window: &Window, offset: Bytes) -> Result<Contig, OsError> {
    let mapping = window.take_in(offset, contig.mapping)?;
    Ok(Contig { mapping, ..contig })
}

/// Returns the granularity of giving memory back: the largest page, a brick, or the pin's
/// io_uring buffer, whichever is longest. `None` for a dma-heap.
pub fn return_unit(contig: &Contig) -> Option<PageSize> {
    let page = |source| match source {
        Source::DmaHeap => None,
        source => Some(Source::grain(source)),
    };
    let pinned = contig.pin.as_ref().map(|_| buffer_len(contig.len()).get());
    let mut pages = contig.parts.iter().map(|part| page(part.source));
    let brick = contig.mapping.bricks().map(|bricks| bricks.size().each);
    let least = brick.unwrap_or(glebe_os::internal::sys::page_size());
    let largest = pages.try_fold(least, |most, page| Some(most.max(page?)))?;
    PageSize::new(largest.bytes().get().max(pinned.unwrap_or(0)))
}

/// Unpins whole [units](return_unit); with `keep`, pins the memory now in their place.
///
/// # Errors
/// io_uring_register(2) fails before Linux 5.13, or at RLIMIT_MEMLOCK. Nothing has changed
/// then.
pub fn repin(contig: &Contig, offset: Bytes, len: Bytes, keep: bool) -> Result<(), OsError> {
    let Some(pin) = &contig.pin else { return Ok(()) };
    let each = buffer_len(contig.len());
    let (from, to) = (offset.get() / each.get(), (offset + len).get().div_ceil(each.get()));
    let at = keep.then(|| contig.mapping.as_ptr().wrapping_add(offset.as_usize()));
    pin.ring.change(from as usize..to as usize, at, (each, len)).map_err(|source| {
        OsError::new("io_uring_register", format!("{len} at {offset}, keep {keep}"), source)
    })
}

/// Compares the remaining runs with their frames, like [`Contig::verify`].
///
/// # Errors
/// See [`Contig::verify`].
pub fn verify_runs(contig: &Contig, left: &[Run]) -> Result<Vec<Drift>, OsError> {
    runs::drift(&contig.mapping, left, contig.source().grain())
}
