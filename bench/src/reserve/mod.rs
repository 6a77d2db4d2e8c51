//! What is measured and checked of [`glebe::reserve`]: the benchmark.
//!
//! Each asks for blocks as first-class code does (`requests`) while tenants keep pages in the
//! page cache of the same reserve; every block and every page is written with bytes that say whose
//! they are, and looked at again, so that a lost or stray write is counted and not guessed.
//! Units: base pages, microseconds.

pub mod measure;

mod ahead;
mod asleep;
mod background;
mod evacuation;
pub(crate) mod fork;
mod growth;
pub(crate) mod keyed;
mod load;
mod page_ops;
mod recall;
mod requests;
mod samples;
mod system;
mod table;
mod tenant;

use glebe::contig;
use glebe::contig::Contig;
use glebe::error::OsError;
use glebe::reserve::{self, Reserve};
use glebe::sys::{meminfo, page_size};
use glebe::units::{Bytes, Pages};

/// Requests the tables are made of, in base pages; the last is not a power of two.
pub const REQUEST_PAGES: [u64; 8] = [1, 512, 1024, 2048, 4096, 8192, 16384, 32000];

/// What a reserve is a multiple of.
const GRANULE: Bytes = Bytes::mib(2);

/// Why there is nothing to measure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No reserve of that size.
    #[error("a reserve of {len}: {source}")]
    Map {
        /// Bytes asked for.
        len: Bytes,
        /// Why not.
        source: contig::Error,
    },
    /// The reserve refused.
    #[error(transparent)]
    Reserve(#[from] reserve::Error),
    /// The kernel refused.
    #[error(transparent)]
    Os(#[from] OsError),
    /// A load or a reader could not be started, or ended with a panic.
    #[error("{0}")]
    Thread(String),
}

/// A reserve of `len`, rounded up to granules, on memory with runs as long as the longest
/// request, if they are to be had.
fn map(len: Bytes, builder: reserve::Builder) -> Result<Reserve, Error> {
    let len = Bytes::new(len.get().next_multiple_of(GRANULE.get()));
    let longest = Pages::new(REQUEST_PAGES[REQUEST_PAGES.len() - 1]).bytes(page_size());
    let run = longest.min(Bytes::new(len.get() / 2));
    let contig = Contig::options().prefer_run(run).map(len);
    let contig = contig.map_err(|source| Error::Map { len, source })?;
    Ok(builder.build(contig)?)
}

/// At most `wanted`, and at most one part in `share` of what the machine has available.
fn affordable(wanted: Bytes, share: u64) -> Result<Bytes, OsError> {
    Ok(wanted.min(Bytes::new(meminfo::available()?.get() / share)))
}

/// A page's worth of bytes.
pub(crate) fn page_buffer() -> Vec<u8> {
    vec![0; page_size().bytes().as_usize()]
}
