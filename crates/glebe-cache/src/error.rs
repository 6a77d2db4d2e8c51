//! [`CacheError`] is the reason why a call failed.

use glebe_lease::LeaseError;
use glebe_os::units::Bytes;

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The key with its value exceeds a place. Nothing is stored for the key.
    #[error("a key and its value of {len} bytes; the cache {name:?} has room for {limit} bytes")]
    TooLong {
        /// Name of the cache.
        name: String,
        /// Bytes of both.
        len: usize,
        /// Most bytes of both.
        limit: usize,
    },
    /// The name is empty, longer than 32 bytes, or has control characters.
    #[error("a cache of the name {name:?}; a name has 1 to 32 bytes, no control characters")]
    BadName {
        /// The name.
        name: String,
    },
    /// The size is 0, or more than a terabyte.
    #[error("a cache of {size}; at least 1 byte, at most 1 TiB")]
    BadSize {
        /// Bytes asked for.
        size: Bytes,
    },
    /// The daemon refused the cache.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// No daemon runs, and the volatile file cannot be used.
    #[error("the cache's file {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// The refusal.
        source: glebe_volatile::Error,
    },
    /// No daemon runs, and the directory of files cannot be made.
    #[error("the directory {path} for caches: {source}")]
    Directory {
        /// The directory.
        path: String,
        /// The refusal.
        source: glebe_os::error::OsError,
    },
}
