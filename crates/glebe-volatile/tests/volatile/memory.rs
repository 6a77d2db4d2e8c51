//! Makes regions of both engines, fills them, and purges pages.

use std::ops::Range;
use std::ptr;

use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_volatile::{Engine, Error, Options, Purged, Region};

pub fn page() -> usize {
    page_size().bytes().as_usize()
}

pub fn pages(range: Range<u64>) -> Range<Bytes> {
    Pages::new(range.start).bytes(page_size())..Pages::new(range.end).bytes(page_size())
}

pub fn whole(region: &Region) -> Range<Bytes> {
    Bytes::ZERO..region.len()
}

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

pub fn regions(count: u64) -> impl Iterator<Item = Region> {
    with_engines(|options| options.build(pages(0..count).end)).into_iter()
}

fn pattern(index: u64) -> Vec<u8> {
    (0..page()).map(|i| (i as u64 * 7 + index * 13 + 1) as u8).collect()
}

pub fn fill(region: &Region, range: Range<u64>) {
    for index in range {
        region.write(pages(index..index).start, &pattern(index)).unwrap();
    }
}

pub fn is_filled(region: &Region, mut range: Range<u64>) -> bool {
    range.all(|index| {
        let mut seen = vec![0; page()];
        region.read(pages(index..index).start, &mut seen).is_ok() && seen == pattern(index)
    })
}

pub fn purge(region: &Region, range: Range<u64>) {
    let range = pages(range);
    let at = ptr::with_exposed_provenance_mut(region.addr() + range.start.as_usize());
    // SAFETY: the caller has marked these pages of the region.
    let done =
        unsafe { libc::madvise(at, (range.end - range.start).as_usize(), libc::MADV_DONTNEED) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

pub fn reclaim(region: &Region, count: u64) -> Vec<u64> {
    let at = ptr::with_exposed_provenance_mut(region.addr());
    // SAFETY: the pages are the region's, and only marked contents may vanish.
    let done = unsafe { libc::madvise(at, region.len().as_usize(), libc::MADV_PAGEOUT) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    let is_lost = |index: &u64| {
        let read = region.try_read(pages(*index..*index).start, &mut [0; 8]);
        matches!(read, Err(Error::Purged { .. }))
    };
    (0..count).filter(is_lost).collect()
}

pub fn lost(purged: Result<Purged, Error>) -> Vec<u64> {
    purged.unwrap().runs().iter().flat_map(|run| run.start()..run.end()).collect()
}
