//! Errors of a lookup that builds.

use glebe_os::units::Bytes;

/// The error of [`Cache::get_or_build`](super::Cache::get_or_build).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError<E> {
    /// The builder failed.
    #[error("{0}")]
    Builder(E),
    /// A builder waits for its own value, or builders wait for each other's.
    #[error("the builder of a value waits for that value itself")]
    Recursion,
    /// The value exceeds the cache's addresses.
    #[error("a value of {count} items of {item_bytes} bytes; the cache has addresses for {limit}")]
    TooLong {
        /// Items requested.
        count: usize,
        /// Bytes of an item.
        item_bytes: usize,
        /// Bytes of the cache's addresses.
        limit: Bytes,
    },
    /// No heap memory is left for a value that the cache cannot keep.
    #[error("no memory for a value of {len} that the cache could not take in")]
    NoMemory {
        /// Bytes of the value.
        len: Bytes,
    },
}
