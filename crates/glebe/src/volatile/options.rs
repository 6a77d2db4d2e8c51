//! [`Options`]: what a region is to be like, and how it comes to be: the mapping is brought into
//! the state that the engine starts from.
//!
//! # Safety
//! Memory of the caller's is taken at the caller's word.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::adopted::Adopted;
use super::caps::Caps;
use super::engine::Backend;
use super::marks::{Bitmap, Marks};
use super::state::{Locked, State};
use super::stats::Counts;
use super::touches::{OnLost, Refill, Touches};
use super::unmarks::Calls;
use super::{fork, self_test, Engine, Error, Refusal, Region};
use crate::extent::Extent;
use crate::mapping::{Mapping, Visibility};
use crate::sync::RwLock;
use crate::sys::{commit, madvise, page_size};
use crate::units::{Bytes, PageSize};

/// What a [`Region`] is to be like; from [`Region::options`].
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until the region is made"]
pub struct Options {
    pub(super) engine: Option<Engine>,
    pub(super) huge: bool,
    pub(super) cap: Option<Bytes>,
    pub(super) max_age: Option<Duration>,
    pub(super) without_scan: bool,
    pub(super) on_lost: Option<OnLost>,
}

impl Options {
    /// This engine or an error, instead of *scan* where the machine has it, else *tag*.
    pub fn engine(self, engine: Engine) -> Self {
        Self { engine: Some(engine), ..self }
    }

    /// Whether the memory is in transparent huge pages, which are then marked and lost whole. All
    /// of it is populated when the region is made.
    pub fn huge(self, huge: bool) -> Self {
        Self { huge, ..self }
    }

    /// At most so much memory is held by what is marked: more of it is dropped after each mark,
    /// the oldest of the lowest priority first.
    pub fn cap(self, cap: Bytes) -> Self {
        Self { cap: Some(cap), ..self }
    }

    /// What has been marked so long is dropped at the next mark of new memory in the region.
    /// Nothing is dropped between marks: a region that marks nothing more keeps what it has
    /// marked until it is unmarked, or the kernel takes it.
    pub fn max_age(self, age: Duration) -> Self {
        Self { max_age: Some(age), ..self }
    }

    /// Whether to work as on a kernel without `PAGEMAP_SCAN` (before Linux 6.7). For tests.
    #[doc(hidden)]
    pub fn without_pagemap_scan(self, without: bool) -> Self {
        Self { without_scan: without, ..self }
    }

    /// Has `refill` give the contents of a marked page that is touched after it was lost; the touch
    /// is then made again. Such a page counts as kept at the next unmark. The kernel has no right
    /// to it, and caps do not count it, until the region's next [`Region::mark`] or
    /// [`Region::drop_now`], of whatever range: then it counts as marked just then. An unmark
    /// under way at that time may tell it lost, and it holds what was given and not zeros. With the
    /// *tag* engine the callback is never called.
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
    pub unsafe fn on_lost(self, refill: Refill, data: *const ()) -> Self {
        Self { on_lost: Some(OnLost { refill, data }), ..self }
    }

    /// A region of its own memory: `len` bytes, rounded up to whole granules, all zeros.
    ///
    /// # Errors
    /// [`Error::Empty`] for a length of zero, [`Error::ZeroCap`], [`Refusal::Locked`] where the
    /// process locks all its memory, [`Error::SelfTest`], [`Error::HandlerCovered`], or what the
    /// kernel refuses: memory, or the engine that was asked for.
    pub fn build(self, len: Bytes) -> Result<Region, Error> {
        self.check()?;
        if len == Bytes::ZERO {
            return Err(Error::Empty);
        }
        let page = page_size();
        let huge = self.huge.then(madvise::transparent_huge_page).transpose()?;
        let grain = huge.unwrap_or(page);
        let whole = len.pages_up(grain).checked_bytes(grain);
        let too_long = Error::Beyond { end: len, limit: Bytes::new(usize::MAX as u64) };
        let whole = whole.ok_or(too_long)?;
        // All of the region would be populated before the kernel refuses to take pages of it.
        if let Some(addr) = commit::locked_page()? {
            return Err(Refusal::Locked { at: addr }.into());
        }
        let mapping = Mapping::aligned(whole, grain, Visibility::ORDINARY)?;
        let backend = self.prepared(&mapping, huge)?;
        self.region(mapping, grain, backend, None)
    }

    /// A region of the caller's memory: the whole base pages of `len` bytes at `addr`, whose
    /// contents stay. [`Options::huge`] means nothing here. At its end what is marked is unmarked,
    /// without a word about what was lost.
    ///
    /// What is mapped over a marked part meanwhile is not volatile, and nothing of it is lost or
    /// told lost, with the *scan* engine. The *tag* engine cannot see a new mapping: it sees
    /// words that it did not write, leaves them, and tells these pages lost; [`Region::drop_now`]
    /// and caps drop them. In a child a new mapping is taken for what was there before.
    ///
    /// The granule is a base page, in huge pages too: a mark of part of a huge page makes the
    /// kernel split it, and of a whole one that is marked at once all is lost, or kept by a write
    /// or an unmark of any of it, together. What was lost comes back as base pages.
    ///
    /// # Errors
    /// [`Error::Empty`] where there is no whole page; [`Error::Beyond`]; [`Error::Unsuitable`] for
    /// memory that cannot be volatile; [`Error::ZeroCap`], [`Error::SelfTest`],
    /// [`Error::HandlerCovered`], or what the kernel refuses.
    ///
    /// # Safety
    /// The memory stays mapped, or is mapped anew, and can be read and written as long as the
    /// region lives; no other region is of it. No reference to a page exists while it is marked,
    /// and none to a page that the region's calls read or write; the contents of marked pages may
    /// vanish.
    pub unsafe fn build_over(self, addr: *mut u8, len: Bytes) -> Result<Region, Error> {
        self.check()?;
        let page = page_size();
        let (adopted, len) = Adopted::new(addr.expose_provenance(), len, page)?;
        let pages = len.pages_down(page).get();
        let backend = {
            let (base, is_own) = (adopted.base(), false);
            Backend::new(self.engine, base, pages, None, is_own, self.without_scan)?
        };
        // SAFETY: passed on from the caller.
        let mapping = unsafe { Mapping::borrowed(adopted.base(), len) };
        self.region(mapping, page, backend, Some(adopted))
    }

    /// What any region needs.
    fn check(&self) -> Result<(), Error> {
        if self.cap == Some(Bytes::ZERO) {
            return Err(Error::ZeroCap);
        }
        fork::follow_forks()?;
        self_test::passed()
    }

    fn region(
        self,
        mapping: Mapping,
        grain: PageSize,
        backend: Backend,
        adopted: Option<Adopted>,
    ) -> Result<Region, Error> {
        let page = page_size();
        let pages = mapping.len().pages_down(page).get();
        let engine = backend.engine();
        let marked = Arc::new(Bitmap::new(pages));
        let touches = match (self.on_lost, &backend) {
            (Some(on_lost), Backend::Scan(scan)) => {
                Some(Touches::of(&mapping, &marked, scan.number(), on_lost)?)
            }
            _ => None,
        };
        let state = State {
            marks: Marks::new(self.cap.is_some() || self.max_age.is_some()),
            refilled: touches.as_ref().map(Touches::refilled),
            backend,
            adopted,
            all: Extent::new(0, pages).ok_or(Error::Empty)?,
            is_unarmed: false,
            swap: true,
            swap_known_for: 0,
        };
        let locked = Arc::new(Locked { state: RwLock::new(state), calls: Calls::new() });
        Ok(Region {
            page,
            granule: grain.bytes(),
            engine,
            _touches: touches,
            marked,
            _entry: fork::enter(&locked),
            locked,
            counts: Counts::new(),
            made: Instant::now(),
            caps: Caps::new(&self),
            mapping,
        })
    }

    /// Brings fresh memory into the state that the engine starts from.
    fn prepared(&self, mapping: &Mapping, huge: Option<PageSize>) -> Result<Backend, Error> {
        let base = mapping.addr();
        let pages = mapping.len().pages_down(page_size()).get();
        let backend = Backend::new(self.engine, base, pages, huge, true, self.without_scan)?;
        // Refused where the process locks its memory; there is nothing to lose yet.
        mapping.offer().map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => Error::from(Refusal::Locked { at: base }),
            _ => error.into(),
        })?;
        if huge.is_some() {
            mapping.prefer_huge_pages()?;
            mapping.populate(Bytes::ZERO, mapping.len())?;
        }
        // A huge page made of marked pages would not be marked. Kernels without them refuse.
        let refused = mapping.refuse_huge_pages();
        if huge.is_some() {
            refused?;
        }
        if let (Backend::Scan(scan), Some(all)) = (&backend, Extent::new(0, pages)) {
            scan.arm(all)?;
            scan.fill_holes(all)?;
        }
        Ok(backend)
    }
}
