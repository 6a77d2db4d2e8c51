//! [`SharedCacheOptions`] opens a [`SharedCache`].

use std::path::PathBuf;

use glebe_lease::{socket_path, LeaseError};
use glebe_os::units::Bytes;

use crate::cache::SharedCache;
use crate::error::CacheError;
use crate::store::Store;

const SIZE: Bytes = Bytes::mib(256);
const SIZE_MAX: Bytes = Bytes::new(1 << 40);
const NAME_MAX: usize = 32;

/// Options of a [`SharedCache`]; from [`SharedCache::options`].
#[derive(Clone, Debug)]
#[must_use = "options do nothing until a cache is opened"]
pub struct SharedCacheOptions {
    size: Bytes,
    socket: Option<PathBuf>,
    folder: Option<PathBuf>,
}

impl Default for SharedCacheOptions {
    fn default() -> Self {
        Self { size: SIZE, socket: None, folder: None }
    }
}

impl SharedCacheOptions {
    /// Sets the cache's size: whole places, at most the daemon's reserve. A cache that exists keeps
    /// its size. Default: 256 MiB.
    pub fn size(self, size: Bytes) -> Self {
        Self { size, ..self }
    }

    /// Sets the daemon's socket. If no daemon answers there, only a [`folder`](Self::folder) that
    /// is also given serves. Default: [`socket_path`], and a file if no daemon answers.
    pub fn socket(self, path: impl Into<PathBuf>) -> Self {
        Self { socket: Some(path.into()), ..self }
    }

    /// Sets the directory of the files that serve where no daemon runs, on tmpfs. Default:
    /// `glebe-caches` in `$XDG_RUNTIME_DIR`, else `/dev/shm/glebe-caches-UID`.
    pub fn folder(self, path: impl Into<PathBuf>) -> Self {
        Self { folder: Some(path.into()), ..self }
    }

    /// Opens the user's cache `name`, or makes it.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn open(self, name: &str) -> Result<SharedCache, CacheError> {
        if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
            return Err(CacheError::BadName { name: name.to_owned() });
        }
        if self.size == Bytes::ZERO || self.size > SIZE_MAX {
            return Err(CacheError::BadSize { size: self.size });
        }
        let needs_daemon = self.socket.is_some() && self.folder.is_none();
        let socket = self.socket.unwrap_or_else(socket_path);
        let store = match Store::of_daemon(&socket, name, self.size) {
            Err(LeaseError::NoDaemon { .. }) if !needs_daemon => {
                Store::of_file(self.folder, name, self.size)?
            }
            of_daemon => of_daemon?,
        };
        Ok(SharedCache::new(name, store))
    }
}
