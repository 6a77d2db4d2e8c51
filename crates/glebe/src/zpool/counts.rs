//! [`Counts`]: what is counted in a class, under its lock.

/// What is counted in a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Objects there.
    pub(crate) objects: u64,
    /// Their stored bytes.
    pub(crate) bytes: u64,
    /// Their bytes as they were given; modulo 2^64, since that may be damaged.
    pub(crate) given: u64,
    /// Objects that came by insert or replace.
    pub(crate) came: u64,
    /// Objects that went by remove or replace.
    pub(crate) went: u64,
    /// Objects that were evicted.
    pub(crate) evicted: u64,
    /// Objects that compaction moved here, from another class or this.
    pub(crate) moved_in: u64,
    /// Objects that compaction moved away, to another class or this.
    pub(crate) moved_out: u64,
    /// Pages that compaction freed.
    pub(crate) compacted: u64,
    /// Of those that came, objects that took a page each.
    pub(crate) paged: u64,
}
