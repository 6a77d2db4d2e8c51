//! What models have in place of the kernel's and of mapped memory: for the reserve restartable
//! sequences, pages and tables; for pools of objects slots and tables of words; for shared volatile
//! memory a file and its locks.

pub(crate) mod critical;
pub(crate) mod frames;
pub(crate) mod ledger;
pub(crate) mod slots;
pub(crate) mod table;
pub(crate) mod words;

/// As in the reserve, where the two are one file.
pub(crate) mod access {
    pub(crate) use super::critical::*;
    pub(crate) use super::frames::Frames;
}
