//! [`SwapCache`] makes areas.

use std::path::Path;
use std::sync::Arc;

use super::area::Area;
use crate::reserve::Reserve;
use crate::swap::error::SwapError;
use crate::swap::file::SpillFile;
use crate::swap::kept::Kept;
use crate::zpool::{AtLimit, Codec, ObjectPool};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

const PAGES_MAX: Pages = Pages::new(1 << 28);
/// Allowance for records that no entry names yet.
const CALLS_MAX: u64 = 1 << 12;
const WRITE_BACK_PART: u64 = 16;
const WRITE_BACK_MAX: Bytes = Bytes::mib(16);

/// `SwapCache` has memory for copies of [`Area`]s' pages. See [the module](super).
#[derive(Clone, Debug)]
pub struct SwapCache {
    pub(in crate::swap) kept: Kept,
    pub(super) codec: Codec,
    room: Bytes,
    #[cfg(feature = "encrypt")]
    is_encrypted: bool,
}

impl SwapCache {
    fn new(kept: Kept, room: Bytes) -> Self {
        Self {
            kept,
            codec: Codec::default(),
            room,
            #[cfg(feature = "encrypt")]
            is_encrypted: false,
        }
    }

    /// Makes a cache in the pages of a reserve that no first-class client holds.
    ///
    /// # Errors
    /// [`SwapError::Pool`] in a forked child, or if the kernel refuses memory.
    pub fn on(reserve: &Reserve) -> Result<Self, SwapError> {
        let pool = reserve.object_pool().codec(Codec::None).build()?;
        Ok(Self::new(Kept::Lent(pool), reserve.len().bytes(page_size())))
    }

    /// Makes a cache of up to `limit` bytes of ordinary memory.
    ///
    /// # Errors
    /// [`SwapError::Pool`] if an empty pool exceeds `limit`, or if the kernel refuses memory.
    pub fn with_limit(limit: Bytes) -> Result<Self, SwapError> {
        let options = ObjectPool::options().codec(Codec::None).at_limit(AtLimit::EvictOldest);
        Ok(Self::new(Kept::Own(Arc::new(options.limit(limit).build()?)), limit))
    }

    /// Sets the codec of later areas. Default: LZ4.
    #[must_use]
    pub fn codec(self, codec: Codec) -> Self {
        Self { codec, ..self }
    }

    /// Encrypts the files of later areas. Needs the feature `encrypt`.
    #[cfg(feature = "encrypt")]
    #[must_use]
    pub fn encrypted(self) -> Self {
        Self { is_encrypted: true, ..self }
    }

    /// Returns a [write-back](Area::set_write_back) that suits most areas: a sixteenth of the
    /// reserve or limit, at most 16 MiB.
    #[must_use]
    pub fn usual_write_back(&self) -> Bytes {
        Bytes::new(self.room.get() / WRITE_BACK_PART).min(WRITE_BACK_MAX)
    }

    /// Makes an area that writes through to a file in `dir` of up to `limit` bytes. For the file's
    /// properties, see [`SwapOptions::file_in`](crate::swap::SwapOptions::file_in). A page takes
    /// whole units of 512 bytes; each write begins at a multiple of 4 KiB.
    ///
    /// # Errors
    /// [`SwapError::AreaPages`]; [`SwapError::Pool`] if the codec's parameters are bad;
    /// [`SwapError::Os`].
    pub fn area(&self, pages: Pages, dir: &Path, limit: Bytes) -> Result<Area, SwapError> {
        let pages = checked(pages)?;
        let file = SpillFile::new(dir, limit, pages.get() + CALLS_MAX)?;
        #[cfg(feature = "encrypt")]
        let file = if self.is_encrypted { file.encrypted()? } else { file };
        Area::new(self, pages, Some(file))
    }

    /// Makes an area without a file. Only same-filled pages fit until [`Area::set_put_back`] raises
    /// the limit of 0 bytes.
    ///
    /// # Errors
    /// As [`SwapCache::area`].
    pub fn area_without_file(&self, pages: Pages) -> Result<Area, SwapError> {
        Area::new(self, checked(pages)?, None)
    }
}

fn checked(pages: Pages) -> Result<Pages, SwapError> {
    if pages == Pages::ZERO || pages > PAGES_MAX {
        return Err(SwapError::AreaPages { given: pages, max: PAGES_MAX });
    }
    Ok(pages)
}
