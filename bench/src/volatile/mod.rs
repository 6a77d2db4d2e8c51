//! What is measured and checked of [`glebe::volatile`]: the stress and the benchmark.
//!
//! Whatever needs pressure is a [`Job`] that a child of this program does inside a memory cgroup
//! ([`crate::pressure`]), so that this process is outside of it and can tell whether the kernel
//! killed anything. Units: base pages, microseconds.

mod bare;
mod cycle;
mod huge_pages;
mod job;
mod kept;
pub mod measure;
mod page_cache;
mod purge;
mod refill;
pub mod stress;
mod tiles;

use glebe::error::OsError;
use glebe::sys::page_size;
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
    /// What the report should have named and has not.
    #[error("the report has no {0}")]
    Incomplete(String),
    /// No engine that could be stressed.
    #[error("no engine: {0}")]
    NoEngine(String),
    /// A child was told or answered what is no job and no answer.
    #[error("between the program and its child: {0}")]
    Words(#[from] serde_json::Error),
}

impl Error {
    /// Whether the machine lacks what it takes, so that nothing is wrong.
    #[must_use]
    pub fn is_skip(&self) -> bool {
        matches!(self, Self::Pressure(pressure::Error::NoGroup(_)))
    }
}

/// An engine by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Which {
    /// userfaultfd and PAGEMAP_SCAN.
    Scan,
    /// A word of each page exchanged.
    Tag,
}

impl Which {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Scan, Self::Tag];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scan => "scan",
            Self::Tag => "tag",
        }
    }

    /// Why there is no such engine on this machine, if there is none.
    pub(crate) fn refused(self) -> Option<String> {
        self.map(page_size().bytes()).err().map(|why| why.to_string())
    }

    fn engine(self) -> Engine {
        match self {
            Self::Scan => Engine::Scan,
            Self::Tag => Engine::Tag,
        }
    }

    fn map(self, len: Bytes) -> Result<Region, volatile::Error> {
        Region::options().engine(self.engine()).map(len)
    }
}
