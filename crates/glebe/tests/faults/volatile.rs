//! A life of a volatile region: made, written, marked, purged in part, read, unmarked, dropped.
//!
//! Whatever call fails: no page that was not lost holds other bytes, what was lost is told by the
//! first unmark that succeeds, and zeros are never called kept.

use std::error::Error;
use std::ops::Range;
use std::ptr;

use glebe::sys::fault::{arm, disarm, Fault, Lasting};
use glebe::sys::{madvise, page_size, vma};
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Engine, Error as VolatileError, Options, Priority, Region};

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

/// Two mappings side by side for which huge pages were asked, each of so many pages.
fn hugged(each: u64) -> Option<Range<usize>> {
    let len = bytes(&(0..each)).end.as_usize();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: memory of the test's own; the advice changes no contents.
    unsafe {
        let at = libc::mmap(ptr::null_mut(), 2 * len, protection, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::madvise(at.byte_add(len), len, libc::MADV_DONTDUMP), 0);
        let made = libc::madvise(at, 2 * len, libc::MADV_HUGEPAGE) == 0;
        made.then_some(at.addr()..at.addr() + 2 * len)
    }
}

/// Memory that was refused has the advice that it had.
pub fn refused_memory_is_as_it_was() {
    let Some(range) = hugged(8).filter(|_| madvise::transparent_huge_page().is_ok()) else {
        println!("skipped: no transparent huge pages");
        return;
    };
    let len = Bytes::new((range.end - range.start) as u64);
    let mut refusals = 0;
    for engine in [Engine::Scan, Engine::Tag] {
        for nth in 1.. {
            arm(Fault { nth, choice: 0, lasting: Lasting::Once });
            let at = ptr::with_exposed_provenance_mut(range.start);
            // SAFETY: the test's own, which outlives the region.
            let made = unsafe { Region::options().engine(engine).over(at, len) };
            let met = disarm();
            refusals += u32::from(made.is_err());
            drop(made);
            let all = vma::among(&range).unwrap();
            let is_as_before = all.len() == 2 && all.iter().all(|vma| vma.has("hg"));
            assert!(is_as_before, "{engine} {met:?} {all:?}");
            if met.refused.is_empty() {
                break;
            }
        }
    }
    assert!(refusals > 0, "no fault was met");
    // SAFETY: its own, and no region is left.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(range.start), len.as_usize()) };
}

/// Calls made by `of`, of which the first is refused if that is asked for.
fn calls(refuse_first: bool, of: impl FnOnce()) -> u64 {
    let nth = if refuse_first { 1 } else { u64::MAX };
    arm(Fault { nth, choice: 0, lasting: Lasting::Once });
    of();
    disarm().calls
}

/// How many calls marks and unmarks make: what is in swap is brought in first, where there may be
/// swap; a large range is populated in parts; the tag engine unmarks without any.
pub fn marks_make_the_calls_they_need() {
    const LARGE: u64 = 8192;
    for engine in [Engine::Scan, Engine::Tag] {
        let Ok(region) = Region::options().engine(engine).map(bytes(&(0..LARGE)).end) else {
            println!("skipped: {engine} engine");
            continue;
        };
        let range = bytes(&(0..LARGE));
        for page in 0..LARGE {
            region.write(bytes(&(page..page + 1)).start, &[1]).unwrap();
        }
        let mark = || region.mark(range.clone(), Priority::NORMAL).unwrap();
        let unmark = || drop(region.unmark(range.clone()).unwrap());
        let without = calls(false, mark);
        let to_unmark = calls(false, unmark);
        // The question for swap comes first; refused, there may be some.
        let with = calls(true, mark);
        unmark();
        match engine {
            Engine::Scan => {
                assert!(with > without, "{with} calls with swap, {without} without");
                let parts = range.end.get() / Bytes::mib(4).get();
                assert!(to_unmark > parts, "{to_unmark} calls for {parts} parts");
            }
            Engine::Tag => assert_eq!(to_unmark, 0),
        }
    }
}
