//! [`Options`] builds a region.
//!
//! # Safety
//! The caller of [`Options::build_over`] keeps its memory mapped.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::adopted::Adopted;
use super::caps::Caps;
use super::engine::Backend;
use super::marks::{Bitmap, Marks};
use super::state::{Locked, RegionState};
use super::stats::Counts;
use super::touches::{OnLost, Refill, Touches};
use super::unmarks::Calls;
use super::{fork, self_test, Engine, Error, Refusal, Region};
use glebe_os::extent::Extent;
use glebe_os::internal::mapping::{Mapping, Visibility};
use glebe_os::internal::sync::RwLock;
use glebe_os::internal::sys::memory::commit;
use glebe_os::internal::sys::memory::madvise;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, PageSize};

/// The options of a [`Region`].
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
    /// Requires this engine. Default: *scan* if the machine allows it, else *tag*.
    pub fn engine(self, engine: Engine) -> Self {
        Self { engine: Some(engine), ..self }
    }

    /// Uses transparent huge pages as granules, and populates all memory at the build.
    pub fn huge(self, huge: bool) -> Self {
        Self { huge, ..self }
    }

    /// Limits the marked memory that is not dropped. Each mark of unmarked memory drops the excess,
    /// the oldest of the lowest priority first.
    pub fn cap(self, cap: Bytes) -> Self {
        Self { cap: Some(cap), ..self }
    }

    /// Drops memory marked for at least `age`, at the region's next mark of unmarked memory.
    pub fn max_age(self, age: Duration) -> Self {
        Self { max_age: Some(age), ..self }
    }

    /// Makes `refill` supply the contents of a lost marked page when the program touches it; then
    /// the touch is repeated. A system call on the page fails with EFAULT instead. The next unmark
    /// counts the page as kept, but an unmark under way may report it lost. After the region's next
    /// [`Region::mark`] or [`Region::drop_now`], the kernel may free the page again, and caps count
    /// the page. *tag* never calls `refill`.
    ///
    /// The first region with a callback installs glebe's SIGBUS handler. Install your own handlers
    /// before. Building fails with [`Error::HandlerCovered`] if another handler runs before
    /// glebe's. Later handlers must pass on signals that are not theirs.
    ///
    /// # Safety
    /// While the region exists, any thread may call `refill` with `data` in a signal handler.
    /// `refill` allocates nothing, takes no lock, does not unwind and touches no page of the
    /// region. It returns null, or the address of bytes that stay valid until the next call on the
    /// same thread.
    pub unsafe fn on_lost(self, refill: Refill, data: *const ()) -> Self {
        Self { on_lost: Some(OnLost { refill, data }), ..self }
    }

    /// Builds a region of its own memory: `len` bytes, rounded up to whole granules, all zeros.
    ///
    /// # Errors
    /// [`Error::Empty`] if `len` is 0, [`Error::Beyond`], [`Error::ZeroCap`], [`Refusal::Locked`]
    /// if the process locks the memory that it maps, [`Error::SelfTest`],
    /// [`Error::HandlerCovered`], or the kernel's refusal.
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
        // Checks now, because the kernel refuses locked memory only after populating it.
        if let Some(addr) = commit::locked_page()? {
            return Err(Refusal::Locked { at: addr }.into());
        }
        let mapping = Mapping::aligned(whole, grain, Visibility::ORDINARY)?;
        let backend = self.prepared(&mapping, huge)?;
        self.region(mapping, grain, backend, None)
    }

    /// Builds a region over the caller's memory: the whole base pages of `len` bytes at `addr`,
    /// contents included. [`Options::huge`] has no effect. Dropping the region unmarks all pages
    /// and reports no losses.
    ///
    /// If the program maps something else over a marked part, *scan* neither loses the new pages
    /// nor reports them lost. With *tag*, an unmark keeps their contents but reports them lost, and
    /// [`Region::drop_now`] and caps drop them. A forked child treats the new mapping as the old
    /// memory.
    ///
    /// The granule is a base page. The kernel splits a huge page that is marked in part.
    ///
    /// # Errors
    /// [`Error::Empty`] without a whole page; [`Error::Beyond`]; [`Error::Unsuitable`] if the
    /// memory cannot be volatile; [`Error::ZeroCap`], [`Error::SelfTest`],
    /// [`Error::HandlerCovered`], or the kernel's refusal.
    ///
    /// # Safety
    /// While the region exists, the memory stays mapped or is mapped anew, readable and writable,
    /// and belongs to no other region. No reference to a page exists while it is marked, or while
    /// the region's calls read or write it. The contents of marked pages may vanish.
    pub unsafe fn build_over(self, addr: *mut u8, len: Bytes) -> Result<Region, Error> {
        self.check()?;
        let page = page_size();
        let (adopted, len) = Adopted::new(addr.expose_provenance(), len, page)?;
        let pages = len.pages_down(page).get();
        let backend = {
            let (base, is_own) = (adopted.base(), false);
            Backend::new(self.engine, base, pages, None, is_own, self.without_scan)?
        };
        // SAFETY: the caller keeps the memory mapped.
        let mapping = unsafe { Mapping::borrowed(adopted.base(), len) };
        self.region(mapping, page, backend, Some(adopted))
    }

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
        let state = RegionState {
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

    fn prepared(&self, mapping: &Mapping, huge: Option<PageSize>) -> Result<Backend, Error> {
        let base = mapping.addr();
        let pages = mapping.len().pages_down(page_size()).get();
        let backend = Backend::new(self.engine, base, pages, huge, true, self.without_scan)?;
        mapping.offer().map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => Error::from(Refusal::Locked { at: base }),
            _ => error.into(),
        })?;
        if huge.is_some() {
            mapping.prefer_huge_pages()?;
            mapping.populate(Bytes::ZERO, mapping.len())?;
        }
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

/// Works as on a kernel without `PAGEMAP_SCAN` (before Linux 6.7).
pub fn without_pagemap_scan(options: Options, without: bool) -> Options {
    Options { without_scan: without, ..options }
}
