//! Real memory pressure: a cgroup with a limit, and a child of this program inside it.
//!
//! A [`Group`] is made below the mount of the memory controller, of version 1 or 2 (`place`), and
//! removed when it is dropped, whatever ended its use. Only children of this process enter it: this
//! process itself stays outside, so that it can tell of a child that the kernel killed
//! ([`Group::ask`]). Swap is off inside. Units: bytes; events since the group was made.
//! Source: admin-guide/cgroup-v1/memory, admin-guide/cgroup-v2, cgroups(7).

mod group;
mod place;

pub use group::{enter, Counters, Group};

use std::fs::File;
use std::path::Path;

use glebe::error::OsError;
use glebe::units::Bytes;

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
    /// A child gave no answer.
    #[error("{0}")]
    Child(#[from] crate::Failure),
}

/// A sparse file of `len` that ends with its last descriptor.
pub(crate) fn nameless(dir: &Path, len: Bytes) -> Result<File, OsError> {
    let file = tempfile::tempfile_in(dir).and_then(|file| file.set_len(len.get()).map(|()| file));
    file.map_err(|e| OsError::new("open", dir.display().to_string(), e))
}

#[cfg(test)]
mod tests;
