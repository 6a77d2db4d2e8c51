//! [`SwapOptions`] builds a store or region.

use std::path::PathBuf;

use super::cache::SwapCache;
use super::error::SwapError;
use super::file::SpillFile;
use super::kept::Kept;
use super::region::Region;
use super::store::Store;
use crate::zpool::Codec;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

const CAPACITY_FACTOR: u64 = 16;
/// An empty pool takes some tens of KiB.
const POOL_LIMIT_MIN: Bytes = Bytes::mib(1);
/// Slot numbers have 32 bits.
const PAGES_MAX: Pages = Pages::new(1 << 31);

/// Settings of a store or region.
#[derive(Clone, Debug)]
#[must_use]
pub struct SwapOptions {
    pub(super) codec: Codec,
    pub(super) pool_limit: Option<Bytes>,
    pub(super) capacity: Option<Bytes>,
    pub(super) keeps_copies: bool,
    file: Option<(PathBuf, Bytes)>,
    kept: Option<Kept>,
    #[cfg(feature = "encrypt")]
    is_encrypted: bool,
    pub(super) moves: bool,
}

impl Default for SwapOptions {
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

impl SwapOptions {
    /// Sets the codec for objects that leave memory. Default: LZ4.
    pub fn codec(self, codec: Codec) -> Self {
        Self { codec, ..self }
    }

    /// Limits the memory of compressed objects. Default: the budget, at least 1 MiB.
    pub fn pool_limit(self, limit: Bytes) -> Self {
        Self { pool_limit: Some(limit), ..self }
    }

    /// Limits the sum of all objects' lengths, each rounded up to pages. Tables take up to a 64th
    /// of the capacity. Default: sixteen times the budget.
    pub fn capacity(self, capacity: Bytes) -> Self {
        Self { capacity: Some(capacity), ..self }
    }

    /// Adds a file in `dir` of up to `limit` bytes, for copies that do not fit into the pool. The
    /// file has no name, disappears with the process, and is not encrypted by default. On tmpfs,
    /// the file takes memory beyond the budget and the pool's limit.
    pub fn file_in(self, dir: impl Into<PathBuf>, limit: Bytes) -> Self {
        Self { file: Some((dir.into(), limit)), ..self }
    }

    /// Encrypts the file with a key of this process only. A read takes some microseconds more per
    /// page. Needs the feature `encrypt`.
    #[cfg(feature = "encrypt")]
    pub fn encrypted(self) -> Self {
        Self { is_encrypted: true, ..self }
    }

    /// Caches the file in `cache`. A load reads the file only if the cached copy is gone.
    pub fn cached_in(self, cache: &SwapCache) -> Self {
        Self { kept: Some(cache.kept.clone()), ..self }
    }

    /// Sets whether a loaded object keeps its compressed copy until it is pinned for writing. A
    /// full pool drops such copies first. Default: true.
    pub fn keep_copies(self, keeps_copies: bool) -> Self {
        Self { keeps_copies, ..self }
    }

    /// Makes a store with at most `budget` bytes in memory.
    ///
    /// # Errors
    /// `NoBudget`, `Capacity`; `NotCached` for a swap cache without a file; `Pool` for bad codec
    /// parameters or a too small limit; `Os`.
    pub fn build(self, budget: Bytes) -> Result<Store, SwapError> {
        Store::new(&self, budget)
    }

    /// Makes a [`Region`] of `len` bytes, rounded up to pages, with at most `budget` in memory.
    ///
    /// # Errors
    /// As [`SwapOptions::build`]. `NotCached` for any swap cache. `Os` if the kernel lacks
    /// userfaultfd(2). `HandlerCovered` if another SIGBUS handler runs first.
    pub fn build_region(self, len: Bytes, budget: Bytes) -> Result<Region, SwapError> {
        if self.kept.is_some() {
            let why = "a region's pages may be touched in a call that has a lock of the reserve";
            return Err(SwapError::NotCached { why });
        }
        Region::new(&self, len, budget)
    }

    pub(super) fn checked_pages(&self, len: Bytes) -> Result<Pages, SwapError> {
        let (page, max) = (page_size(), PAGES_MAX.bytes(page_size()));
        if len == Bytes::ZERO || len > max {
            return Err(SwapError::Capacity { given: len, min: Bytes::new(1), max });
        }
        Ok(len.pages_up(page))
    }

    pub(super) fn new_file(&self, objects: u64) -> Result<Option<SpillFile>, SwapError> {
        let Some((dir, limit)) = &self.file else {
            let why =
                "it may lose what it has, so it takes only what a file has, and there is none";
            return self.kept.as_ref().map_or(Ok(None), |_| Err(SwapError::NotCached { why }));
        };
        let file = SpillFile::new(dir, *limit, objects)?;
        #[cfg(feature = "encrypt")]
        let file = if self.is_encrypted { file.encrypted()? } else { file };
        Ok(Some(match &self.kept {
            Some(kept) => file.cached_in(kept)?,
            None => file,
        }))
    }

    pub(super) fn pool_limit_for(&self, budget: Bytes) -> Bytes {
        self.pool_limit.unwrap_or(budget.max(POOL_LIMIT_MIN))
    }

    pub(super) fn capacity_pages(&self, budget: Bytes) -> Result<Pages, SwapError> {
        let page = page_size();
        let max = PAGES_MAX.bytes(page);
        let most = Bytes::new(budget.get().saturating_mul(CAPACITY_FACTOR)).min(max);
        let given = self.capacity.unwrap_or(most);
        if given < page.bytes() || given > max {
            return Err(SwapError::Capacity { given, min: page.bytes(), max });
        }
        Ok(given.pages_down(page))
    }
}

/// Disables `UFFDIO_MOVE`.
pub fn without_moves(options: SwapOptions) -> SwapOptions {
    SwapOptions { moves: false, ..options }
}
