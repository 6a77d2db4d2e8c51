//! Tests refills and concurrent reads.

use std::ptr;

use super::*;
use crate::{Engine, Options, Priority, Region};
use glebe_os::internal::sync::MappedWord;
use glebe_os::internal::sys::memory::madvise::{advise, Advice};
use glebe_os::units::Bytes;

fn page() -> Bytes {
    page_size().bytes()
}

fn pages(count: u64) -> Bytes {
    Bytes::new(count * page().get())
}

fn region(options: Options) -> Option<Region> {
    let region = match options.build(pages(8)) {
        Ok(region) => region,
        Err(why) => {
            println!("skipped: {why}");
            return None;
        }
    };
    for i in 0..8 {
        region.write(pages(i), &vec![i as u8 + 1; page().as_usize()]).unwrap();
    }
    Some(region)
}

struct Source {
    bytes: Vec<u8>,
    calls: MappedWord,
    last: MappedWord,
}

unsafe extern "C" fn give(offset: u64, len: usize, data: *const ()) -> *const u8 {
    // SAFETY: the test's `Source`, which outlives the region.
    let source = unsafe { &*data.cast::<Source>() };
    source.calls.fetch_add(1, Ordering::SeqCst);
    source.last.store(offset, Ordering::SeqCst);
    if offset / len as u64 % 2 == 0 {
        source.bytes.as_ptr()
    } else {
        ptr::null()
    }
}

#[test]
fn a_touch_is_refilled_and_a_read_is_told() {
    let bytes = vec![77; page().as_usize()];
    let source = Source { bytes, calls: MappedWord::new(0), last: MappedWord::new(0) };
    let data = ptr::from_ref(&source).cast();
    // SAFETY: `give` only counts, and `source` outlives the region.
    let options = unsafe { Region::options().engine(Engine::Scan).on_lost(give, data) };
    let Some(region) = region(options) else { return };
    region.mark(pages(0)..pages(8), Priority::NORMAL).unwrap();
    region.drop_now(pages(2)..pages(6)).unwrap();
    let calls = || source.calls.load(Ordering::SeqCst);

    let got = region.try_read(pages(4), &mut [0]);
    assert!(matches!(got, Err(Error::Purged { offset }) if offset == pages(4)));
    assert_eq!(calls(), 0);

    let at = pages(4).as_usize() + 99;
    // SAFETY: a mapped page; its loss is refilled.
    assert_eq!(unsafe { region.as_ptr().add(at).read_volatile() }, 77);
    assert_eq!((calls(), source.last.load(Ordering::SeqCst)), (1, pages(4).get()));
    let mut byte = [0];
    region.try_read(pages(4), &mut byte).unwrap();
    assert_eq!(byte, [77]);
    let lost = region.unmark(pages(0)..pages(8)).unwrap();
    let runs: Vec<_> = lost.runs().iter().map(|run| (run.start(), run.len())).collect();
    assert_eq!(runs, [(2, 2), (5, 1)]);
}

#[test]
fn an_unmarked_hole_is_zeros() {
    let source = Source { bytes: vec![], calls: MappedWord::new(0), last: MappedWord::new(0) };
    let data = ptr::from_ref(&source).cast();
    // SAFETY: `give` only counts, and `source` outlives the region.
    let options = unsafe { Region::options().engine(Engine::Scan).on_lost(give, data) };
    let Some(region) = region(options) else { return };
    // SAFETY: the page is the region's and has no references.
    unsafe { advise(region.addr() + pages(3).as_usize(), page(), Advice::DontNeed) }.unwrap();
    // SAFETY: the page is mapped.
    let read = |i: u64| unsafe { region.as_ptr().add(pages(i).as_usize()).read_volatile() };
    assert_eq!((read(2), read(3), read(4)), (3, 0, 5));
    assert_eq!(source.calls.load(Ordering::SeqCst), 0);
}

#[test]
fn pages_are_read_touched_and_lost_at_once() {
    const ENOUGH: u64 = 200;
    unsafe extern "C" fn number(offset: u64, len: usize, data: *const ()) -> *const u8 {
        // SAFETY: inside eight pages that outlive the region.
        unsafe { data.cast::<u8>().add(offset as usize / len * len) }
    }
    let bytes: Vec<u8> = (1..=8u8).flat_map(|i| vec![i; page().as_usize()]).collect();
    // SAFETY: `number` only computes, and `bytes` outlives the region.
    let options =
        unsafe { Region::options().engine(Engine::Scan).on_lost(number, bytes.as_ptr().cast()) };
    let Some(region) = region(options) else { return };
    region.mark(pages(0)..pages(8), Priority::NORMAL).unwrap();
    let (lost, intact) = (MappedWord::new(0), MappedWord::new(0));
    let done = || lost.load(Ordering::SeqCst).min(intact.load(Ordering::SeqCst)) >= ENOUGH;
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut buf = vec![0; page().as_usize()];
            for i in (0..8).cycle().take_while(|_| !done()) {
                match region.try_read(pages(i), &mut buf) {
                    Ok(()) => {
                        assert!(
                            buf.iter().all(|byte| *byte == i as u8 + 1),
                            "page {i}: {}",
                            buf[0]
                        );
                        intact.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(Error::Purged { offset }) => {
                        assert_eq!(offset, pages(i));
                        lost.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        });
        s.spawn(|| {
            for i in (0..8).cycle().take_while(|_| !done()) {
                let at = pages(i).as_usize() + 8 * i as usize;
                // SAFETY: a mapped page; its loss is refilled.
                assert_eq!(unsafe { region.as_ptr().add(at).read_volatile() }, i as u8 + 1);
                std::thread::yield_now();
            }
        });
        for i in (0..8).cycle().take_while(|_| !done()) {
            let at = region.addr() + pages(i).as_usize();
            // SAFETY: the page is marked.
            unsafe { advise(at, page(), Advice::DontNeed) }.unwrap();
        }
    });
}
