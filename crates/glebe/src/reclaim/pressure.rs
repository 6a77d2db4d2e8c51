//! [`Pressure`]: the room that the tightest limit leaves. Plain data.

use glebe_os::units::Bytes;

/// The owner of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// A memory cgroup with a limit, above this process.
    Group,
    /// The machine: no group above has a limit, or the machine has less room.
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
    /// Bytes used, marked memory and page cache included.
    pub used: Bytes,
    /// The part of `used` that the kernel drops before it kills: inactive files and half of the
    /// active ones, without marked memory.
    pub files: Bytes,
    /// The part of `files` that nobody misses: for some time no dropped page was read back.
    pub idle_files: Bytes,
    /// Growth a second of memory neither page cache nor marked.
    pub rise_a_second: Bytes,
}

impl Pressure {
    /// Returns the bytes available before the kernel kills.
    #[must_use]
    pub fn room(&self) -> Bytes {
        self.limit.saturating_sub(self.used.saturating_sub(self.files))
    }

    /// Returns the bytes available before the kernel drops a file page that may be missed.
    #[must_use]
    pub fn free(&self) -> Bytes {
        self.limit.saturating_sub(self.used.saturating_sub(self.idle_files))
    }
}
