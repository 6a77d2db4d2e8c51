//! [`Store`] is the memory of a cache: the daemon's, or a file's.

use std::path::{Path, PathBuf};

use glebe_lease::internal::Places;
use glebe_lease::LeaseError;
use glebe_os::internal::mapping::Part;
use glebe_os::units::Bytes;

use crate::error::CacheError;
use crate::file::CacheFile;

#[derive(Debug)]
pub(crate) enum Store {
    Daemon(Box<Places>),
    File(Box<CacheFile>),
}

impl Store {
    pub(crate) fn open(
        socket: &Path,
        folder: Option<PathBuf>,
        name: &str,
        size: Bytes,
    ) -> Result<Self, CacheError> {
        match Places::open(socket, name, size) {
            Ok(places) => Ok(Self::Daemon(places.into())),
            Err(LeaseError::NoDaemon { .. }) => {
                CacheFile::open(folder, name, size).map(|file| Self::File(file.into()))
            }
            Err(other) => Err(other.into()),
        }
    }

    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Daemon(places) => places.count(),
            Self::File(file) => file.count(),
        }
    }

    /// Returns the bytes of a place.
    pub(crate) fn place(&self) -> Bytes {
        match self {
            Self::Daemon(places) => places.place(),
            Self::File(file) => file.place(),
        }
    }

    /// Returns the place of a hash. The upper bits choose it, the lower ones a set there.
    #[inline]
    pub(crate) fn place_of(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.count() as u128) >> u64::BITS) as usize
    }

    pub(crate) fn seed(&self) -> u64 {
        match self {
            Self::Daemon(places) => places.seed(),
            Self::File(file) => file.seed(),
        }
    }

    /// Calls `work` with a place that has memory. With `is_asked`, the place may get memory.
    pub(crate) fn with<R>(
        &self,
        index: usize,
        is_asked: bool,
        work: impl FnOnce(Part<'_>) -> R,
    ) -> Option<R> {
        match self {
            Self::Daemon(places) if is_asked => places.get_or_ask(index).map(work),
            Self::Daemon(places) => places.get(index).map(work),
            Self::File(file) => file.with(index, is_asked, work),
        }
    }

    pub(crate) fn end(&self) -> Result<(), CacheError> {
        match self {
            Self::Daemon(places) => Ok(places.end()?),
            Self::File(file) => file.end(),
        }
    }
}
