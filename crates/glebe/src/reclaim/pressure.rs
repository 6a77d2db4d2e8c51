//! [`Pressure`] holds the tightest limit.

use glebe_os::units::Bytes;

/// The owner of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// A memory cgroup with a limit, above this process.
    Group,
    /// The machine: no group's limit was read, or the machine has less room.
    #[default]
    Machine,
}

/// The figures of the tightest limit.
///
/// ```text
/// limit   |<------------------------------------------------------->|
///         |  used, less files           | files      |              |
///         |                             |<-- room ----------------->|
///         |                                          |<-- free ---->|   and idle files
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// The owner of the limit.
    pub scope: Scope,
    /// The most bytes that may be used.
    pub limit: Bytes,
    /// Bytes used, including marked memory and, for a group, page cache.
    pub used: Bytes,
    /// Page cache of a group that the kernel drops before it kills a process: inactive and half of
    /// the active files, without marked memory.
    pub files: Bytes,
    /// Inactive files of a group, if the kernel read back no dropped page lately; otherwise 0.
    pub idle_files: Bytes,
    /// Growth of the memory that is neither page cache nor marked, in bytes a second.
    pub rise_a_second: Bytes,
}

impl Pressure {
    /// Returns the bytes available before the kernel kills a process.
    #[must_use]
    pub fn room(&self) -> Bytes {
        self.limit.saturating_sub(self.used.saturating_sub(self.files))
    }

    /// Returns the bytes available before the kernel drops file pages in use.
    #[must_use]
    pub fn free(&self) -> Bytes {
        self.limit.saturating_sub(self.used.saturating_sub(self.idle_files))
    }
}
