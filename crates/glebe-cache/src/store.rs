//! [`Store`] is the memory of a cache: the daemon's, or a file's.

use std::path::{Path, PathBuf};

use glebe_lease::internal::{PlaceUse, Places};
use glebe_lease::LeaseError;
use glebe_os::internal::hash::hash;
use glebe_os::internal::mapping::Part;
use glebe_os::units::Bytes;

use crate::error::CacheError;
use crate::file::CacheFile;
use crate::table::Table;

const TRIES: usize = 3;

#[derive(Debug)]
pub(crate) enum Store {
    Daemon(Box<Places>),
    File(Box<CacheFile>),
}

impl Store {
    pub(crate) fn of_daemon(socket: &Path, name: &str, size: Bytes) -> Result<Self, LeaseError> {
        Ok(Self::Daemon(Places::open(socket, name, size)?.into()))
    }

    pub(crate) fn of_file(
        folder: Option<PathBuf>,
        name: &str,
        size: Bytes,
    ) -> Result<Self, CacheError> {
        Ok(Self::File(CacheFile::open(folder, name, size)?.into()))
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

    /// Calls `work` with the place of an index.
    pub(crate) fn with<R>(
        &self,
        index: usize,
        wanted: PlaceUse,
        work: impl FnOnce(Part<'_>) -> R,
    ) -> Option<R> {
        match self {
            Self::Daemon(places) => places.get(index, wanted).map(work),
            Self::File(file) => file.with(index, wanted == PlaceUse::Fill, work),
        }
    }

    /// Calls `work` with the place of a key and its hash. Calls it again if the cache was ended
    /// meanwhile, since the next one has another seed. Also if this process replaced the place by
    /// zeros, so that the change may be lost.
    pub(crate) fn change<R>(
        &self,
        key: &[u8],
        wanted: PlaceUse,
        work: impl Fn(&Table<'_>, u64) -> R,
    ) -> Option<R> {
        for _ in 0..TRIES {
            let seed = self.seed();
            let hash = hash(seed, key);
            let place = self.place_of(hash);
            let replaced = self.replaced(place);
            let done = self.with(place, wanted, |at| work(&Table::new(at), hash));
            if self.seed() == seed && self.replaced(place) == replaced {
                return done;
            }
        }
        None
    }

    fn replaced(&self, place: usize) -> u64 {
        match self {
            Self::Daemon(places) => places.replaced(place),
            Self::File(_) => 0,
        }
    }

    pub(crate) fn end(&self) -> Result<(), CacheError> {
        match self {
            Self::Daemon(places) => Ok(places.end()?),
            Self::File(file) => file.end(),
        }
    }
}
