//! How a reserve is built: over which memory, how tenants are kept out of blocks, what a
//! background thread does.

use std::sync::{Arc, OnceLock};

use super::access::Critical;
use super::access::Frames;
use super::lender::Lender;
use super::lent::Lent;
use super::memory::Memory;
use super::packed::Movers;
use super::page_cache::Cache;
use super::positions::Positions;
use super::shared::Shared;
use super::table::Tables;
use super::{zero_ahead, Busy, Error, Inner, Reserve, Writers, GRANULE};
use crate::contig::{self, Contig, Plan, Source};
use crate::error::OsError;
use crate::sync::Mutex;
use crate::sys::claim::Claim;
use crate::sys::page_size;
use crate::units::{Bytes, Pages};
use crate::zpool::Codec;

/// About what the tables have for each page: its words, its key, and its place in the index.
const TABLE_BYTES_A_PAGE: u64 = 96;

/// How a reserve is built: [`Reserve::options`] begins, [`Options::build`] ends.
///
/// ```
/// use glebe::{contig::{Contig, Source}, reserve::Reserve, units::{Bytes, Pages}};
///
/// let memory = Contig::options().source(Source::Plain);
/// let options = Reserve::options().memory(memory).zero_ahead(Pages::new(512));
/// let reserve = options.build(Bytes::mib(4))?;
/// assert_eq!(reserve.contig().len(), Bytes::mib(4));
/// # Ok::<(), glebe::reserve::Error>(())
/// ```
#[derive(Default)]
#[must_use]
pub struct Options {
    memory: contig::Options,
    counted: bool,
    zero_ahead: Pages,
    /// [`Codec::None`] if nothing is said.
    page_cache: Option<Codec>,
    room: Bytes,
}

impl Options {
    /// Describes the memory; without this the best source is taken. Of a hugetlb pool more than the
    /// length is looked at, for longer runs ([`contig::Options::search`]).
    pub fn memory(self, memory: contig::Options) -> Self {
        Self { memory, ..self }
    }

    /// Chooses how tenants are kept out; without this the best that the machine has.
    #[doc(hidden)]
    pub fn writers(self, writers: Writers) -> Self {
        Self { counted: writers == Writers::Counted, ..self }
    }

    /// Chooses how the page cache stores pages: as they are if nothing is said. With a codec those
    /// are coded and packed that become smaller by a quarter or more: more pages, at the cost of
    /// coding and decoding. A 64th of the reserve is staged in ordinary memory then, and the tables
    /// are larger.
    pub fn page_cache(self, codec: Codec) -> Self {
        Self { page_cache: Some(codec), ..self }
    }

    /// Keeps about so many pages zeroed by a background thread, in whole granules, which tenants
    /// then leave alone: a zeroed block that finds its place there costs no more than another.
    /// Without this no thread is started; memory that nobody has used is zero either way.
    pub fn zero_ahead(self, pages: Pages) -> Self {
        Self { zero_ahead: pages, ..self }
    }

    /// Lets the reserve [grow](super::Reserve::grow) up to `room`, rounded up to granules, and
    /// [shrink](super::Reserve::shrink); without this its length is fixed. The room costs addresses
    /// and, once it is used, what the tables have for each page, about a hundred bytes; up front
    /// some ten. No memory of a file has room.
    pub fn room(self, room: Bytes) -> Self {
        Self { room, ..self }
    }

    /// Makes a reserve over new memory of `len`, rounded up to granules.
    ///
    /// # Errors
    /// [`Error::Contig`] where the memory cannot be had, [`Error::BadLen`] where the source's
    /// pages make it no whole number of granules, [`Error::FixedLen`] where room is asked for and
    /// the memory is a file's.
    pub fn build(mut self, len: Bytes) -> Result<Reserve, Error> {
        let granules = len.get().div_ceil(GRANULE.get());
        let len = granules.checked_mul(GRANULE.get()).map_or(Bytes::new(u64::MAX), Bytes::new);
        let memory = std::mem::replace(&mut self.memory, Contig::options()).chosen_for_runs();
        let again = memory.clone();
        self.build_over(again, memory.build(len)?)
    }

    /// Makes a reserve over `contig`. More memory, where there is room, is had from its source.
    ///
    /// # Errors
    /// As [`Options::build`], but for [`Error::Contig`].
    pub fn build_on(self, contig: Contig) -> Result<Reserve, Error> {
        let again = Contig::options().chosen_for_runs();
        let again = match contig.source() {
            Source::Divided => again.plan(Plan::Divide),
            source => again.source(source),
        };
        self.build_over(again, contig)
    }

    fn build_over(self, again: contig::Options, contig: Contig) -> Result<Reserve, Error> {
        let page = page_size();
        let len = contig.len();
        if len == Bytes::ZERO || len.get() % GRANULE.get() != 0 || page.bytes() > GRANULE {
            return Err(Error::BadLen { given: len, granule: GRANULE });
        }
        let (critical, why_counted) = if self.counted {
            (Critical::Counted, Some("asked for by the options".to_owned()))
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
        let cache =
            Cache::new(&mut tables, &lender, self.page_cache.as_ref().unwrap_or(&Codec::None))?;
        let inner = Inner {
            positions: Mutex::new(positions),
            lender,
            cache,
            movers: Movers::default(),
            busy: Busy::new(),
            serving: OnceLock::new(),
            claim: Claim::default(),
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
        again: contig::Options,
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
