//! [`ReserveOptions`] builds a reserve.

use std::sync::{Arc, OnceLock};

use super::access::Critical;
use super::access::Frames;
use super::lender::Lender;
use super::lent::Lent;
use super::memory::Memory;
use super::near::{Near, NodeTeller};
use super::packed::Movers;
use super::page_cache::Cache;
use super::positions::Positions;
use super::shared::Shared;
use super::table::Tables;
use super::{zero_ahead, Busy, Reserve, ReserveCore, ReserveError, Writers, GRANULE};
use crate::contig::internal::chosen_for_runs;
use crate::contig::{self, Contig, Plan, Source};
use crate::zpool::Codec;
use glebe_os::error::OsError;
use glebe_os::internal::sync::Mutex;
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::claim::Claim;
use glebe_os::units::{Bytes, Pages};

const TABLE_BYTES_A_PAGE: u64 = 96;

/// [`ReserveOptions`] has the options of a reserve.
///
/// ```
/// use glebe::{contig::{Contig, Source}, reserve::Reserve, units::{Bytes, Pages}};
///
/// let memory = Contig::options().source(Source::Plain);
/// let options = Reserve::options().memory(memory).zero_ahead(Pages::new(512));
/// let reserve = options.build(Bytes::mib(4))?;
/// assert_eq!(reserve.contig().len(), Bytes::mib(4));
/// # Ok::<(), glebe::reserve::ReserveError>(())
/// ```
#[derive(Default)]
#[must_use]
pub struct ReserveOptions {
    memory: contig::Options,
    counted: bool,
    zero_ahead: Pages,
    page_cache: Option<Codec>,
    room: Bytes,
    nodes: NodeTeller,
}

impl ReserveOptions {
    /// Sets the options of the memory. By default the best available source is used. A hugetlb pool
    /// is searched for one run of the whole length ([`contig::Options::search`]).
    pub fn memory(self, memory: contig::Options) -> Self {
        Self { memory, ..self }
    }

    /// Sets the codec of the page cache; by default none. With a codec, more pages fit if they
    /// compress, but calls take longer. Compressed pages first go to ordinary memory, whose length
    /// is about a 64th of the reserve's maximum, at least 64 pages.
    pub fn page_cache(self, codec: Codec) -> Self {
        Self { page_cache: Some(codec), ..self }
    }

    /// Starts a background thread that keeps about `pages` pages zeroed, in whole granules (2 MiB).
    /// Tenants avoid these granules, and a request for zeros needs no clearing there.
    pub fn zero_ahead(self, pages: Pages) -> Self {
        Self { zero_ahead: pages, ..self }
    }

    /// Lets the reserve [grow](super::Reserve::grow) up to `room` bytes, rounded up to granules
    /// (2 MiB), and [shrink](super::Reserve::shrink); by default the length is fixed. Each page of
    /// room costs about ten bytes of tables, or a hundred once used.
    pub fn room(self, room: Bytes) -> Self {
        Self { room, ..self }
    }

    /// Makes a reserve over `len` bytes of new memory, rounded up to granules (2 MiB).
    ///
    /// # Errors
    /// [`ReserveError::Contig`] if the memory cannot be allocated; [`ReserveError::BadLen`] if the
    /// source's memory is not in whole granules; [`ReserveError::FixedLen`] if room is set and the
    /// memory belongs to a file; [`ReserveError::Packed`] if the compressed pool cannot be made;
    /// [`ReserveError::Os`] if the kernel refuses a call.
    pub fn build(mut self, len: Bytes) -> Result<Reserve, ReserveError> {
        let granules = len.get().div_ceil(GRANULE.get());
        let len = granules.checked_mul(GRANULE.get()).map_or(Bytes::new(u64::MAX), Bytes::new);
        let memory = chosen_for_runs(std::mem::replace(&mut self.memory, Contig::options()));
        let again = memory.clone();
        self.build_over(again, memory.build(len)?)
    }

    /// Makes a reserve over `contig`. If [`Self::room`] is set, added memory has the same source.
    ///
    /// # Errors
    /// As [`ReserveOptions::build`] except [`ReserveError::Contig`].
    pub fn build_on(self, contig: Contig) -> Result<Reserve, ReserveError> {
        let again = chosen_for_runs(Contig::options());
        let again = match contig.source() {
            Source::Divided => again.plan(Plan::Divide),
            source => again.source(source),
        };
        self.build_over(again, contig)
    }

    fn build_over(self, again: contig::Options, contig: Contig) -> Result<Reserve, ReserveError> {
        let page = page_size();
        let len = contig.len();
        if len == Bytes::ZERO || len.get() % GRANULE.get() != 0 || page.bytes() > GRANULE {
            return Err(ReserveError::BadLen { given: len, granule: GRANULE });
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
        let nodes = (self.nodes.pages)(&contig).unwrap_or_default();
        let near = Near::new(self.nodes, &nodes, memory.is_some());
        let positions = Positions::new(&contig, pages.get(), granule_pages)?;
        let positions = positions.on_nodes(&near.slots_of(&nodes), near.slots());
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
        let inner = ReserveCore {
            positions: Mutex::new(positions),
            lender,
            cache,
            movers: Movers::default(),
            busy: Busy::new(near),
            serving: OnceLock::new(),
            claim: Claim::default(),
            memory,
        };
        let inner = Shared::new(root, inner);
        if zero_target > 0 {
            zero_ahead::start(inner.downgrade()?)
                .map_err(|e| ReserveError::Os(OsError::new("clone", "a thread that zeroes", e)))?;
        }
        Ok(Reserve { inner, contig, why_counted: why_counted.map(Arc::from) })
    }

    fn stood_on(
        &self,
        again: contig::Options,
        contig: Contig,
    ) -> Result<(Option<Memory>, Arc<Contig>), ReserveError> {
        if self.room == Bytes::ZERO && crate::contig::internal::bricks(&contig).is_none() {
            return Ok((None, Arc::new(contig)));
        }
        let granules = self.room.get().div_ceil(GRANULE.get()).min(u64::MAX / GRANULE.get());
        let room = Bytes::new(granules * GRANULE.get()).max(contig.len());
        let (memory, contig) = Memory::new(contig, room, again)?;
        Ok((Some(memory), contig))
    }
}

/// Sets who tells the nodes of pages and callers.
pub fn with_nodes(options: ReserveOptions, nodes: NodeTeller) -> ReserveOptions {
    ReserveOptions { nodes, ..options }
}

/// Sets how tenants are kept out of first class's pages.
pub fn with_writers(options: ReserveOptions, writers: Writers) -> ReserveOptions {
    ReserveOptions { counted: writers == Writers::Counted, ..options }
}
