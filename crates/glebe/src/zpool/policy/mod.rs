//! What a pool does by itself or on demand beside storing objects. Each takes the parts of the pool
//! that it works on, and keeps only where it goes on.

pub(crate) mod compact;
pub(crate) mod evict;
pub(crate) mod refit;
pub(crate) mod shed;
