//! Real memory pressure: a cgroup with a limit, a child of this program inside it, and what it
//! does there to want more memory than the limit allows.
//!
//! A [`Group`] is made below the mount of the memory controller, of version 1 or 2 (`place`), and
//! removed when it is dropped, whatever ended its use. Only children of this process enter it: this
//! process itself stays outside, so that it can tell of a child that the kernel killed
//! ([`Group::ask`]). Swap is off inside. Units: bytes; events since the group was made.
//! Source: admin-guide/cgroup-v1/memory, admin-guide/cgroup-v2, cgroups(7).

mod group;
mod load;
mod place;

pub use group::{enter, Counters, Group};
pub(crate) use load::nameless;
pub use load::{AnonLoad, FileLoad};

use glebe::error::OsError;

/// Why there is no pressure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No memory cgroup may be made here.
    #[error("no memory cgroup: {0}")]
    NoGroup(String),
    /// A call failed that should not, or a child ended without an answer, and not because memory
    /// ran out.
    #[error(transparent)]
    Os(#[from] OsError),
}

#[cfg(test)]
mod tests;
