//! The reserve: guaranteed contiguous memory whose idle pages work as a cache.
//!
//! A [`Reserve`] owns one populated mapping. *First class* takes [`Block`]s of physically
//! contiguous pages from it, in microseconds and without ever failing while a free run is long
//! enough. What first class does not hold is lent to *tenants* (the [`PageCache`] and each
//! [`LentObjectPool`]), whose pages are dropped at once when first class wants their place.
//! Positions are base pages from the start of the mapping; the unit of bookkeeping is a granule of
//! 2 MiB.
//!
//! From below: `lent` is the protocol between the two classes; `lender` chooses the pages that
//! tenants use; `page_cache` and `packed` (pools of objects) stand on it beside each other; first
//! class (`owner`) stands on `positions` and `lent`.
//!
//! Everything is shared by reference between threads. Locks: `positions`, among first-class callers
//! only; the names of the page cache, when one is asked for. Tenants and first class share no lock:
//! see `lent`. After fork the reserve stays with the parent, and every call in the child is
//! [`Error::Forked`].
//!
//! Source: "GCMA: guaranteed contiguous memory allocator" (RFC v2, 2015), Linux's cleancache.

mod access;
mod at_hand;
mod block;
mod error;
mod footing;
mod index;
mod lender;
mod lent;
mod memory;
mod object_pool;
mod options;
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
use crate::stats::Histogram;
use crate::sync::{MappedWord, Mutex, Ordering};
use crate::sys::claim::Claim;
use crate::sys::socket::Bound;
use crate::sys::ticks::Rate;
use crate::units::{Bytes, Pages};

use self::stats::Counts;
use lender::Lender;
use lent::Lent;
use memory::Memory;
use packed::{Movers, Packed};
use page_cache::Cache;
use positions::Positions;
use shared::Shared;
use stock::Stock;

pub use self::stats::Stats;
pub use block::{Block, Contiguity, Promise};
pub use error::Error;
pub use footing::Footing;

pub use object_pool::{LentObjectPool, LentObjectPoolOptions, LentObjectPoolStats, OnRecall};
pub use options::Options;
pub use owner::Request;
pub use page_cache::{Namespace, PageCache, Put, Rejected};
pub use resize::Resized;
pub(crate) use shrinkable::Shrinkable;

/// Bytes in a granule, on every page size.
const GRANULE: Bytes = Bytes::mib(2);

/// How tenants are kept out of pages that first class takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// By restartable sequences: first class never waits for a tenant.
    Restartable,
    /// By counting the copies in each granule: first class takes another run, or waits for a copy
    /// to end where there is none.
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

/// What every call touches, beside the tables.
#[derive(Debug)]
#[repr(C)]
struct Busy {
    stock: Stock,
    clock: Rate,
    /// Whether pages of some pool are moved before they are taken. Never taken back.
    moves: MappedWord,
    alloc_ns: Histogram,
}

impl Busy {
    fn new() -> Self {
        let (stock, clock) = (Stock::new(), Rate::measured());
        Self { stock, clock, moves: MappedWord::new(0), alloc_ns: Histogram::new() }
    }
}

#[derive(Debug)]
pub(crate) struct Inner {
    positions: Mutex<Positions>,
    lender: Lender,
    cache: Cache,
    movers: Movers,
    busy: Busy,
    serving: OnceLock<Bound>,
    /// Whether a reclaimer has it.
    claim: Claim,
    /// Where there is room for more. Dropped after all that lies in it.
    memory: Option<Memory>,
}

impl Inner {
    fn lender(&self) -> &Lender {
        &self.lender
    }

    fn lent(&self) -> &Lent {
        self.lender.lent()
    }

    fn counts(&self) -> &Counts {
        self.lender.counts()
    }

    /// From now on pages of this pool are moved before first class takes them.
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
            // A granule that comes or goes meanwhile is in both or in neither.
            Some(_) => stats.free + stats.held + stats.live,
        };
        stats.recalled += self.busy.stock.recalled();
        stats.alloc_ns = self.busy.alloc_ns.snapshot();
        stats.allocs = stats.alloc_ns.count();
        stats
    }
}

/// What the pages of one granule are used for; all zero where it has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GranuleUse {
    /// By nobody.
    pub free: Pages,
    /// By first class.
    pub first_class: Pages,
    /// By tenants.
    pub tenant: Pages,
}

/// A reserve: a cheap handle, which blocks and pools keep alive too.
///
/// ```
/// use glebe::{reserve::Reserve, units::{Bytes, Pages}};
///
/// let reserve = Reserve::new(Bytes::mib(4))?;
/// let mut block = reserve.alloc(Pages::new(1))?;
/// block.bytes_mut()?.fill(7);
/// drop(block); // back with the tenants
/// println!("{}", reserve.stats());
/// # Ok::<(), glebe::reserve::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reserve {
    inner: Shared<Inner>,
    contig: Arc<Contig>,
    why_counted: Option<Arc<str>>,
}

impl Reserve {
    /// Makes a reserve over new memory of `len`, rounded up to granules, from the best source.
    ///
    /// # Errors
    /// As [`Options::build`].
    pub fn new(len: Bytes) -> Result<Self, Error> {
        Self::options().build(len)
    }

    /// Begins to describe one.
    pub fn options() -> Options {
        Options::default()
    }

    /// The cache that lives in what first class does not hold.
    #[must_use]
    pub fn page_cache(&self) -> PageCache {
        PageCache::new(self.inner.clone())
    }

    /// The memory that the reserve was made of. Of a reserve with [room](Options::room) some of it
    /// may have gone, and more have come: [`Reserve::certificate`], [`Reserve::locate`] and
    /// [`Reserve::verify`] are of what there is now.
    #[must_use]
    pub fn contig(&self) -> &Contig {
        &self.contig
    }

    /// How tenants are kept out of blocks here.
    #[must_use]
    pub fn writers(&self) -> Writers {
        if self.why_counted.is_some() {
            Writers::Counted
        } else {
            Writers::Restartable
        }
    }

    /// Why writers are counted, where they are.
    #[must_use]
    pub fn why_counted(&self) -> Option<&str> {
        self.why_counted.as_deref()
    }

    /// What each granule is used for, in the order of positions; nothing in a forked child.
    #[must_use]
    pub fn usage(&self) -> Vec<GranuleUse> {
        self.inner.get().map_or_else(|_| Vec::new(), Inner::usage)
    }

    /// The statistics now; zeros in a forked child.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.get().map_or_else(|_| Stats::default(), Inner::stats)
    }

    /// Lets other processes of this user, and root, read the statistics: `glebe stats` shows
    /// them. One thread is started, which sleeps until it is asked and ends with the reserve. A
    /// reserve is served once; a later call gives the socket of the first.
    ///
    /// The socket lies in `$XDG_RUNTIME_DIR/glebe`, if that is the user's, or else in
    /// `/run/glebe` for root and in `/run/user/UID/glebe` for others.
    ///
    /// # Errors
    /// [`Error::NoRuntimeDir`], [`Error::Forked`], and [`Error::Os`] with
    /// what the kernel refused. The reserve works on without.
    pub fn serve_stats(&self) -> Result<&Path, Error> {
        self.serve(None)
    }

    /// As [`Reserve::serve_stats`], in `dir`: made if it is missing, and nobody else's to enter.
    ///
    /// # Errors
    /// As there, but for [`Error::NoRuntimeDir`].
    pub fn serve_stats_in(&self, dir: &Path) -> Result<&Path, Error> {
        self.serve(Some(dir))
    }

    fn serve(&self, dir: Option<&Path>) -> Result<&Path, Error> {
        let inner = self.inner.get()?;
        if let Some(serving) = inner.serving.get() {
            return Ok(serving.path());
        }
        let dir = dir.map_or_else(served::own_dir, |dir| Ok(dir.to_owned()))?;
        let own = serve::start(self.inner.downgrade()?, &dir)?;
        // Of two callers at once the second's own socket is dropped.
        Ok(inner.serving.get_or_init(|| own).path())
    }
}
