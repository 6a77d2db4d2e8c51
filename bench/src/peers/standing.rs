//! [`StandingPool`]: hugetlb pages that were set aside beforehand, mapped when they are wanted.
//!
//! What a program can do today that must not wait: hold a file of populated hugetlb pages and map
//! a window of it on demand. It answers as fast as the page table is written, and its bytes lie
//! idle the rest of the time: that is its price, [`StandingPool::idle`]. It is therefore shown
//! beside the peers that get memory on demand and never counted among them. The contents of its
//! window are what was there before: nothing is zeroed.
//!
//! Timed: mmap and population of the window, whose pages are resident. The file's pages are
//! surplus pages of the pool, taken and given back with it. Units: base pages; microseconds.

use std::fs::File;

use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};

use super::map::{hugetlb_file, Map};
use super::pool;
use super::{available, frames, PeerError, PeerSample};
use crate::clock::Stopwatch;

/// A file of hugetlb pages, all resident.
#[derive(Debug)]
pub struct StandingPool {
    file: File,
    len: Bytes,
}

impl StandingPool {
    /// The name in tables and results.
    pub const NAME: &'static str = "standing_hugetlb";

    /// Sets `pages` aside, rounded up to whole hugepages.
    ///
    /// # Errors
    /// As [`super::Peer::alloc`] of surplus hugetlb pages.
    pub fn new(pages: Pages) -> Result<Self, PeerError> {
        let huge = pool::hugepage_bytes()?;
        let size = PeerError::Size { requested: pages };
        let len = pages.checked_bytes(page_size()).ok_or(size)?;
        let available = available()?;
        if len > available {
            return Err(PeerError::TooLarge { requested: len, available });
        }
        let count = len.get().div_ceil(huge.get());
        let len = Bytes::new(count * huge.get());
        let file = pool::with_surplus(huge, len, || {
            let file = hugetlb_file(len, huge)?;
            Map::of_file(&file, len, huge)?.populate()?;
            Ok::<_, PeerError>(file)
        })??;
        Ok(Self { file, len })
    }

    /// Bytes that nobody uses while nothing is mapped.
    #[must_use]
    pub fn idle(&self) -> Bytes {
        self.len
    }

    /// Maps a window of `pages`, looks at its frames and unmaps it.
    #[must_use]
    pub fn measure(&self, pages: Pages) -> PeerSample {
        let len = pages.bytes(page_size());
        let watch = Stopwatch::start();
        let window = pool::hugepage_bytes().and_then(|huge| {
            let window = Map::of_file(&self.file, len, huge)?;
            window.populate()?;
            Ok(window)
        });
        let elapsed = watch.elapsed();
        let longest_run = |map: &Map| frames::longest_run(map.address(), pages);
        PeerSample {
            wall_us: elapsed.wall_us,
            cpu_us: elapsed.cpu_us,
            longest_run: window.as_ref().ok().and_then(longest_run),
            from_idle_pool: 0,
            failed: window.err().map(|e| e.to_string()),
        }
    }
}
