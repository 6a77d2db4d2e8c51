//! A life of a volatile region: made, written, marked, purged in part, read, unmarked, dropped.
//!
//! Whatever call fails: no page that was not lost holds other bytes, what was lost is told by the
//! first unmark that succeeds, and zeros are never called kept.

use std::error::Error;
use std::ops::Range;

use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Error as VolatileError, Options, Priority, Region};

use super::{page_of, Outcome};

const PAGES: u64 = 64;
/// Long and short, as they are unmarked in different ways; both lose pages.
const MARKED: [Range<u64>; 2] = [0..40, 50..60];
const LOST: [Range<u64>; 3] = [3..5, 39..40, 52..53];
/// Attempts at an unmark: a fault that does not last is gone by then.
const ATTEMPTS: u32 = 3;

fn bytes(pages: &Range<u64>) -> Range<Bytes> {
    let at = |page| Pages::new(page).bytes(page_size());
    at(pages.start)..at(pages.end)
}

/// As the kernel takes pages, and by no call that a fault meets.
fn purge(region: &Region, pages: &Range<u64>) {
    let range = bytes(pages);
    // SAFETY: inside the region, whose pages there are marked.
    let made = unsafe {
        let at = region.as_ptr().add(range.start.as_usize());
        libc::madvise(at.cast(), (range.end - range.start).as_usize(), libc::MADV_DONTNEED)
    };
    assert_eq!(made, 0);
}

/// Whether the page is among those that were purged.
fn was_lost(purged: &[Range<u64>], page: u64) -> bool {
    purged.iter().any(|run| run.contains(&page))
}

/// Every page that can be read holds what it should, and no lost one can while it is marked.
fn look(region: &Region, purged: &[Range<u64>], marked: &[Range<u64>]) {
    let mut buf = page_of(0);
    for page in 0..PAGES {
        match region.try_read(bytes(&(page..page + 1)).start, &mut buf) {
            Ok(()) if was_lost(purged, page) => {
                assert!(!was_lost(marked, page), "page {page} is lost and was read");
                assert!(buf.iter().all(|byte| *byte == 0), "page {page} is lost");
            }
            Ok(()) => assert_eq!(buf, page_of(page), "page {page}"),
            Err(VolatileError::Purged { .. }) => assert!(was_lost(purged, page), "page {page}"),
            Err(_) => {}
        }
    }
}

/// One life; the first error is its outcome.
pub fn live(options: Options) -> Outcome {
    let region = options.map(bytes(&(0..PAGES)).end)?;
    let mut first: Option<Box<dyn Error>> = None;
    for page in 0..PAGES {
        region.write(bytes(&(page..page + 1)).start, &page_of(page))?;
    }
    let mut purged = Vec::new();
    for range in MARKED {
        match region.mark(bytes(&range), Priority::NORMAL) {
            // The kernel takes no page that it was not given.
            Ok(()) => purged.extend(LOST.into_iter().filter(|lost| range.contains(&lost.start))),
            Err(error) => drop(first.get_or_insert(error.into())),
        }
    }
    purged.iter().for_each(|lost| purge(&region, lost));
    let mut marked = MARKED.to_vec();
    look(&region, &purged, &marked);
    for range in MARKED {
        for _ in 0..ATTEMPTS {
            match region.unmark(bytes(&range)) {
                Ok(told) => {
                    let told = told.runs().iter().map(|run| run.start()..run.end());
                    let there = purged.iter().filter(|lost| range.contains(&lost.start));
                    assert_eq!(told.collect::<Vec<_>>(), there.cloned().collect::<Vec<_>>());
                    marked.retain(|other| *other != range);
                    break;
                }
                Err(error) => drop(first.get_or_insert(error.into())),
            }
            look(&region, &purged, &marked);
        }
    }
    look(&region, &purged, &marked);
    if marked.is_empty() {
        region.stats().check()?;
    }
    if let Err(error) = region.drop_now(bytes(&(0..PAGES))) {
        first.get_or_insert(error.into());
    }
    first.map_or(Ok(()), Err)
}
