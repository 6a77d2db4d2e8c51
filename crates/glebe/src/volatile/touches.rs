//! [`Touches`]: lost pages that a callback fills again when an instruction touches them, in the
//! SIGBUS handler of [`sigbus`](crate::sys::sigbus); and [`Refilled`], which pages those were.
//!
//! The handler reads two things of a region without its lock: the bits of the marked pages, and
//! the descriptor that fills holes; and it notes what it has refilled. A hole that is not marked is
//! on its way to zeros (an unmark tells it lost) and gets them from whoever is first. A system call
//! that is given a lost page answers EFAULT, asks nobody, and may have done part of its work.
//!
//! A refilled page is dirty, so the kernel has no right to it, and it may have counted as dropped.
//! The handler can do no more than note it, since it has no lock: an unmark under way might have
//! made the page safe just before. The region's next mark or drop, which holds the lock alone,
//! gives the kernel the right again and counts the page as marked just then.
//!
//! Cost: a touch that is refilled, a signal and an ioctl; a look where nothing was, one load.
//!
//! # Safety
//! The handler works on `Shared`, which the watch outlives no more than it may: it is dropped
//! first, and its removal waits for handlers. Only missing pages are written.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;

use super::marks::Bitmap;
use super::Error;
use crate::extent::Extent;
use crate::mapping::Mapping;
use crate::sync::{MappedWord, Ordering};
use crate::sys::page_size;
use crate::sys::sigbus::{fill, Handler, Outcome, Watch};

/// Gives the contents of a lost page: the address of `len` bytes, or null, and the touch is a real
/// SIGBUS. The offset of the page is from the region's start; the last argument is that of
/// [`Options::on_lost`](super::Options::on_lost). Bytes that are themselves not to be had count as
/// null.
pub type Refill = unsafe extern "C" fn(offset: u64, len: usize, data: *const ()) -> *const u8;

/// A callback and its data.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnLost {
    pub(super) refill: Refill,
    pub(super) data: *const (),
}

// SAFETY: the data is only handed to the callback, and whoever gave both answers for calls on any
// thread.
unsafe impl Send for OnLost {}
// SAFETY: as above.
unsafe impl Sync for OnLost {}

/// What the handler needs to know of a region.
#[derive(Debug)]
struct Shared {
    base: usize,
    page: usize,
    marked: Arc<Bitmap>,
    refilled: Arc<Refilled>,
    /// The userfaultfd; another one in a child.
    descriptor: Arc<MappedWord>,
    on_lost: OnLost,
}

/// Touches of a region's lost pages, refilled while this lives.
#[derive(Debug)]
pub(super) struct Touches {
    /// Dropped before what it uses.
    _watch: Watch,
    shared: Box<Shared>,
}

impl Touches {
    /// Those of a region whose marked pages have a bit in `marked`, and whose holes are filled by
    /// the descriptor.
    pub(super) fn of(
        mapping: &Mapping,
        marked: &Arc<Bitmap>,
        descriptor: Arc<MappedWord>,
        on_lost: OnLost,
    ) -> Result<Self, Error> {
        let handler = Handler::install()?;
        if !handler.is_first()? {
            return Err(Error::HandlerCovered);
        }
        let (base, page) = (mapping.addr(), page_size());
        let refilled = Arc::new(Refilled::new(mapping.len().pages_down(page).get()));
        let page = page.bytes().as_usize();
        let marked = Arc::clone(marked);
        let shared = Box::new(Shared { base, page, marked, refilled, descriptor, on_lost });
        let range = base..base + mapping.len().as_usize();
        let data = ptr::from_ref(&*shared).cast();
        // SAFETY: `shared` stays where it is and is freed after the watch. `on_touch` makes system
        // calls and calls what `Options::on_lost` was promised to be fit for it.
        let watch = unsafe { handler.watch(range, on_touch, data) }?;
        Ok(Self { _watch: watch, shared })
    }

    /// Where the handler notes what it has refilled.
    pub(super) fn refilled(&self) -> Arc<Refilled> {
        Arc::clone(&self.shared.refilled)
    }
}

/// In the signal handler.
unsafe extern "C" fn on_touch(addr: usize, data: *const ()) -> Outcome {
    // SAFETY: the data of the watch in `Touches::of`, which lives.
    let shared = unsafe { &*data.cast::<Shared>() };
    let (base, page) = (shared.base, shared.page);
    let number = addr.wrapping_sub(base) / page;
    let at = base.wrapping_add(number.wrapping_mul(page));
    let descriptor = shared.descriptor.load(Ordering::Acquire) as RawFd;
    let filled = if !shared.marked.get(number as u64) {
        // SAFETY: only a missing page is written, of which nothing can hold a reference.
        unsafe { fill::zero(descriptor, at, page, page) }
    } else {
        let OnLost { refill, data } = shared.on_lost;
        // SAFETY: whoever set the callback answers for its call here.
        let from = unsafe { refill((at - base) as u64, page, data) };
        if from.is_null() {
            return Outcome::Pass;
        }
        // SAFETY: as for zeros; the kernel checks the source.
        let filled = unsafe { fill::copy(descriptor, at, from, page, page) };
        if filled.is_ok() {
            shared.refilled.note(number as u64);
        }
        filled
    };
    if filled.is_ok() {
        Outcome::Resume
    } else {
        Outcome::Pass
    }
}

/// Marked pages that the handler has filled again.
///
/// The handler sets a page's bit and then `any`; the others clear `any` and then read the bits, so
/// that no bit stays unseen for good.
#[derive(Debug)]
pub(super) struct Refilled {
    bits: Bitmap,
    pages: u64,
    any: MappedWord,
}

impl Refilled {
    /// None yet, of a region of `pages`.
    fn new(pages: u64) -> Self {
        Self { bits: Bitmap::new(pages), pages, any: MappedWord::new(0) }
    }

    /// Notes a page, in the signal handler.
    fn note(&self, page: u64) {
        Extent::new(page, 1).into_iter().for_each(|page| self.bits.set(page));
        self.any.store(1, Ordering::Release);
    }

    /// Forgets pages, which are not marked any more.
    #[inline]
    pub(super) fn forget(&self, pages: Extent) {
        if self.any.load(Ordering::Relaxed) != 0 {
            self.bits.clear(pages);
        }
    }

    /// Returns what was noted, and forgets it.
    #[inline]
    pub(super) fn take(&self) -> Vec<Extent> {
        if self.any.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        self.any.swap(0, Ordering::AcqRel);
        let all = Extent::new(0, self.pages);
        let runs = all.map_or(Vec::new(), |all| self.bits.runs_in(all));
        runs.iter().for_each(|run| self.bits.clear(*run));
        runs
    }

    /// Notes runs that were taken.
    pub(super) fn put_back(&self, runs: &[Extent]) {
        runs.iter().flat_map(|run| run.start()..run.end()).for_each(|page| self.note(page));
    }
}

#[cfg(test)]
mod tests;
