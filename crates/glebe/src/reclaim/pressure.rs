//! [`Pressure`]: how much room the tightest limit leaves, as plain data.

use crate::units::Bytes;

/// What the limit is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// A memory cgroup with a limit, above this process.
    Group,
    /// The machine: no group above has a limit, or it has more room.
    #[default]
    Machine,
}

/// How short memory is, where it is shortest.
///
/// ```text
/// limit   |<------------------------------------------------------->|
///         |  used, less files           | files      |              |
///         |                             |<-- room ----------------->|
///         |                                          |<-- free ---->|   and idle files
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// What the limit is of.
    pub scope: Scope,
    /// The most that may be used.
    pub limit: Bytes,
    /// What is used, marked memory and the page cache with it.
    pub used: Bytes,
    /// Of it the page cache that the kernel drops before it kills: inactive files and half of the
    /// active ones. Marked memory, which the kernel counts there, is not in it.
    pub files: Bytes,
    /// Of these what nobody misses: for some time nothing was read back that had been dropped.
    pub idle_files: Bytes,
    /// By how much that grew which neither is page cache nor is marked, in a second.
    pub rise_a_second: Bytes,
}

impl Pressure {
    /// What can be had before the kernel kills: it drops files first.
    #[must_use]
    pub fn room(&self) -> Bytes {
        self.limit.saturating_sub(self.used.saturating_sub(self.files))
    }

    /// What can be had before the kernel drops a file page that somebody may want again.
    #[must_use]
    pub fn free(&self) -> Bytes {
        self.limit.saturating_sub(self.used.saturating_sub(self.idle_files))
    }
}
