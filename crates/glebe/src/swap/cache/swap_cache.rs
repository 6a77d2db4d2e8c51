//! [`SwapCache`]: memory in which copies of areas' pages are kept, and how areas are made.

use std::path::Path;
use std::sync::Arc;

use super::area::Area;
use crate::reserve::Reserve;
use crate::swap::error::Error;
use crate::swap::file::SpillFile;
use crate::swap::kept::Kept;
use crate::sys::page_size;
use crate::units::{Bytes, Pages};
use crate::zpool::{AtLimit, Codec, ObjectPool};

/// The most pages of an area.
const PAGES_MAX: Pages = Pages::new(1 << 28);
/// Calls at once that may have written what no entry names yet, beside a record for each page.
const CALLS_MAX: u64 = 1 << 12;
/// Of a reserve or a limit, the part that write-back usually has, and the most.
const WRITE_BACK_PART: u64 = 16;
const WRITE_BACK_MAX: Bytes = Bytes::mib(16);

/// Memory for copies of the pages of [`Area`]s: the idle part of a reserve, or a pool. See [the
/// module](super).
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

    /// In what first class does not hold.
    ///
    /// # Errors
    /// [`Error::Pool`]: the caller is a forked child, or what the kernel refuses.
    pub fn on(reserve: &Reserve) -> Result<Self, Error> {
        let pool = reserve.object_pool().codec(Codec::None).build()?;
        Ok(Self::new(Kept::Lent(pool), reserve.len().bytes(page_size())))
    }

    /// In up to `limit` of ordinary memory, where there is no reserve.
    ///
    /// # Errors
    /// [`Error::Pool`] for a limit that an empty pool passes, or what the kernel refuses.
    pub fn with_limit(limit: Bytes) -> Result<Self, Error> {
        let options = ObjectPool::options().codec(Codec::None).at_limit(AtLimit::EvictOldest);
        Ok(Self::new(Kept::Own(Arc::new(options.limit(limit).build()?)), limit))
    }

    /// How pages of areas made from now on are made smaller; LZ4 if nothing is said.
    #[must_use]
    pub fn codec(self, codec: Codec) -> Self {
        Self { codec, ..self }
    }

    /// Encrypts what areas made from now on write to their files, each by a key that only this
    /// process has. Needs the feature `encrypt`.
    #[cfg(feature = "encrypt")]
    #[must_use]
    pub fn encrypted(self) -> Self {
        Self { is_encrypted: true, ..self }
    }

    /// What suits most areas as [write-back](Area::set_write_back): a sixteenth of the reserve or
    /// the limit, and at most 16 MiB.
    #[must_use]
    pub fn usual_write_back(&self) -> Bytes {
        Bytes::new(self.room.get() / WRITE_BACK_PART).min(WRITE_BACK_MAX)
    }

    /// Makes an area of so many pages, written through to a file in `dir` of up to `limit` bytes.
    /// The file has no name, is this process's alone, and is gone with it. What it holds is not
    /// encrypted if [`SwapCache::encrypted`] does not say so. A page takes whole units of 512 bytes
    /// of it, one that is written alone whole units of 4 KiB.
    ///
    /// # Errors
    /// [`Error::AreaPages`] for none or too many; [`Error::Pool`] for a codec's parameters;
    /// [`Error::Os`] for what the kernel refuses: addresses in a process with a limit on those, a
    /// file in the directory.
    pub fn area(&self, pages: Pages, dir: &Path, limit: Bytes) -> Result<Area, Error> {
        let pages = checked(pages)?;
        let file = SpillFile::new(dir, limit, pages.get() + CALLS_MAX)?;
        #[cfg(feature = "encrypt")]
        let file = if self.is_encrypted { file.encrypted()? } else { file };
        Area::new(self, pages, Some(file))
    }

    /// Makes an area of so many pages that has no file: it stores what put-back has room for, which
    /// is nothing until [`Area::set_put_back`] says otherwise.
    ///
    /// # Errors
    /// As [`SwapCache::area`].
    pub fn area_without_file(&self, pages: Pages) -> Result<Area, Error> {
        Area::new(self, checked(pages)?, None)
    }
}

fn checked(pages: Pages) -> Result<Pages, Error> {
    if pages == Pages::ZERO || pages > PAGES_MAX {
        return Err(Error::AreaPages { given: pages, max: PAGES_MAX });
    }
    Ok(pages)
}
