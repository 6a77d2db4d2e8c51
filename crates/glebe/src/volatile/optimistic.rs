//! Optimistic access: marked memory is used as it is, and its loss is met where it shows.
//!
//! [`Region::optimistic`] gives a guard that reads marked memory without a system call; a lost
//! page is an error. [`Options::on_lost`] has a callback refill a lost page when any instruction
//! touches it, in the SIGBUS handler of [`sigbus`](crate::sys::sigbus), which is installed by
//! these two calls and by nothing else.
//!
//! The handler reads two things of a region without its lock: the bits of the marked pages, and
//! the descriptor that fills holes; and it notes what it has [`refilled`](super::refilled). A hole
//! that is not marked is on its way to zeros (an unmark tells it lost) and gets them from whoever
//! is first. A system call that is given a lost page answers EFAULT, asks nobody, and may have done
//! part of its work; what it is to be given is unmarked first, or held by [`Region::resident`].
//!
//! Cost: a read is a copy and the region's lock, shared; a touch that is refilled, a signal and an
//! ioctl. With the *tag* engine no touch raises a signal and reads are those of
//! [`Region::try_read`].
//!
//! # Safety
//! The handler works on `Shared`, which the watch outlives no more than it may: it is dropped
//! first, and its removal waits for handlers. Only missing pages are written.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;

use super::marks::Bitmap;
use super::refilled::Refilled;
use super::stats::Counter;
use super::{Backend, Error, Options, Region};
use crate::error::OsError;
use crate::mapping::Mapping;
use crate::sync::{MappedWord, Ordering};
use crate::sys::sigbus::{fill, By, Handler, Outcome, Unblocked, Watch};
use crate::sys::{page_size, peek};
use crate::units::Bytes;

/// Gives the contents of a lost page: the address of `len` bytes, or null, and the touch is a real
/// SIGBUS. The offset of the page is from the region's start; the last argument is that of
/// [`Options::on_lost`]. Bytes that are themselves not to be had count as null.
pub type Refill = unsafe extern "C" fn(offset: u64, len: usize, data: *const ()) -> *const u8;

/// A callback and its data.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnLost {
    refill: Refill,
    data: *const (),
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
    _shared: Box<Shared>,
}

impl Touches {
    /// Those of a region, where it has a callback and an engine that raises SIGBUS.
    pub(super) fn of(
        mapping: &Mapping,
        marked: &Arc<Bitmap>,
        refilled: &Arc<Refilled>,
        backend: &Backend,
        options: &Options,
    ) -> Result<Option<Self>, Error> {
        let (Backend::Scan(scan), Some(on_lost)) = (backend, options.on_lost) else {
            return Ok(None);
        };
        let handler = Handler::install()?;
        if !handler.is_first()? {
            return Err(Error::HandlerCovered);
        }
        let base = mapping.addr();
        let page = page_size().bytes().as_usize();
        let descriptor = scan.number();
        let (marked, refilled) = (Arc::clone(marked), Arc::clone(refilled));
        let shared = Box::new(Shared { base, page, marked, refilled, descriptor, on_lost });
        let range = base..base + mapping.len().as_usize();
        let data = ptr::from_ref(&*shared).cast();
        // SAFETY: `shared` stays where it is and is freed after the watch. `on_touch` makes system
        // calls and calls what `Options::on_lost` was promised to be fit for it.
        let watch = unsafe { handler.watch(range, on_touch, data) }?;
        Ok(Some(Self { _watch: watch, _shared: shared }))
    }
}

/// In the signal handler.
unsafe extern "C" fn on_touch(addr: usize, by: By, data: *const ()) -> Outcome {
    // SAFETY: the data of the watch in `Touches::new`, which lives.
    let shared = unsafe { &*data.cast::<Shared>() };
    let (base, page) = (shared.base, shared.page);
    let number = addr.wrapping_sub(base) / page;
    let at = base.wrapping_add(number.wrapping_mul(page));
    let descriptor = shared.descriptor.load(Ordering::Acquire) as RawFd;
    let filled = if !shared.marked.get(number as u64) {
        // SAFETY: only a missing page is written, of which nothing can hold a reference.
        unsafe { fill::zero(descriptor, at, page, page) }
    } else if by == By::Copy {
        return Outcome::Pass; // a read is to be told
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

impl Options {
    /// Has `refill` give the contents of a marked page that is touched after it was lost; the touch
    /// is then made again. Such a page counts as kept at the next unmark. The kernel has no right
    /// to it, and caps do not count it, until the region's next [`Region::mark`] or
    /// [`Region::drop_now`], of whatever range: then it counts as marked just then. An unmark
    /// under way at that time may tell it lost, and
    /// it holds what was given and not zeros. With the *tag* engine the callback is never called.
    ///
    /// The first region with a callback installs the SIGBUS handler, in front of those that the
    /// program has. Where one of the program's was put in front of it since, a region with a
    /// callback is refused ([`Error::HandlerCovered`]): a loss that never reached the callback
    /// would be the end of the process. One that is installed while regions with callbacks live
    /// has to pass on what is not its own; nobody asks whether it does. So a program's own
    /// handlers are best installed first.
    ///
    /// # Safety
    /// While the region lives, and on any thread, `refill` may be called with `data` in a signal
    /// handler: it allocates nothing, takes no lock, does not unwind, touches no page of the region
    /// and returns null or the address of bytes that stay until it is called again on the thread.
    pub unsafe fn on_lost(mut self, refill: Refill, data: *const ()) -> Self {
        self.on_lost = Some(OnLost { refill, data });
        self
    }
}

/// Reads part of a region, marked or not, without asking the kernel first; of one thread.
#[derive(Debug)]
pub struct Optimistic<'a> {
    region: &'a Region,
    range: Range<Bytes>,
    /// None where another handler of the program stands first, or for the other engine.
    handler: Option<Handler>,
    _unblocked: Unblocked,
}

impl Region {
    /// A guard that reads the bytes of `range` at the price of a copy. Installs the SIGBUS handler
    /// the first time, and lets SIGBUS through to the calling thread while it lives.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::Beyond`]; [`Error::Os`] if the handler cannot be installed.
    pub fn optimistic(&self, range: Range<Bytes>) -> Result<Optimistic<'_>, Error> {
        if range.is_empty() {
            return Err(Error::Empty);
        }
        if range.end > self.len() {
            return Err(Error::Beyond { end: range.end, limit: self.len() });
        }
        let handler = Handler::install()?;
        let first = handler.is_first()?;
        let unblocked = handler.unblock();
        Ok(Optimistic {
            region: self,
            range,
            handler: Some(handler).filter(|_| first),
            _unblocked: unblocked,
        })
    }
}

impl Optimistic<'_> {
    /// Bytes that can be read.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> Bytes {
        Bytes::new(self.range.end.get() - self.range.start.get())
    }

    /// Copies out the bytes from `offset` of the guard's range on, if all of them are there. As
    /// [`Region::try_read`] does, but without a system call.
    ///
    /// # Errors
    /// [`Error::Beyond`] the guard's range; [`Error::Purged`] if a page is lost, by its offset in
    /// the *region*: `buf` then holds anything; [`Error::Os`] if the kernel refuses the copy.
    pub fn read(&self, offset: Bytes, buf: &mut [u8]) -> Result<(), Error> {
        let end = offset.checked_add(Bytes::new(buf.len() as u64));
        let end = end.unwrap_or(Bytes::new(u64::MAX));
        if end > self.len() {
            return Err(Error::Beyond { end, limit: self.len() });
        }
        let offset = self.range.start + offset;
        match self.handler {
            Some(handler) => self.region.read_by(handler, offset, buf),
            None => self.region.try_read(offset, buf),
        }
    }
}

impl Region {
    /// As [`Region::try_read`], with the copy that a lost page ends.
    fn read_by(&self, handler: Handler, offset: Bytes, buf: &mut [u8]) -> Result<(), Error> {
        let Some(_) = self.touched(offset, buf.len())? else { return Ok(()) };
        let state = self.shared();
        // The other engine, a child that is not armed: no lost page raises a signal.
        let raises = state
            .as_deref()
            .is_some_and(|state| matches!(state.backend, Backend::Scan(_)) && !state.is_unarmed);
        if !raises {
            drop(state);
            return self.try_read(offset, buf);
        }
        let Some(lost) = copy(handler, self.addr() + offset.as_usize(), buf)? else {
            return Ok(());
        };
        let lost = Bytes::new(lost as u64 - self.addr() as u64).pages_down(self.page);
        self.counts.add(Counter::ReadsLost, 1);
        Err(Error::Purged { offset: lost.bytes(self.page) })
    }
}

/// Copies from `addr`; the address that was lost, if one was.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn copy(handler: Handler, addr: usize, buf: &mut [u8]) -> Result<Option<usize>, OsError> {
    let from = ptr::with_exposed_provenance(addr);
    // SAFETY: the source is in the region, as was checked; the destination is a slice. The guard
    // saw that the handler stands first and lets SIGBUS through.
    match unsafe { handler.try_copy(buf.as_mut_ptr(), from, buf.len()) } {
        Ok(()) => Ok(None),
        Err(lost) if (addr..addr + buf.len()).contains(&lost) => Ok(Some(lost)),
        // The destination itself is memory that can be lost: the kernel tells what is wrong.
        Err(_) => by_call(addr, buf),
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn copy(_: Handler, addr: usize, buf: &mut [u8]) -> Result<Option<usize>, OsError> {
    by_call(addr, buf)
}

/// As `copy`, by a system call.
fn by_call(addr: usize, buf: &mut [u8]) -> Result<Option<usize>, OsError> {
    let copied = peek::peek(addr, buf)?;
    Ok((copied < buf.len()).then_some(addr + copied))
}

#[cfg(test)]
mod tests;
