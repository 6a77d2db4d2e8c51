//! [`Reserve`] is guaranteed contiguous memory whose idle pages work as a cache.
//!
//! *First class* allocates [`Block`]s of physically contiguous pages. *Tenants*, the [`PageCache`]
//! and each [`LentObjectPool`], borrow the other pages until first class takes these back.
//! Positions count base pages from the start of the mapping. A granule is 2 MiB.
//!
//! Layers, from below: `lent`, `lender`, `page_cache` and `packed` (tenants), `owner` (first
//! class).
//!
//! First-class callers share the lock `positions`, and never wait for a tenant's lock.
//!
//! Source: "GCMA: guaranteed contiguous memory allocator" (RFC v2, 2015), Linux's cleancache.

mod access;
mod at_hand;
mod block;
pub(crate) mod by_node;
pub(crate) mod closed;
mod error;
mod footing;
mod index;
#[cfg(feature = "cuda")]
mod kept_len;
mod lender;
mod lent;
mod memory;
pub(crate) mod near;
mod object_pool;
pub(crate) mod options;
mod owner;
mod packed;
mod packed_pages;
mod page_cache;
mod positions;
mod resize;
mod serve;
pub mod served;
mod shared;
mod shrinkable;
mod stats;
mod stock;
mod table;
mod words;
mod zero_ahead;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::contig::Contig;
use glebe_os::internal::stats::Histogram;
use glebe_os::internal::sync::{MappedWord, Mutex, Ordering};
use glebe_os::internal::sys::files::socket::Bound;
use glebe_os::internal::sys::machine::ticks::Rate;
use glebe_os::internal::sys::processes::claim::Claim;
use glebe_os::units::{Bytes, Pages};

use self::stats::Counts;
use lender::Lender;
use lent::Lent;
use memory::Memory;
use near::Near;
use packed::{Movers, Packed};
use page_cache::Cache;
use positions::Positions;
use shared::Shared;
use stock::Stock;

pub use self::stats::Stats;
pub use block::{Block, Contiguity, Promise};
pub use error::ReserveError;
pub use footing::Footing;
#[cfg(feature = "cuda")]
pub(crate) use kept_len::KeptLen;

pub use object_pool::{LentObjectPool, LentObjectPoolOptions, LentObjectPoolStats, OnRecall};
pub use options::ReserveOptions;
pub use owner::Request;
pub use page_cache::{Namespace, PageCache, Put, Rejected};
pub use resize::Resized;
pub(crate) use shrinkable::Shrinkable;

const GRANULE: Bytes = Bytes::mib(2);

/// [`Writers`] is the way in which tenants are kept from writing to pages of first class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Restartable sequences: first class never waits for a tenant.
    Restartable,
    /// Each granule (2 MiB) counts its writers. First class prefers granules without writers, and
    /// otherwise waits, or fails with [`Request::no_wait`].
    Counted,
}

impl fmt::Display for Writers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Restartable => "restartable",
            Self::Counted => "counted",
        })
    }
}

#[derive(Debug)]
#[repr(C)]
struct Busy {
    stock: Stock,
    clock: Rate,
    /// 1 after a pool was built with [`OnRecall::Move`], otherwise 0.
    moves: MappedWord,
    near: Near,
    alloc_ns: Histogram,
}

impl Busy {
    fn new(near: Near) -> Self {
        let (stock, clock) = (Stock::new(), Rate::measured());
        Self { stock, clock, moves: MappedWord::new(0), near, alloc_ns: Histogram::new() }
    }
}

#[derive(Debug)]
pub(crate) struct ReserveCore {
    positions: Mutex<Positions>,
    lender: Lender,
    cache: Cache,
    movers: Movers,
    busy: Busy,
    serving: OnceLock<Bound>,
    claim: Claim,
    /// Dropped last, because the other fields use the memory.
    memory: Option<Memory>,
}

impl ReserveCore {
    fn lender(&self) -> &Lender {
        &self.lender
    }

    fn lent(&self) -> &Lent {
        self.lender.lent()
    }

    fn counts(&self) -> &Counts {
        self.lender.counts()
    }

    fn add_mover(&self, packed: &Arc<Packed>) {
        self.movers.add(packed);
        self.busy.moves.store(1, Ordering::Relaxed);
    }

    fn usage(&self) -> Vec<GranuleUse> {
        let lent = self.lent();
        let pages = lent.granule_pages() as u64;
        let of = |granule| {
            let word = lent.granule(granule);
            let (held, live) = (word.held(), word.live());
            let pages = if word.is_absent() { 0 } else { pages };
            GranuleUse {
                free: Pages::new(pages.saturating_sub(held + live)),
                first_class: Pages::new(held),
                tenant: Pages::new(live),
            }
        };
        (0..lent.granules()).map(of).collect()
    }

    fn stats(&self) -> Stats {
        let mut stats = self.counts().sum();
        for granule in self.usage() {
            stats.free = stats.free + granule.free;
            stats.held = stats.held + granule.first_class;
            stats.live = stats.live + granule.tenant;
        }
        (stats.packed, stats.packed_lost) = self.cache.packed();
        stats.total = match &self.memory {
            None => Pages::new(self.lent().pages() as u64),
            // This sum keeps `total = live + held + free` true during a resize.
            Some(_) => stats.free + stats.held + stats.live,
        };
        stats.recalled += self.busy.stocks().map(Stock::recalled).sum::<u64>();
        stats.alloc_ns = self.busy.alloc_ns.snapshot();
        stats.allocs = stats.alloc_ns.count();
        stats
    }
}

/// [`GranuleUse`] counts the pages of one granule; all are 0 if the granule has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GranuleUse {
    /// Unused pages.
    pub free: Pages,
    /// Pages that first class holds.
    pub first_class: Pages,
    /// Pages that tenants use.
    pub tenant: Pages,
}

/// [`Reserve`] is a handle that is cheap to clone. Blocks and pools also keep the reserve alive.
///
/// ```
/// use glebe::{reserve::Reserve, units::{Bytes, Pages}};
///
/// let reserve = Reserve::new(Bytes::mib(4))?;
/// let mut block = reserve.alloc(Pages::new(1))?;
/// block.bytes_mut()?.fill(7);
/// drop(block); // back with the tenants
/// println!("{}", reserve.stats());
/// # Ok::<(), glebe::reserve::ReserveError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reserve {
    inner: Shared<ReserveCore>,
    contig: Arc<Contig>,
    why_counted: Option<Arc<str>>,
}

impl Reserve {
    /// Makes a reserve over `len` bytes of new memory, rounded up to granules.
    ///
    /// # Errors
    /// As [`ReserveOptions::build`].
    pub fn new(len: Bytes) -> Result<Self, ReserveError> {
        Self::options().build(len)
    }

    /// Returns the default options.
    pub fn options() -> ReserveOptions {
        ReserveOptions::default()
    }

    /// Returns the page cache, which uses pages that first class does not hold.
    #[must_use]
    pub fn page_cache(&self) -> PageCache {
        PageCache::new(self.inner.clone())
    }

    /// Returns the memory that the reserve was built on; [`Reserve::certificate`] describes the
    /// present memory.
    #[must_use]
    pub fn contig(&self) -> &Contig {
        &self.contig
    }

    /// Returns how tenants are kept out of first class's pages.
    #[must_use]
    pub fn writers(&self) -> Writers {
        if self.why_counted.is_some() {
            Writers::Counted
        } else {
            Writers::Restartable
        }
    }

    /// Returns why writers are counted; `None` if they are not.
    #[must_use]
    pub fn why_counted(&self) -> Option<&str> {
        self.why_counted.as_deref()
    }

    /// Returns the use of each granule, by position; empty in a forked child.
    #[must_use]
    pub fn usage(&self) -> Vec<GranuleUse> {
        self.inner.get().map_or_else(|_| Vec::new(), ReserveCore::usage)
    }

    /// Returns the present statistics; all zeros in a forked child.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.get().map_or_else(|_| Stats::default(), ReserveCore::stats)
    }

    /// Starts a thread that serves the statistics (for `glebe stats`) to root and this user until
    /// the reserve ends. Returns the socket's path; later calls only return that path.
    ///
    /// The socket is in `$XDG_RUNTIME_DIR/glebe` if this user owns `$XDG_RUNTIME_DIR`, else in
    /// `/run/glebe` for root and `/run/user/UID/glebe` for others.
    ///
    /// # Errors
    /// [`ReserveError::NoRuntimeDir`], [`ReserveError::Forked`], or [`ReserveError::Os`] if the
    /// kernel refuses a call, or the directory belongs to another user or is open to others.
    pub fn serve_stats(&self) -> Result<&Path, ReserveError> {
        self.serve(None)
    }

    /// Serves as [`Reserve::serve_stats`] does, but in `dir`, which is created if missing.
    ///
    /// # Errors
    /// As [`Reserve::serve_stats`], except [`ReserveError::NoRuntimeDir`].
    pub fn serve_stats_in(&self, dir: &Path) -> Result<&Path, ReserveError> {
        self.serve(Some(dir))
    }

    fn serve(&self, dir: Option<&Path>) -> Result<&Path, ReserveError> {
        let inner = self.inner.get()?;
        if let Some(serving) = inner.serving.get() {
            return Ok(serving.path());
        }
        let dir = dir.map_or_else(served::own_dir, |dir| Ok(dir.to_owned()))?;
        let own = serve::start(self.inner.downgrade()?, &dir)?;
        // Drops this call's socket if a concurrent call was first.
        Ok(inner.serving.get_or_init(|| own).path())
    }
}
