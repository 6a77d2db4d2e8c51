//! How a region comes to be: the mapping, brought into the state that its engine starts from.

use std::sync::Arc;
use std::time::Instant;

use super::adopted::Adopted;
use super::engine::Backend;
use super::error::Error;
use super::marks::{Bitmap, Marks};
use super::optimistic::Touches;
use super::options::Options;
use super::overlap::Calls;
use super::refilled::Refilled;
use super::resident::Pins;
use super::state::State;
use super::stats::Counts;
use super::{fork, self_test, Region};
use crate::extent::Extent;
use crate::mapping::{Mapping, Visibility};
use crate::sync::RwLock;
use crate::sys::{commit, madvise, page_size};
use crate::units::{Bytes, PageSize};

impl Region {
    /// A region of its own memory.
    pub(super) fn with(options: &Options, len: Bytes) -> Result<Self, Error> {
        if options.cap == Some(Bytes::ZERO) {
            return Err(Error::ZeroCap);
        }
        if len == Bytes::ZERO {
            return Err(Error::Empty);
        }
        fork::follow()?;
        self_test::passed()?;
        let page = page_size();
        let huge = options.huge.then(madvise::transparent_huge_page).transpose()?;
        let grain = huge.unwrap_or(page);
        let whole = len.pages_up(grain).checked_bytes(grain);
        let too_long = Error::Beyond { end: len, limit: Bytes::new(usize::MAX as u64) };
        let whole = whole.ok_or(too_long)?;
        // All of the region would be populated before the kernel refuses to take pages of it.
        if let Some(addr) = commit::locked_page()? {
            return Err(Error::Locked { addr });
        }
        let mapping = Mapping::aligned(whole, grain, Visibility::ORDINARY)?;
        let backend = Self::prepared(&mapping, huge, options)?;
        Self::of(options, mapping, grain, backend, None)
    }

    pub(super) fn of(
        options: &Options,
        mapping: Mapping,
        grain: PageSize,
        backend: Backend,
        adopted: Option<Adopted>,
    ) -> Result<Self, Error> {
        let page = page_size();
        let pages = mapping.len().pages_down(page).get();
        let engine = backend.engine();
        let marked = Arc::new(Bitmap::new(pages));
        let refilled = Arc::new(Refilled::new(options.on_lost.map_or(0, |_| pages)));
        let touches = Touches::of(&mapping, &marked, &refilled, &backend, options)?;
        let marks = Marks::new(options.cap.is_some() || options.max_age.is_some());
        let state = State {
            marks,
            pins: Pins::default(),
            refilled,
            backend,
            adopted,
            pages,
            is_unarmed: false,
            swap: true,
            swap_known_for: 0,
        };
        let state = Arc::new(RwLock::new(state));
        let calls = Arc::new(Calls::new());
        let entry = fork::enter(&fork::Locks { state: state.clone(), calls: calls.clone() });
        Ok(Self {
            page,
            granule: grain.bytes(),
            engine,
            _touches: touches,
            marked,
            state,
            calls,
            counts: Counts::new(),
            made: Instant::now(),
            options: options.clone(),
            mapping,
            _entry: entry,
        })
    }

    /// Brings fresh memory into the state that the engine starts from.
    fn prepared(
        mapping: &Mapping,
        huge: Option<PageSize>,
        options: &Options,
    ) -> Result<Backend, Error> {
        let base = mapping.addr();
        let pages = mapping.len().pages_down(page_size()).get();
        let backend = Backend::new(base, pages, huge, options)?;
        // Refused where the process locks its memory; there is nothing to lose yet.
        mapping.offer().map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => Error::Locked { addr: base },
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
