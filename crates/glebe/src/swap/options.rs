//! What a store is made with.

use std::path::PathBuf;

use super::cache::SwapCache;
use super::error::Error;
use super::file::SpillFile;
use super::kept::Kept;
use super::region::Region;
use super::store::Store;
use crate::sys::page_size;
use crate::units::{Bytes, Pages};
use crate::zpool::Codec;

/// Capacity, unless another is given: so many budgets.
const CAPACITY_FACTOR: u64 = 16;
/// The least limit of the pool, unless another is given: an empty pool takes some tens of KiB.
const POOL_LIMIT_MIN: Bytes = Bytes::mib(1);
/// The most pages: an object has a page at least, and a slot of 32 bits.
const PAGES_MAX: Pages = Pages::new(1 << 31);

/// What a store is made with; from [`Store::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    pub(super) codec: Codec,
    pub(super) pool_limit: Option<Bytes>,
    pub(super) capacity: Option<Bytes>,
    pub(super) keeps_copies: bool,
    file: Option<(PathBuf, Bytes)>,
    kept: Option<Kept>,
    #[cfg(feature = "encrypt")]
    is_encrypted: bool,
    /// Whether a region may move pages.
    pub(super) moves: bool,
}

impl Default for Options {
    fn default() -> Self {
        let codec = Codec::default();
        Self {
            codec,
            pool_limit: None,
            capacity: None,
            keeps_copies: true,
            file: None,
            kept: None,
            #[cfg(feature = "encrypt")]
            is_encrypted: false,
            moves: true,
        }
    }
}

impl Options {
    /// How objects are made smaller that leave memory; LZ4 if nothing is said.
    pub fn codec(self, codec: Codec) -> Self {
        Self { codec, ..self }
    }

    /// The most memory that objects may take that are not resident, compressed, everything
    /// counted. If nothing is said, as much as the budget, and 1 MiB at least. It is taken as it is
    /// needed.
    pub fn pool_limit(self, limit: Bytes) -> Self {
        Self { pool_limit: Some(limit), ..self }
    }

    /// The most bytes of all objects, each rounded up to pages; sixteen budgets if nothing is said.
    /// It is address space, and a 64th of it more for tables, of which pages come as they are used.
    pub fn capacity(self, capacity: Bytes) -> Self {
        Self { capacity: Some(capacity), ..self }
    }

    /// Lets what the pool has no room for go to a file in `dir`, of up to `limit` bytes. The file
    /// has no name, is this process's alone, and is gone with it. What it holds is not encrypted
    /// if [`Options::encrypted`] does not say so. On a file system in memory (tmpfs) it is memory
    /// that no limit here counts.
    pub fn file_in(self, dir: impl Into<PathBuf>, limit: Bytes) -> Self {
        Self { file: Some((dir.into(), limit)), ..self }
    }

    /// Encrypts what is written to the file, by a key that only this process has: a read takes
    /// some microseconds more for each page, compressed. Needs the feature `encrypt`.
    #[cfg(feature = "encrypt")]
    pub fn encrypted(self) -> Self {
        Self { is_encrypted: true, ..self }
    }

    /// Has what is in the file in a swap cache too, which is the idle part of a
    /// [reserve](crate::reserve::Reserve): a load reads the file only where first class, or another
    /// user of the cache, took the copy meanwhile. The cache never has what the file has not, so a
    /// recall waits for nothing.
    pub fn cached_in(self, cache: &SwapCache) -> Self {
        Self { kept: Some(cache.kept.clone()), ..self }
    }

    /// Whether an object that was loaded keeps its compressed copy until it is written, so that it
    /// need not be compressed again; it does if nothing is said. Kept copies are the first to go
    /// when the pool is full.
    pub fn keep_copies(self, keeps_copies: bool) -> Self {
        Self { keeps_copies, ..self }
    }

    /// Makes a store of which `budget` is in memory at most.
    ///
    /// # Errors
    /// [`Error::NoBudget`] for less than a page; [`Error::Capacity`]; [`Error::NotCached`] for a
    /// swap cache where there is no file; [`Error::Pool`] for a limit that an empty pool passes or
    /// a codec's parameters; [`Error::Os`] for what the kernel refuses: so many addresses in a
    /// process with a limit on those, a file in the directory.
    pub fn build(self, budget: Bytes) -> Result<Store, Error> {
        Store::new(&self, budget)
    }

    /// Makes a [`Region`] of `len` bytes, rounded up to whole pages, of which `budget` is in memory
    /// at most.
    ///
    /// # Errors
    /// As [`Options::build`]; [`Error::NotCached`] for any swap cache: a touch is served wherever
    /// it happens, also in a call that has a lock of the reserve. [`Error::Os`] also where
    /// userfaultfd(2) is refused; [`Error::HandlerCovered`].
    pub fn build_region(self, len: Bytes, budget: Bytes) -> Result<Region, Error> {
        if self.kept.is_some() {
            let why = "a region's pages may be touched in a call that has a lock of the reserve";
            return Err(Error::NotCached { why });
        }
        Region::new(&self, len, budget)
    }

    /// Has a region take pages away without `UFFDIO_MOVE`, for tests.
    #[doc(hidden)]
    pub fn without_moves(self) -> Self {
        Self { moves: false, ..self }
    }

    /// Pages of a region of `len` bytes.
    pub(super) fn checked_pages(&self, len: Bytes) -> Result<Pages, Error> {
        let (page, max) = (page_size(), PAGES_MAX.bytes(page_size()));
        if len == Bytes::ZERO || len > max {
            return Err(Error::Capacity { given: len, min: Bytes::new(1), max });
        }
        Ok(len.pages_up(page))
    }

    /// The file of a store or region of up to so many objects, if it is to have one.
    pub(super) fn new_file(&self, objects: u64) -> Result<Option<SpillFile>, Error> {
        let Some((dir, limit)) = &self.file else {
            let why =
                "it may lose what it has, so it takes only what a file has, and there is none";
            return self.kept.as_ref().map_or(Ok(None), |_| Err(Error::NotCached { why }));
        };
        let file = SpillFile::new(dir, *limit, objects)?;
        #[cfg(feature = "encrypt")]
        let file = if self.is_encrypted { file.encrypted()? } else { file };
        Ok(Some(match &self.kept {
            Some(kept) => file.cached_in(kept)?,
            None => file,
        }))
    }

    /// The limit of the pool for a store of this budget.
    pub(super) fn pool_limit_for(&self, budget: Bytes) -> Bytes {
        self.pool_limit.unwrap_or(budget.max(POOL_LIMIT_MIN))
    }

    /// Pages of addresses for a store of this budget.
    pub(super) fn capacity_pages(&self, budget: Bytes) -> Result<Pages, Error> {
        let page = page_size();
        let max = PAGES_MAX.bytes(page);
        let most = Bytes::new(budget.get().saturating_mul(CAPACITY_FACTOR)).min(max);
        let given = self.capacity.unwrap_or(most);
        if given < page.bytes() || given > max {
            return Err(Error::Capacity { given, min: page.bytes(), max });
        }
        Ok(given.pages_down(page))
    }
}
