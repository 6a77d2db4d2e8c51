//! Regions of both engines, their contents, and purges made on purpose.

use std::ops::Range;
use std::ptr;

use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Engine, Error, Options, Purged, Region};

/// Bytes in a page.
pub fn page() -> usize {
    page_size().bytes().as_usize()
}

/// Pages as bytes from the region's start.
pub fn pages(range: Range<u64>) -> Range<Bytes> {
    Pages::new(range.start).bytes(page_size())..Pages::new(range.end).bytes(page_size())
}

/// All of a region.
pub fn whole(region: &Region) -> Range<Bytes> {
    Bytes::ZERO..region.len()
}

/// What `make` makes with each engine that this machine has.
pub fn with_engines(make: impl Fn(Options) -> Result<Region, Error>) -> Vec<Region> {
    let made =
        [Engine::Scan, Engine::Tag].map(|engine| (engine, make(Region::options().engine(engine))));
    let mut all = Vec::new();
    for (engine, made) in made {
        match made {
            Ok(region) => all.push(region),
            Err(error) => println!("skipped: engine {engine:?}: {error}"),
        }
    }
    assert!(!all.is_empty(), "no engine at all");
    all
}

/// A region of so many pages for each engine that this machine has.
pub fn regions(count: u64) -> impl Iterator<Item = Region> {
    with_engines(|options| options.build(pages(0..count).end)).into_iter()
}

fn pattern(index: u64) -> Vec<u8> {
    (0..page()).map(|i| (i as u64 * 7 + index * 13 + 1) as u8).collect()
}

/// Writes to each page what [`is_filled`] looks for.
pub fn fill(region: &Region, range: Range<u64>) {
    for index in range {
        region.write(pages(index..index).start, &pattern(index)).unwrap();
    }
}

/// Whether each page still holds what [`fill`] wrote.
pub fn is_filled(region: &Region, mut range: Range<u64>) -> bool {
    range.all(|index| {
        let mut seen = vec![0; page()];
        region.read(pages(index..index).start, &mut seen).is_ok() && seen == pattern(index)
    })
}

/// Takes marked pages as the kernel would under pressure.
pub fn purge(region: &Region, range: Range<u64>) {
    let range = pages(range);
    let at = ptr::with_exposed_provenance_mut(region.addr() + range.start.as_usize());
    // SAFETY: pages of the region that the caller marked.
    let done =
        unsafe { libc::madvise(at, (range.end - range.start).as_usize(), libc::MADV_DONTNEED) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Has the kernel take what it may of a region; which pages are lost then.
pub fn reclaim(region: &Region, count: u64) -> Vec<u64> {
    let at = ptr::with_exposed_provenance_mut(region.addr());
    // SAFETY: pages of the region; no contents change but of those that may vanish.
    let done = unsafe { libc::madvise(at, region.len().as_usize(), libc::MADV_PAGEOUT) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    let is_lost = |index: &u64| {
        let read = region.try_read(pages(*index..*index).start, &mut [0; 8]);
        matches!(read, Err(Error::Purged { .. }))
    };
    (0..count).filter(is_lost).collect()
}

/// The pages that an unmark found lost.
pub fn lost(purged: Result<Purged, Error>) -> Vec<u64> {
    purged.unwrap().runs().iter().flat_map(|run| run.start()..run.end()).collect()
}
