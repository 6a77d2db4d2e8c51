//! [`LentObjectPool`] stores compressed objects on lent pages.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use super::packed::{Packed, Rest};
use super::shared::Shared;
use super::{Reserve, ReserveCore};
use crate::zpool::internal;
use crate::zpool::{Budget, Codec, Compacted, Error, Handle, ObjectPool as Pool, Stats};
use glebe_os::internal::stats::{families, json, listed, text, Row, Set, Unit, Value};
use glebe_os::internal::sync::Ordering;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

/// [`LentObjectPoolOptions`] has the options of a [`LentObjectPool`].
#[derive(Clone, Debug)]
#[must_use]
pub struct LentObjectPoolOptions {
    reserve: Reserve,
    codec: Codec,
    staging: Option<Bytes>,
    on_recall: OnRecall,
}

/// [`OnRecall`] is the fate of a pool's pages that first class takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnRecall {
    /// The pages are lost, at no cost to first class.
    #[default]
    Discard,
    /// First class moves the contents, if it can, to free or page-cache pages of the reserve, in
    /// about a microsecond a page. Every later block of this reserve costs one lookup per page.
    Move,
}

impl LentObjectPoolOptions {
    pub(super) fn new(reserve: Reserve) -> Self {
        let on_recall = OnRecall::default();
        Self { reserve, codec: Codec::default(), staging: None, on_recall }
    }

    /// Sets the codec. The default is LZ4.
    pub fn codec(self, codec: Codec) -> Self {
        Self { codec, ..self }
    }

    /// Limits the ordinary memory that holds new objects. The default is a 64th of the reserve's
    /// room; the least is 64 pages.
    pub fn staging(self, staging: Bytes) -> Self {
        Self { staging: Some(staging), ..self }
    }

    /// Sets the fate of recalled pages.
    pub fn on_recall(self, on_recall: OnRecall) -> Self {
        Self { on_recall, ..self }
    }

    /// Makes the pool.
    ///
    /// # Errors
    /// [`Error::Forked`], a codec's bad parameters, or a call that the kernel refuses.
    pub fn build(self) -> Result<LentObjectPool, Error> {
        let inner = &self.reserve.inner;
        let held = inner.get().map_err(|_| Error::Forked)?;
        let room = self.reserve.room();
        let packed = Packed::new(held.lender(), room, self.staging, self.codec, Rest::Stays)?;
        let packed = Arc::new(packed);
        if self.on_recall == OnRecall::Move {
            held.add_mover(&packed);
        }
        Ok(LentObjectPool { owned: Arc::new(Owned { packed, inner: inner.clone() }) })
    }
}

#[derive(Debug)]
struct Owned {
    packed: Arc<Packed>,
    inner: Shared<ReserveCore>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Ok(inner) = self.inner.get() {
            self.packed.drop_all(inner.lender());
        }
    }
}

/// [`LentObjectPool`] is a cheap handle to compressed objects in pages that first class does not
/// hold.
///
/// New objects are in ordinary memory, the *staging*. When the staging is nearly full, objects move
/// to lent pages. An object is *lost* if a tenant or first class ([`OnRecall`]) takes one of its
/// pages. A read of a lost object returns `None` and ends its handle.
///
/// ```
/// use glebe::{reserve::Reserve, units::{Bytes, Pages}};
///
/// let reserve = Reserve::new(Bytes::mib(4))?;
/// let pool = reserve.object_pool().build()?;
/// let handle = pool.insert(b"second class bytes")?;
/// let mut buf = [0; 64];
/// if let Some(len) = pool.read(handle, &mut buf)? {
///     assert_eq!(&buf[..len], b"second class bytes");
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LentObjectPool {
    owned: Arc<Owned>,
}

impl Reserve {
    /// Returns the options of a pool.
    pub fn object_pool(&self) -> LentObjectPoolOptions {
        LentObjectPoolOptions::new(self.clone())
    }
}

impl LentObjectPool {
    #[inline]
    fn inner(&self) -> Result<&ReserveCore, Error> {
        self.owned.inner.get().map_err(|_| Error::Forked)
    }

    fn pool(&self) -> &Pool {
        self.owned.packed.staging.pool()
    }

    fn checked_room(&self, inner: &ReserveCore, len: usize) -> Result<(), Error> {
        let packed = &self.owned.packed;
        if packed.has_room(inner.lender()) {
            return Ok(());
        }
        let limit = packed.staged_max().bytes(page_size());
        Err(Error::Full { len, held: self.pool().held(), limit })
    }

    /// Stores an object.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::TooLong`]; [`Error::Full`] if the memory for new objects is full
    /// and no page can be lent; [`Error::Forked`]; or a call that the kernel refuses.
    pub fn insert(&self, bytes: &[u8]) -> Result<Handle, Error> {
        let inner = self.inner()?;
        self.checked_room(inner, bytes.len())?;
        let handle = self.pool().insert(bytes)?;
        self.owned.packed.settle(inner.lender());
        Ok(handle)
    }

    /// Copies an object to the start of `buf` and returns its length. Returns `None` if the object
    /// is lost, and may then change `buf`.
    ///
    /// # Errors
    /// [`Error::Stale`] if the object was removed or found lost before; [`Error::Foreign`],
    /// [`Error::BufferTooSmall`], [`Error::Forked`].
    pub fn read(&self, handle: Handle, buf: &mut [u8]) -> Result<Option<usize>, Error> {
        let inner = self.inner()?;
        let pinned = internal::pinned(self.pool(), handle)?;
        let decode = |stored: &[u8]| internal::decode(self.pool(), &pinned, stored, buf);
        let done = self.owned.packed.with_stored(inner.lender(), &pinned, decode).transpose();
        internal::count_codec(self.pool());
        done
    }

    /// Returns the uncompressed length of an object; `None` if the object is lost.
    ///
    /// # Errors
    /// As [`LentObjectPool::read`], except [`Error::BufferTooSmall`].
    pub fn len_of(&self, handle: Handle) -> Result<Option<usize>, Error> {
        let inner = self.inner()?;
        let pinned = internal::pinned(self.pool(), handle)?;
        let len = |stored: &[u8]| internal::len_of_stored(self.pool(), &pinned, stored);
        self.owned.packed.with_stored(inner.lender(), &pinned, len).transpose()
    }

    /// Stores other bytes under `handle`.
    ///
    /// # Errors
    /// As [`LentObjectPool::insert`]; [`Error::Stale`], [`Error::Foreign`].
    pub fn replace(&self, handle: Handle, bytes: &[u8]) -> Result<(), Error> {
        let inner = self.inner()?;
        self.checked_room(inner, bytes.len())?;
        self.pool().replace(handle, bytes)?;
        self.owned.packed.settle(inner.lender());
        Ok(())
    }

    /// Removes an object.
    ///
    /// # Errors
    /// As [`LentObjectPool::read`], except [`Error::BufferTooSmall`].
    pub fn remove(&self, handle: Handle) -> Result<(), Error> {
        let inner = self.inner()?;
        self.pool().remove(handle)?;
        self.owned.packed.settle(inner.lender());
        Ok(())
    }

    /// Compacts the staging (ordinary memory), then moves objects of lent zspages at most three
    /// quarters full to the staging. Stops at the budget.
    ///
    /// # Errors
    /// [`Error::NoBudget`] for a budget of zero, [`Error::Forked`].
    pub fn compact(&self, budget: Budget) -> Result<Compacted, Error> {
        let inner = self.inner()?;
        let begin = Instant::now();
        let mut done = self.pool().compact(budget)?;
        let staged = done.freed.get();
        let goes_on = |freed: u64| match budget {
            Budget::Pages(pages) => staged + freed < pages.get(),
            Budget::Time(time) => begin.elapsed() < time,
            Budget::All => true,
        };
        let (moved, freed) = self.owned.packed.compact(inner.lender(), goes_on);
        done.moved += moved;
        done.freed = done.freed + Pages::new(freed);
        Ok(done)
    }

    /// Ends the handles of lost objects in the next `zspages` zspages. Moves the objects of one
    /// zspage that is at most half full to ordinary memory. Calls that lend pages sweep too.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn sweep(&self, zspages: u64) -> Result<(), Error> {
        let inner = self.inner()?;
        self.owned.packed.sweep(inner.lender(), zspages);
        Ok(())
    }

    /// Returns the statistics; zeros in a forked child. O(zspages).
    #[must_use]
    pub fn stats(&self) -> LentObjectPoolStats {
        if self.inner().is_err() {
            return LentObjectPoolStats::default();
        }
        let (packed, objects) = (&self.owned.packed, self.pool().stats());
        let counter = |word: &glebe_os::internal::sync::MappedWord| word.load(Ordering::Relaxed);
        LentObjectPoolStats {
            lost: counter(&packed.counters.lost),
            refused: counter(&packed.counters.refused),
            taken_out: counter(&packed.counters.taken_out),
            moved: Pages::new(counter(&packed.counters.moved_pages)),
            sealed: counter(&packed.counters.sealed),
            lent: Pages::new(objects.sealed_pages),
            staged: Pages::new(objects.used_pages),
            staging: packed.staged_max(),
            places_bytes: packed.held_bytes(),
            objects,
        }
    }
}

/// [`LentObjectPoolStats`] has a pool's statistics at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LentObjectPoolStats {
    /// Objects found lost with their pages.
    pub lost: u64,
    /// Calls that found the staging full and no page to lend.
    pub refused: u64,
    /// Zspages moved to lent pages.
    pub sealed: u64,
    /// Lent pages moved before first class took them.
    pub moved: Pages,
    /// Objects moved back to the staging from sparse zspages.
    pub taken_out: u64,
    /// Pages of lent zspages, including lost pages until a call finds the loss.
    pub lent: Pages,
    /// Pages of zspages in ordinary memory.
    pub staged: Pages,
    /// Limit of staged pages.
    pub staging: Pages,
    /// Bytes of the tables of lent pages.
    pub places_bytes: u64,
    /// Statistics of the objects.
    pub objects: Stats,
}

const PREFIX: &str = "glebe_object_pool_";

impl LentObjectPoolStats {
    fn rows(&self) -> Vec<Row<'_>> {
        let row = |name, value, what| Row { name, value, what };
        let count = |n| Value::Counter(Unit::Count, n);
        let pages = |pages: Pages| Value::Gauge(Unit::Pages, pages.get());
        let moved = Value::Counter(Unit::Pages, self.moved.get());
        let places = Value::Gauge(Unit::Bytes, self.places_bytes);
        vec![
            row("lost", count(self.lost), "objects found lost with their pages"),
            row("refused", count(self.refused), "inserts for which no page could be lent"),
            row("sealed", count(self.sealed), "zspages that went to lent pages"),
            row("moved_pages", moved, "pages that were moved before first class took them"),
            row("taken_out", count(self.taken_out), "objects that came back from sparse zspages"),
            row("lent_pages", pages(self.lent), "lent pages of zspages"),
            row("staged_pages", pages(self.staged), "pages of zspages in ordinary memory"),
            row("staging_pages", pages(self.staging), "the most of these that there may be"),
            row("places_bytes", places, "bytes of tables that say where lent pages are"),
        ]
    }

    /// Returns one JSON object, with the objects' statistics as `objects`.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut own = json(&self.rows());
        own.truncate(own.trim_end().len() - 1);
        let _ = write!(own, ", \"objects\": {}}}", self.objects.to_json());
        own
    }

    /// Returns OpenMetrics 1.0 text, with the objects' statistics; pages are given in bytes.
    #[must_use]
    pub fn to_openmetrics(&self) -> String {
        let sets = [Set { labels: Vec::new(), rows: self.rows() }];
        families(PREFIX, page_size().bytes(), &sets) + &self.objects.to_openmetrics()
    }

    /// Tests that `lost` equals the objects' `evicted`, and the identities of
    /// [`zpool::Stats`](crate::zpool::Stats). These hold only while no call is under way.
    ///
    /// # Errors
    /// The identity that does not hold, with its values.
    pub fn check(&self) -> Result<(), String> {
        self.objects.check()?;
        if self.lost != self.objects.evicted {
            return Err(format!("lost {} is not evicted {}", self.lost, self.objects.evicted));
        }
        Ok(())
    }
}

listed!(LentObjectPoolStats);

impl std::fmt::Display for LentObjectPoolStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", text(&self.rows()), self.objects)
    }
}

#[cfg(all(test, feature = "lz4", feature = "zstd"))]
mod tests;
