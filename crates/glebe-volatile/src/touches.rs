//! [`Touches`] refills lost pages from a callback when they are touched, in the SIGBUS handler.
//!
//! The handler takes no lock. It zeroes a missing unmarked page, as an unmark does. It does not let
//! the kernel free a refilled page, because a concurrent unmark may just have made the page safe.
//! The region's next mark or drop lets the kernel free the pages that [`Refilled`] notes.
//!
//! # Safety
//! The handler reads `Shared`, its data. The watch is dropped first, which waits for handlers. The
//! handler writes only missing pages.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;

use super::marks::Bitmap;
use super::Error;
use glebe_os::extent::Extent;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::sigbus::{fill, Decision, Handler, Watch};

/// Supplies the contents of a lost page: returns the address of `len` bytes, or null for a real
/// SIGBUS. `offset` is in bytes from the region's start; `data` is from
/// [`Options::on_lost`](super::Options::on_lost). Unreadable bytes count as null.
pub type Refill = unsafe extern "C" fn(offset: u64, len: usize, data: *const ()) -> *const u8;

#[derive(Clone, Copy, Debug)]
pub(super) struct OnLost {
    pub(super) refill: Refill,
    pub(super) data: *const (),
}

// SAFETY: only the callback gets the data, which `Options::on_lost` allows on any thread.
unsafe impl Send for OnLost {}
// SAFETY: as above.
unsafe impl Sync for OnLost {}

#[derive(Debug)]
struct Shared {
    base: usize,
    page: usize,
    marked: Arc<Bitmap>,
    refilled: Arc<Refilled>,
    /// Number of the userfaultfd; changes in a child.
    descriptor: Arc<MappedWord>,
    on_lost: OnLost,
}

#[derive(Debug)]
pub(super) struct Touches {
    _watch: Watch,
    shared: Box<Shared>,
}

impl Touches {
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
        // SAFETY: `shared` stays in place and is freed after the watch. `on_touch` only makes
        // system calls and runs the callback, which must be safe in a handler.
        let watch = unsafe { handler.watch(range, on_touch, data) }?;
        Ok(Self { _watch: watch, shared })
    }

    pub(super) fn refilled(&self) -> Arc<Refilled> {
        Arc::clone(&self.shared.refilled)
    }
}

unsafe extern "C" fn on_touch(addr: usize, data: *const ()) -> Decision {
    // SAFETY: `data` is the `Shared` of `Touches::of`, which outlives the watch.
    let shared = unsafe { &*data.cast::<Shared>() };
    let (base, page) = (shared.base, shared.page);
    let number = addr.wrapping_sub(base) / page;
    let at = base.wrapping_add(number.wrapping_mul(page));
    let descriptor = shared.descriptor.load(Ordering::Acquire) as RawFd;
    let filled = if !shared.marked.get(number as u64) {
        // SAFETY: the call writes only a missing page, to which no reference can exist.
        unsafe { fill::zero(descriptor, at, page, page) }
    } else {
        let OnLost { refill, data } = shared.on_lost;
        // SAFETY: the caller of `Options::on_lost` allows this call.
        let from = unsafe { refill((at - base) as u64, page, data) };
        if from.is_null() {
            return Decision::Pass;
        }
        // SAFETY: the call writes only a missing page; the kernel checks the source.
        let filled = unsafe { fill::copy(descriptor, at, from, page, page) };
        if filled.is_ok() {
            shared.refilled.note(number as u64);
        }
        filled
    };
    if filled.is_ok() {
        Decision::Resume
    } else {
        Decision::Pass
    }
}

/// The handler sets a bit, then `any`. Readers clear `any`, then read the bits, so they miss none.
#[derive(Debug)]
pub(super) struct Refilled {
    bits: Bitmap,
    pages: u64,
    any: MappedWord,
}

impl Refilled {
    fn new(pages: u64) -> Self {
        Self { bits: Bitmap::new(pages), pages, any: MappedWord::new(0) }
    }

    fn note(&self, page: u64) {
        Extent::new(page, 1).into_iter().for_each(|page| self.bits.set(page));
        self.any.store(1, Ordering::Release);
    }

    #[inline]
    pub(super) fn forget(&self, pages: Extent) {
        if self.any.load(Ordering::Relaxed) != 0 {
            self.bits.clear(pages);
        }
    }

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

    pub(super) fn put_back(&self, runs: &[Extent]) {
        runs.iter().flat_map(|run| run.start()..run.end()).for_each(|page| self.note(page));
    }
}

#[cfg(test)]
mod tests;
