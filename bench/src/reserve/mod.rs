//! The benchmark of [`glebe::reserve`].
//!
//! Blocks are asked for as first-class code does (`requests`) while a tenant keeps pages in the
//! page cache of the same reserve; every block and every page is written with bytes that say whose
//! they are, and looked at again, so that a lost or stray write is counted and not guessed.
//! Units: base pages, microseconds.

pub mod measure;

mod background;
mod evacuation;
mod growth;
pub(crate) mod keyed;
mod load;
mod page_ops;
mod recall;
mod requests;
mod system;
mod tenant;
mod usage;

use glebe::contig;
use glebe::contig::Contig;
use glebe::error::OsError;
use glebe::reserve::{self, Reserve};
use glebe::sys::{meminfo, page_size};
use glebe::units::{Bytes, Pages};

/// Requests that are timed, in base pages; the last is not a power of two.
const REQUEST_PAGES: [u64; 8] = [1, 512, 1024, 2048, 4096, 8192, 16384, LARGEST];
const LARGEST: u64 = 32000;

/// What a reserve is a multiple of.
const GRANULE: Bytes = Bytes::mib(2);

/// The reserve's name among the contestants.
const GLEBE: &str = "glebe";

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
    /// A thread ended with a panic.
    #[error("{0}")]
    Thread(String),
}

/// A reserve of `len`, rounded up to granules, on memory with runs as long as the longest
/// request, if they are to be had.
fn map(len: Bytes, options: reserve::Options) -> Result<Reserve, Error> {
    let len = Bytes::new(len.get().next_multiple_of(GRANULE.get()));
    let longest = Pages::new(LARGEST).bytes(page_size());
    let run = longest.min(Bytes::new(len.get() / 2));
    let contig = Contig::options().prefer_run(run).build(len);
    let contig = contig.map_err(|source| Error::Map { len, source })?;
    Ok(options.build_on(contig)?)
}

/// At most `wanted`, and at most one part in `share` of what the machine has available.
fn affordable(wanted: Bytes, share: u64) -> Result<Bytes, OsError> {
    Ok(wanted.min(Bytes::new(meminfo::available()?.get() / share)))
}

/// How tenants write, with the reason where it is the slower way.
fn writers(reserve: &Reserve) -> String {
    let writers = reserve.writers();
    match reserve.why_counted() {
        Some(why) => format!("{writers} ({why})"),
        None => writers.to_string(),
    }
}

/// A page's worth of bytes.
fn page_buffer() -> Vec<u8> {
    vec![0; page_size().bytes().as_usize()]
}
