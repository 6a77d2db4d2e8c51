//! The benchmark of [`glebe::volatile`].
//!
//! Whatever needs pressure is a [`Job`] that a child of this program does inside a memory cgroup
//! ([`crate::pressure`]), so that this process is outside of it and can tell whether the kernel
//! killed anything. Units: base pages, microseconds.

mod bare;
mod cycle;
mod huge_pages;
mod job;
mod kept;
mod marked;
pub mod measure;
mod page_cache;
mod purge;
mod refill;
mod tiles;

use glebe::error::OsError;
use glebe::units::Bytes;
use glebe::volatile::{self, Engine, Region};
use serde::{Deserialize, Serialize};

use crate::pressure;

pub use job::{inside, Job};

/// Why there is nothing to tell.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No pressure to be had.
    #[error(transparent)]
    Pressure(#[from] pressure::Error),
    /// The region refused.
    #[error(transparent)]
    Region(#[from] volatile::Error),
    /// The kernel refused.
    #[error(transparent)]
    Os(#[from] OsError),
    /// A child was told or answered what is no job and no answer.
    #[error("between the program and its child: {0}")]
    Words(#[from] serde_json::Error),
}

/// An engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Which {
    /// userfaultfd and PAGEMAP_SCAN.
    Scan,
    /// A word of each page exchanged.
    Tag,
}

impl Which {
    const ALL: [Self; 2] = [Self::Scan, Self::Tag];

    fn name(self) -> &'static str {
        match self {
            Self::Scan => "scan",
            Self::Tag => "tag",
        }
    }

    /// The name among the contestants.
    fn who(self) -> &'static str {
        match self {
            Self::Scan => "glebe scan",
            Self::Tag => "glebe tag",
        }
    }

    fn engine(self) -> Engine {
        match self {
            Self::Scan => Engine::Scan,
            Self::Tag => Engine::Tag,
        }
    }

    fn map(self, len: Bytes) -> Result<Region, volatile::Error> {
        Region::options().engine(self.engine()).build(len)
    }
}
