//! Models use these in place of the kernel and of mapped memory: restartable sequences, pages and
//! tables for a reserve, slots and tables of words for object pools, a file and its locks for
//! shared volatile memory.

pub(crate) mod critical;
pub(crate) mod frames;
pub(crate) mod ledger;
pub(crate) mod slots;
pub(crate) mod table;
pub(crate) mod words;

/// In the reserve one file has both.
pub(crate) mod access {
    pub(crate) use super::critical::*;
    pub(crate) use super::frames::Frames;
}
