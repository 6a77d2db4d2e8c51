//! How a reserve is built: over which memory, how tenants are kept out of blocks, what a
//! background thread does.

use std::sync::{Arc, OnceLock};

use super::critical::Critical;
use super::frames::Frames;
use super::lender::Lender;
use super::lent::Lent;
use super::memory::Memory;
use super::packed::Movers;
use super::page_cache::{Cache, CacheMode};
use super::positions::Positions;
use super::shared::Shared;
use super::table::Tables;
use super::{scattered, zero_ahead, Busy, Error, Inner, Reserve, Writers, GRANULE};
use crate::contig::{Contig, Options, Plan, Source};
use crate::error::OsError;
use crate::sync::Mutex;
use crate::sys::page_size;
use crate::units::{Bytes, Pages};

/// About what the tables have for each page: its words, its key, and its place in the index.
const TABLE_BYTES_A_PAGE: u64 = 96;

/// How a reserve is built.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Builder {
    counted: bool,
    zero_ahead: Pages,
    cache: CacheMode,
    views: bool,
    room: Bytes,
}

impl Builder {
    /// Chooses how tenants are kept out; without this the best that the machine has.
    pub fn writers(self, writers: Writers) -> Self {
        Self { counted: writers == Writers::Counted, ..self }
    }

    /// Chooses how the page cache stores pages; plain if nothing is said.
    pub fn page_cache(self, cache: CacheMode) -> Self {
        Self { cache, ..self }
    }

    /// Keeps about so many pages zeroed by a background thread, in whole granules, which tenants
    /// then leave alone: a zeroed block that finds its place there costs no more than another.
    /// Without this no thread is started; memory that nobody has used is zero either way.
    pub fn zero_ahead(self, pages: Pages) -> Self {
        Self { zero_ahead: pages, ..self }
    }

    /// Draws the memory from a file, so that scattered pages of it can be mapped side by side:
    /// [`Reserve::alloc_virtual`](super::Reserve::alloc_virtual) then needs no free run, and
    /// [`Reserve::view`](super::Reserve::view) works. See [`Options::mappable`] for the price.
    pub fn views(self) -> Self {
        Self { views: true, ..self }
    }

    /// Lets the reserve [grow](super::Reserve::grow) up to `room`, rounded up to granules, and
    /// [shrink](super::Reserve::shrink); without this its length is fixed. The room costs addresses
    /// and, once it is used, what the tables have for each page, about a hundred bytes; up front
    /// some ten. No memory of a file has room: not that of [`Builder::views`].
    pub fn room(self, room: Bytes) -> Self {
        Self { room, ..self }
    }

    /// A reserve over new memory of `len`, rounded up to granules, from the best source.
    ///
    /// # Errors
    /// [`Error::Contig`] where the memory cannot be had.
    pub fn map(self, len: Bytes) -> Result<Reserve, Error> {
        self.map_with(Contig::options(), len)
    }

    /// As [`Builder::map`], from the memory that `options` describe; of a hugetlb pool more than
    /// `len` is looked at, for longer runs ([`Options::search`]).
    ///
    /// # Errors
    /// [`Error::Contig`] where the memory cannot be had, [`Error::BadLen`] where the source's
    /// pages make it no whole number of granules.
    pub fn map_with(self, options: Options, len: Bytes) -> Result<Reserve, Error> {
        let granules = len.get().div_ceil(GRANULE.get());
        let len = granules.checked_mul(GRANULE.get()).map_or(Bytes::new(u64::MAX), Bytes::new);
        let options = options.chosen_for_runs();
        let options = if self.views { options.mappable() } else { options };
        let again = options.clone();
        self.build_with(again, options.build(len)?)
    }

    /// A reserve over `contig`. More memory, where there is room, is had from its source.
    ///
    /// # Errors
    /// [`Error::BadLen`] where that is no whole number of granules, [`Error::FixedLen`] where
    /// room is asked for and its pages are a file's.
    pub fn build(self, contig: Contig) -> Result<Reserve, Error> {
        let options = Contig::options().chosen_for_runs();
        let options = match contig.source() {
            Source::Divided => options.plan(Plan::Divide),
            source => options.source(source),
        };
        self.build_with(options, contig)
    }

    fn build_with(self, again: Options, contig: Contig) -> Result<Reserve, Error> {
        let page = page_size();
        let len = contig.len();
        if len == Bytes::ZERO || len.get() % GRANULE.get() != 0 || page.bytes() > GRANULE {
            return Err(Error::BadLen { given: len, granule: GRANULE });
        }
        let (critical, why_counted) = if self.counted {
            (Critical::Counted, Some("asked for by the builder".to_owned()))
        } else {
            match Critical::find() {
                Ok(critical) => (critical, None),
                Err(why) => (Critical::Counted, Some(why)),
            }
        };
        let (memory, contig) = self.stood_on(again, contig)?;
        let room = memory.as_ref().map_or(len, Memory::room);
        let (present, pages) = (len.pages_down(page), room.pages_down(page));
        let granule_pages = GRANULE.pages_down(page).get();
        let positions = Positions::new(&contig, pages.get(), granule_pages)?;
        let frames = Frames::new(Arc::clone(&contig), pages.as_usize(), page);
        let mut tables = Tables::new(Bytes::new(TABLE_BYTES_A_PAGE * pages.get()))?;
        let root = tables.slot()?;
        let shift = granule_pages.ilog2();
        let sizes = (pages.as_usize(), present.as_usize());
        let lent = Lent::new(&mut tables, frames, sizes, shift, critical)?;
        let zero_target = self.zero_ahead.get().div_ceil(granule_pages);
        let lender = Lender::new(&mut tables, lent, present.get(), zero_target)?;
        let cache = Cache::new(&mut tables, &lender, &self.cache)?;
        let inner = Inner {
            views: scattered::space_for(&contig)?,
            positions: Mutex::new(positions),
            lender,
            cache,
            movers: Movers::default(),
            busy: Busy::new(),
            serving: OnceLock::new(),
            memory,
        };
        let inner = Shared::new(root, inner);
        if zero_target > 0 {
            zero_ahead::start(inner.downgrade()?)
                .map_err(|e| Error::Os(OsError::new("clone", "a thread that zeroes", e)))?;
        }
        Ok(Reserve { inner, contig, why_counted: why_counted.map(Arc::from) })
    }

    /// Moves the memory to where there is room for more, if room was asked for.
    fn stood_on(
        &self,
        again: Options,
        contig: Contig,
    ) -> Result<(Option<Memory>, Arc<Contig>), Error> {
        if self.room == Bytes::ZERO {
            return Ok((None, Arc::new(contig)));
        }
        let (granule, len) = (GRANULE.get(), contig.len());
        let room = self.room.get().div_ceil(granule).checked_mul(granule).map_or(len, Bytes::new);
        let (memory, contig) = Memory::new(contig, room.max(len), again)?;
        Ok((Some(memory), contig))
    }
}
