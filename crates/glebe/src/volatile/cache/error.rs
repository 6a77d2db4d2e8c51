//! [`BuildError`]: why there is no value for a key.

use crate::units::Bytes;

/// Why [`Cache::get_or_build`](super::Cache::get_or_build) has no value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError<E> {
    /// The builder failed.
    #[error("{0}")]
    Builder(E),
    /// The builder of a value asks for the value that it builds, or threads that build ask for each
    /// other's in a circle: none of them could ever go on.
    #[error("the builder of a value waits for that value itself")]
    Recursion,
    /// A value that is longer than all addresses of the cache.
    #[error("a value of {count} items of {item_bytes} bytes; the cache has addresses for {limit}")]
    TooLong {
        /// How many were asked for.
        count: usize,
        /// Bytes of each.
        item_bytes: usize,
        /// Bytes of addresses.
        limit: Bytes,
    },
    /// No ordinary memory for a value that the cache could not take in.
    #[error("no memory for a value of {len} that the cache could not take in")]
    NoMemory {
        /// Its length.
        len: Bytes,
    },
}
