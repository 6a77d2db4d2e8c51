//! What is measured and checked of [`glebe::zpool`].

mod aligned;
pub mod apart;
mod callback;
mod churn;
mod compaction;
mod made;
mod malloc;
pub mod measure;
pub mod model;
mod overhead;
mod replay;
mod reported;
mod speed;
mod store;
pub mod tables;
pub mod trace;
mod tree;
mod workload;
mod zram;

use std::io;

use glebe::error::OsError;

/// Why there is nothing to tell.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool refused.
    #[error(transparent)]
    Pool(#[from] glebe::zpool::Error),
    /// The reserve refused.
    #[error(transparent)]
    Reserve(#[from] glebe::reserve::Error),
    /// The kernel refused.
    #[error(transparent)]
    Os(#[from] OsError),
    /// Contents could not be read.
    #[error("contents to store: {0}")]
    Contents(#[from] io::Error),
    /// A child was told or answered what is no job and no answer.
    #[error("between the program and its child: {0}")]
    Words(#[from] serde_json::Error),
}
