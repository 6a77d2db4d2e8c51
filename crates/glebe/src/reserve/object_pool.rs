//! [`LentObjectPool`]: a pool of compressed objects that lives on pages which first class does not
//! hold, and loses what first class takes.
//!
//! What is done with lent pages is in [`packed`](super::packed), the rest in
//! [`zpool`](crate::zpool). After fork every call in the child is an error, as in the reserve.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use super::packed::{Packed, Rest};
use super::shared::Shared;
use super::{Inner, Reserve};
use crate::stats::{families, json, listed, text, Row, Set, Unit, Value};
use crate::sync::Ordering;
use crate::sys::page_size;
use crate::units::{Bytes, Pages};
use crate::zpool::{Budget, Codec, Compacted, Error, Handle, ObjectPool as Pool, Stats};

/// What a pool of objects on lent pages is made with.
#[derive(Clone, Debug)]
#[must_use]
pub struct LentObjectPoolOptions {
    reserve: Reserve,
    codec: Codec,
    staging: Option<Bytes>,
    on_recall: OnRecall,
}

/// What happens to the pages of a pool of objects that first class takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnRecall {
    /// They are lost, at once: first class pays nothing for them.
    #[default]
    Discard,
    /// First class copies them to other lent pages before it takes them: free ones, or those of
    /// the page cache, which are evicted. What finds no place is lost. Each page costs first class
    /// a microsecond or so, and every block of such a reserve a look at each of its pages.
    Move,
}

impl LentObjectPoolOptions {
    pub(super) fn new(reserve: Reserve) -> Self {
        let on_recall = OnRecall::default();
        Self { reserve, codec: Codec::default(), staging: None, on_recall }
    }

    /// How objects are made smaller; LZ4 if nothing is said.
    pub fn codec(self, codec: Codec) -> Self {
        Self { codec, ..self }
    }

    /// Ordinary memory for objects before they go to lent pages: a 64th of the reserve if
    /// nothing is said, and never less than 64 pages. What is there no recall takes.
    pub fn staging(self, staging: Bytes) -> Self {
        Self { staging: Some(staging), ..self }
    }

    /// What happens to pages that first class takes.
    pub fn on_recall(self, on_recall: OnRecall) -> Self {
        Self { on_recall, ..self }
    }

    /// Makes the pool.
    ///
    /// # Errors
    /// [`Error::Forked`], a codec's bad parameters, or what the kernel refuses.
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

/// Gives the lent pages back at its end.
#[derive(Debug)]
struct Owned {
    packed: Arc<Packed>,
    inner: Shared<Inner>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Ok(inner) = self.inner.get() {
            self.packed.drop_all(inner.lender());
        }
    }
}

/// A pool of objects of 1 byte to a page that live, packed and compressed, in pages which first
/// class does not hold: a cheap handle.
///
/// Objects come into ordinary memory, the staging; when that is full they go to lent pages. There
/// they are second class: first class takes pages back at once, and the objects that had bytes
/// there are *lost*, as those are whose pages go for other tenants' pages. Who reads a lost object
/// first gets nothing, later its handle is stale.
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
    /// How a pool of objects on lent pages is made.
    pub fn object_pool(&self) -> LentObjectPoolOptions {
        LentObjectPoolOptions::new(self.clone())
    }
}

impl LentObjectPool {
    #[inline]
    fn inner(&self) -> Result<&Inner, Error> {
        self.owned.inner.get().map_err(|_| Error::Forked)
    }

    fn pool(&self) -> &Pool {
        self.owned.packed.staging.pool()
    }

    fn checked_room(&self, inner: &Inner, len: usize) -> Result<(), Error> {
        let packed = &self.owned.packed;
        if packed.has_room(inner.lender()) {
            return Ok(());
        }
        let limit = packed.staged_max().bytes(self.pool().page);
        Err(Error::Full { len, held: self.pool().held(), limit })
    }

    /// Stores an object.
    ///
    /// # Errors
    /// [`Error::Empty`] and [`Error::TooLong`] for what no pool takes; [`Error::Full`] where the
    /// staging is full and no pages can be lent, with the staging as limit; [`Error::Forked`]; or
    /// what the kernel refuses.
    pub fn insert(&self, bytes: &[u8]) -> Result<Handle, Error> {
        let inner = self.inner()?;
        self.checked_room(inner, bytes.len())?;
        let handle = self.pool().insert(bytes)?;
        self.owned.packed.settle(inner.lender());
        Ok(handle)
    }

    /// Copies an object to the start of `buf`; its length, or `None` if it was lost. After that,
    /// and after an error, `buf` may hold anything.
    ///
    /// # Errors
    /// [`Error::Stale`]: it was removed, or was found lost before. [`Error::Foreign`],
    /// [`Error::BufferTooSmall`], [`Error::Forked`].
    pub fn read(&self, handle: Handle, buf: &mut [u8]) -> Result<Option<usize>, Error> {
        let inner = self.inner()?;
        let pinned = self.pool().pinned(handle)?;
        let decode = |stored: &[u8]| self.pool().decode(&pinned, stored, buf);
        let done = self.owned.packed.with_stored(inner.lender(), &pinned, decode).transpose();
        self.pool().count_codec();
        done
    }

    /// The length of an object, as it was given; `None` if it was lost.
    ///
    /// # Errors
    /// As [`LentObjectPool::read`].
    pub fn len_of(&self, handle: Handle) -> Result<Option<usize>, Error> {
        let inner = self.inner()?;
        let pinned = self.pool().pinned(handle)?;
        let len = |stored: &[u8]| self.pool().len_of_stored(&pinned, stored);
        self.owned.packed.with_stored(inner.lender(), &pinned, len).transpose()
    }

    /// Stores other bytes under the same handle, whether or not the old ones were lost unnoticed.
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

    /// Removes an object, whether or not it was lost unnoticed.
    ///
    /// # Errors
    /// [`Error::Stale`]: it was removed, or was found lost before. [`Error::Foreign`],
    /// [`Error::Forked`].
    pub fn remove(&self, handle: Handle) -> Result<(), Error> {
        let inner = self.inner()?;
        self.pool().remove(handle)?;
        self.owned.packed.settle(inner.lender());
        Ok(())
    }

    /// Compacts what is staged and then, as far as the budget still allows, brings objects of
    /// lent zspages together of which a quarter of the slots or more is free. By itself a pool
    /// does that where half of them are, bit by bit as it lends.
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

    /// Looks at the pages of so many zspages, going on where the last call ended, and ends the
    /// objects whose pages are lost. Inserts do that too, bit by bit.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn sweep(&self, zspages: u64) -> Result<(), Error> {
        let inner = self.inner()?;
        self.owned.packed.sweep(inner.lender(), zspages);
        Ok(())
    }

    /// The statistics now; zeros in a forked child. O(zspages).
    #[must_use]
    pub fn stats(&self) -> LentObjectPoolStats {
        if self.inner().is_err() {
            return LentObjectPoolStats::default();
        }
        let (packed, objects) = (&self.owned.packed, self.pool().stats());
        let counter = |word: &crate::sync::MappedWord| word.load(Ordering::Relaxed);
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

/// The statistics of an [`LentObjectPool`] at one moment.
///
/// Identities, exact while no call is under way ([`LentObjectPoolStats::check`] tests them): those
/// of [`zpool::Stats`](crate::zpool::Stats), whose `evicted` are `lost` here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LentObjectPoolStats {
    /// Objects found lost: first class, or other tenants' pages, took pages of theirs.
    pub lost: u64,
    /// Inserts refused: the staging was full, and no pages could be lent.
    pub refused: u64,
    /// Zspages that went to lent pages.
    pub sealed: u64,
    /// Pages that were moved before first class took them.
    pub moved: Pages,
    /// Objects that came back from sparse zspages.
    pub taken_out: u64,
    /// Lent pages of zspages, those that are lost and not yet found so among them.
    pub lent: Pages,
    /// Pages of zspages in ordinary memory.
    pub staged: Pages,
    /// The most that there may be.
    pub staging: Pages,
    /// Bytes of tables that say where lent pages are, beside the pool's own.
    pub places_bytes: u64,
    /// Those of the objects.
    pub objects: Stats,
}

/// What every name in OpenMetrics begins with.
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

    /// One JSON object, with that of the objects in it.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut own = json(&self.rows());
        own.truncate(own.trim_end().len() - 1);
        let _ = write!(own, ", \"objects\": {}}}", self.objects.to_json());
        own
    }

    /// OpenMetrics 1.0 text, with that of the objects; pages of memory are bytes there.
    #[must_use]
    pub fn to_openmetrics(&self) -> String {
        let sets = [Set { labels: Vec::new(), rows: self.rows() }];
        families(PREFIX, page_size().bytes(), &sets) + &self.objects.to_openmetrics()
    }

    /// Tests the identities; they hold while no call is under way.
    ///
    /// # Errors
    /// Which one does not hold, with its values.
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
