//! Policies of a pool.

pub(crate) mod compact;
pub(crate) mod evict;
pub(crate) mod refit;
pub mod shed;
