//! What physically contiguous memory buys and what it costs: [`glebe::contig`] beside memalign and
//! beside huge pages as the kernel hands them out.
//!
//! Without a network card that reads memory by itself the gain is measured by what a processor and
//! a disk do; every row says what it is. Units: nanoseconds a read, megabytes a second,
//! microseconds of CPU time.

pub mod fragment;
pub mod measure;

mod direct;
pub(crate) mod frames;
pub(crate) mod memory;
pub(crate) mod messages;
mod on_demand;
mod populate;
mod proof;
mod reads;
mod required;
mod ring;
pub(crate) mod samples;
mod working_set;

use glebe::error::OsError;
use glebe::units::Bytes;

use crate::peers::PeerError;

/// Why there is nothing to measure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine must not be brought to kill a process for it.
    #[error("{len} asked for; {available} are available, of which {most} may be used")]
    TooLarge {
        /// Bytes asked for.
        len: Bytes,
        /// Bytes that may be had.
        most: Bytes,
        /// `MemAvailable` at that time.
        available: Bytes,
    },
    /// The library refused.
    #[error(transparent)]
    Contig(#[from] glebe::contig::Error),
    /// The kernel gave no huge pages.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A call failed that should not.
    #[error(transparent)]
    Os(#[from] OsError),
}

/// A size in the name of a case: `64m`, `4g`.
pub(crate) fn name(size: Bytes) -> String {
    let mib = size.get() >> 20;
    match mib {
        0 => size.get().to_string(),
        mib if mib % 1024 == 0 => format!("{}g", mib / 1024),
        mib => format!("{mib}m"),
    }
}
