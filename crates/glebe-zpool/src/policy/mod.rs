//! Policies of a pool: compaction, eviction, the choice of a table, shedding.

pub(crate) mod compact;
pub(crate) mod evict;
pub(crate) mod refit;
pub(crate) mod shed;
