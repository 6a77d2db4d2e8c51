//! Models use these in place of the kernel and of mapped memory: restartable sequences, pages and
//! tables.

pub(crate) mod critical;
pub(crate) mod frames;
pub(crate) mod table;

/// In the reserve one file has both.
pub(crate) mod access {
    pub(crate) use super::critical::*;
    pub(crate) use super::frames::Frames;
}
