//! The benchmark of [`glebe::zpool`].

mod aligned;
pub mod apart;
mod callback;
mod churn;
mod compaction;
mod made;
mod malloc;
pub mod measure;
mod overhead;
mod replay;
mod speed;
mod trace;
mod tree;
mod workload;
mod zram;

use std::io;

use glebe::error::OsError;
use glebe::zpool::{Codec, ObjectPool};

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
    /// A child gave no answer.
    #[error("{0}")]
    Child(#[from] crate::Failure),
}

/// An empty pool as it is by default, with LZ4 or without a codec.
fn pool(coded: bool) -> Result<ObjectPool, Error> {
    let codec = if coded { Codec::Lz4 } else { Codec::None };
    Ok(ObjectPool::options().codec(codec).build()?)
}
