//! Tests both engines, with and without `PAGEMAP_SCAN`.
#![allow(unsafe_code)]

use std::ops::Range;

use super::internal::without_pagemap_scan;
use super::*;
use glebe_os::extent::Extent;
use glebe_os::internal::sync::write;
use glebe_os::internal::sys::memory::madvise;
use glebe_os::internal::sys::memory::madvise::{advise, Advice};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_testing::child::in_child;

fn each(body: impl Fn(&dyn Fn(u64) -> Region)) {
    for engine in [Engine::Scan, Engine::Tag] {
        for without_scan in [false, true] {
            let make = |pages: u64| {
                let options = without_pagemap_scan(Region::options().engine(engine), without_scan);
                options.build(Pages::new(pages).bytes(page_size()))
            };
            match make(1) {
                Ok(_) => body(&|pages| make(pages).unwrap()),
                Err(error) => println!("skipped: {engine} engine: {error}"),
            }
        }
    }
}

fn bytes(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

fn range(start: u64, len: u64) -> Range<Bytes> {
    bytes(start)..bytes(start + len)
}

fn extent(start: u64, len: u64) -> Extent {
    Extent::new(start, len).unwrap()
}

fn contents(page: u64, version: u64) -> Vec<u8> {
    let word = (page << 32 | version << 8 | 0x5A).to_ne_bytes();
    word.repeat(bytes(1).as_usize() / word.len())
}

fn fill(region: &Region, pages: Range<u64>) {
    pages.for_each(|page| region.write(bytes(page), &contents(page, 0)).unwrap());
}

fn page_of(region: &Region, page: u64) -> Vec<u8> {
    let mut buf = vec![0xEE; bytes(1).as_usize()];
    region.read(bytes(page), &mut buf).unwrap();
    buf
}

fn purge(region: &Region, start: u64, len: u64) {
    assert!((start..start + len).all(|page| region.is_marked(bytes(page))));
    // SAFETY: inside the region, marked, and no reference to it exists.
    unsafe {
        advise(region.addr() + bytes(start).as_usize(), bytes(len), Advice::DontNeed).unwrap();
    }
}

fn expect(region: &Region, pages: Range<u64>, lost: &[Extent]) {
    for page in pages {
        let gone = lost.iter().any(|run| run.contains(extent(page, 1)));
        let right = if gone { vec![0; bytes(1).as_usize()] } else { contents(page, 0) };
        assert!(page_of(region, page) == right, "page {page}, {}", region.engine());
    }
}

#[test]
fn what_was_lost_is_told_page_by_page_and_the_rest_is_kept() {
    each(|make| {
        for pages in [12, 300, 20_000] {
            let region = make(pages);
            fill(&region, 0..pages);
            region.mark(range(0, pages), Priority::NORMAL).unwrap();
            let lost = [extent(0, 1), extent(3, 2), extent(pages - 2, 2)];
            lost.iter().for_each(|run| purge(&region, run.start(), run.len()));
            let purged = region.unmark(range(0, pages)).unwrap();
            assert_eq!(purged.runs(), lost, "{}", region.engine());
            expect(&region, 0..pages, &lost);
            assert!(region.unmark(range(0, pages)).unwrap().is_empty());
            fill(&region, 0..pages);
            region.mark(range(0, pages), Priority::NORMAL).unwrap();
            assert!(region.unmark(range(0, pages)).unwrap().is_empty());
            expect(&region, 0..pages, &[]);
            region.stats().check().unwrap();
        }
    });
}

#[test]
fn what_an_unmark_that_a_fork_cut_short_had_found_is_told_in_the_child() {
    each(|make| {
        for pages in [12, 300] {
            let region = make(pages);
            fill(&region, 0..pages);
            region.mark(range(0, pages), Priority::NORMAL).unwrap();
            purge(&region, 3, 3);
            let mut call = region.locked.calls.begin();
            let mut state = write(&region.locked.state);
            let mut lost = region.unmark_now(&mut state, extent(0, pages)).unwrap();
            call.share(extent(0, pages), &mut lost);
            drop(state);
            assert_eq!(lost, [extent(3, 3)]);
            let finds = |start, len, found: &[Extent]| {
                let purged = region.unmark(range(start, len));
                purged.is_ok_and(|purged| purged.runs() == found)
            };
            // SAFETY: the C library and the fork handlers leave all locks usable in the child.
            let told = unsafe {
                in_child(|| {
                    finds(6, 4, &[])
                        && finds(0, 4, &[extent(3, 1)])
                        && in_child(|| finds(0, pages, &[extent(4, 2)]))
                        && finds(0, pages, &[extent(4, 2)])
                        && finds(0, pages, &[])
                })
            };
            assert!(told, "{}", region.engine());
            drop(call);
            assert!(finds(0, pages, &[]));
        }
    });
}

#[test]
fn parts_and_overlaps() {
    each(|make| {
        let region = make(64);
        fill(&region, 0..64);
        region.mark(range(10, 20), Priority::NORMAL).unwrap();
        region.mark(range(20, 30), Priority::LOWEST).unwrap();
        for page in [10, 25, 40] {
            purge(&region, page, 1);
        }
        assert_eq!(region.unmark(range(0, 12)).unwrap().runs(), [extent(10, 1)]);
        assert!(region.unmark(range(0, 25)).unwrap().is_empty());
        let over = vec![1; bytes(1).as_usize() + 1];
        let refused = region.write(bytes(24), &over).unwrap_err();
        assert!(matches!(refused, Error::Marked { offset } if offset == bytes(25)));
        assert!(region.is_marked(bytes(49)) && !region.is_marked(bytes(50)));
        assert_eq!(region.stats().marked, Pages::new(25));
        let purged = region.unmark(range(20, 44)).unwrap();
        assert_eq!(purged.runs(), [extent(25, 1), extent(40, 1)]);
        expect(&region, 0..64, &[extent(10, 1), extent(25, 1), extent(40, 1)]);
        region.stats().check().unwrap();
    });
}

#[test]
fn memory_never_written_is_kept_as_zeros() {
    each(|make| {
        let region = make(40);
        region.write(bytes(5), &[7]).unwrap();
        region.mark(range(0, 40), Priority::NORMAL).unwrap();
        let purged = region.unmark(range(0, 40)).unwrap();
        assert!(purged.is_empty());
        assert_eq!(page_of(&region, 0), vec![0; bytes(1).as_usize()]);
        assert_eq!(page_of(&region, 5)[..2], [7, 0]);
    });
}

#[test]
fn bad_ranges_are_refused_and_change_nothing() {
    each(|make| {
        let region = make(8);
        let page = bytes(1).get();
        let bad = |start: u64, end: u64| {
            let range = Bytes::new(start)..Bytes::new(end);
            let told = format!("{:?}", region.mark(range.clone(), Priority::NORMAL).unwrap_err());
            assert_eq!(told, format!("{:?}", region.unmark(range.clone()).unwrap_err()));
            assert_eq!(told, format!("{:?}", region.drop_now(range).unwrap_err()));
            told
        };
        assert!(bad(1, page).starts_with("Unaligned"));
        assert!(bad(0, page + 1).starts_with("Unaligned"));
        assert_eq!(bad(page, page), "Empty");
        assert_eq!(bad(2 * page, page), "Empty");
        assert!(bad(0, 9 * page).starts_with("Beyond"));
        assert!(bad(0, 0_u64.wrapping_sub(page)).starts_with("Beyond"));
        assert_eq!(region.stats().marked_ever, 0);
        let end = region.len();
        assert!(matches!(region.write(end, &[1]), Err(Error::Beyond { .. })));
        assert!(matches!(region.read(Bytes::new(u64::MAX), &mut [1]), Err(Error::Beyond { .. })));
        assert!(matches!(
            region.try_read(bytes(7), &mut vec![0; bytes(1).as_usize() + 1]),
            Err(Error::Beyond { .. })
        ));
        region.write(end, &[]).unwrap();
    });
    assert!(matches!(Region::new(Bytes::ZERO), Err(Error::Empty)));
    assert!(matches!(Region::new(Bytes::new(u64::MAX)), Err(Error::Beyond { .. })));
    let no_room = Region::options().cap(Bytes::ZERO).build(bytes(1));
    assert!(matches!(no_room, Err(Error::ZeroCap)));
}

#[test]
fn marked_memory_is_read_without_a_signal_and_never_stale() {
    each(|make| {
        let region = make(40);
        fill(&region, 0..40);
        region.mark(range(4, 30), Priority::NORMAL).unwrap();
        let all: Vec<u8> = (0..40).flat_map(|page| contents(page, 0)).collect();
        let page = bytes(1).as_usize();
        for (start, end) in
            [(0, 40 * page), (4 * page + 3, 4 * page + 5), (5 * page - 3, 9 * page + 1)]
        {
            let mut buf = vec![0xEE; end - start];
            region.try_read(Bytes::new(start as u64), &mut buf).unwrap();
            assert!(buf == all[start..end], "{start}..{end}, {}", region.engine());
        }
        purge(&region, 9, 1);
        let mut buf = vec![0; 2 * page];
        for (start, lost) in [(8 * page, true), (7 * page, false), (10 * page - 1, true)] {
            let told = region.try_read(Bytes::new(start as u64), &mut buf);
            match told {
                Ok(()) => assert!(!lost && buf == all[start..start + buf.len()]),
                Err(Error::Purged { offset }) => assert!(lost && offset == bytes(9)),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(matches!(region.read(bytes(8), &mut buf), Err(Error::Marked { .. })));
        assert_eq!(region.stats().reads_lost, 2);
        assert_eq!(region.unmark(range(0, 40)).unwrap().runs(), [extent(9, 1)]);
        expect(&region, 0..40, &[extent(9, 1)]);
    });
}

#[test]
fn what_is_dropped_is_lost_and_only_what_is_marked_is_dropped() {
    each(|make| {
        let region = make(64);
        fill(&region, 0..64);
        region.mark(range(10, 20), Priority::NORMAL).unwrap();
        assert_eq!(region.stats().resident, Pages::new(20));
        assert_eq!(region.drop_now(range(0, 15)).unwrap(), bytes(5));
        assert_eq!(region.drop_now(range(0, 16)).unwrap(), bytes(1));
        let stats = region.stats();
        assert_eq!((stats.marked, stats.resident), (Pages::new(20), Pages::new(14)));
        assert_eq!(stats.dropped_now, 6);
        assert_eq!(region.unmark(range(0, 64)).unwrap().runs(), [extent(10, 6)]);
        expect(&region, 0..64, &[extent(10, 6)]);
        assert_eq!(region.drop_now(range(0, 64)).unwrap(), Bytes::ZERO);
    });
}

#[test]
fn caps_drop_the_oldest_of_the_lowest_priority() {
    for engine in [Engine::Scan, Engine::Tag] {
        let region = match Region::options().engine(engine).cap(bytes(20)).build(bytes(64)) {
            Ok(region) => region,
            Err(error) => {
                println!("skipped: {engine} engine: {error}");
                continue;
            }
        };
        fill(&region, 0..64);
        region.mark(range(0, 10), Priority::HIGHEST).unwrap();
        region.mark(range(20, 5), Priority::NORMAL).unwrap();
        region.mark(range(30, 5), Priority::NORMAL).unwrap();
        region.mark(range(20, 5), Priority::NORMAL).unwrap();
        assert_eq!(region.stats().dropped_by_cap, 0);
        region.mark(range(40, 7), Priority::NORMAL).unwrap();
        let lost = [extent(20, 5), extent(30, 2)];
        assert_eq!(region.unmark(range(0, 64)).unwrap().runs(), lost);
        assert_eq!(region.stats().dropped_by_cap, 7);
        expect(&region, 0..64, &lost);

        let options = Region::options().engine(engine).max_age(std::time::Duration::ZERO);
        let region = options.build(bytes(4)).unwrap();
        fill(&region, 0..4);
        region.mark(range(0, 2), Priority::HIGHEST).unwrap();
        assert_eq!(region.unmark(range(0, 4)).unwrap().runs(), [extent(0, 2)]);
    }
}

#[test]
fn runs_with_and_without_tags_are_told_as_one() {
    each(|make| {
        let region = make(200);
        fill(&region, 0..200);
        for (start, len) in [(0, 4), (4, 96), (100, 5), (110, 60), (190, 2)] {
            region.mark(range(start, len), Priority::NORMAL).unwrap();
        }
        let lost = [extent(2, 4), extent(99, 2), extent(150, 1), extent(191, 1)];
        lost.iter().for_each(|run| purge(&region, run.start(), run.len()));
        assert_eq!(region.stats().resident, Pages::new(167 - 8));
        let mut two = vec![0; bytes(2).as_usize()];
        for (first, told) in [(0, None), (3, Some(3)), (5, Some(5)), (6, None), (103, None)] {
            let read = region.try_read(bytes(first), &mut two).err().map(|error| match error {
                Error::Purged { offset } => offset,
                other => panic!("{other}"),
            });
            assert_eq!(read, told.map(bytes), "from page {first}, {}", region.engine());
            if told.is_none() {
                let right = [contents(first, 0), contents(first + 1, 0)].concat();
                assert!(two == right, "page {first}, {}", region.engine());
            }
        }
        assert_eq!(region.drop_now(range(98, 4)).unwrap(), bytes(4));
        let lost = [extent(2, 4), extent(98, 4), extent(150, 1), extent(191, 1)];
        assert_eq!(region.unmark(range(0, 200)).unwrap().runs(), lost);
        expect(&region, 0..200, &lost);
        region.stats().check().unwrap();
    });
}

#[test]
fn a_page_written_while_marked_is_told_apart_by_its_word() {
    let region = Region::options().engine(Engine::Tag).build(bytes(4)).unwrap();
    fill(&region, 0..4);
    region.mark(range(0, 4), Priority::NORMAL).unwrap();
    let write = |page: u64, offset: usize| {
        // SAFETY: inside the region; programs must not do this.
        unsafe { region.as_ptr().add(bytes(page).as_usize() + offset).write_volatile(0x77) };
    };
    write(1, 0);
    write(2, 100);
    assert_eq!(region.unmark(range(0, 4)).unwrap().runs(), [extent(1, 1)]);
    assert_eq!(region.stats().overwritten, 1);
    assert_eq!(page_of(&region, 1), vec![0; bytes(1).as_usize()], "what is told lost is zeros");
    assert_eq!(page_of(&region, 2)[..8], contents(2, 0)[..8]);
    assert_eq!(page_of(&region, 2)[100], 0x77);
}

#[test]
fn statistics_in_every_form() {
    let region = Region::new(bytes(8)).unwrap();
    fill(&region, 0..8);
    region.mark(range(0, 4), Priority::NORMAL).unwrap();
    purge(&region, 1, 1);
    assert_eq!(region.unmark(range(0, 2)).unwrap().pages(), Pages::new(1));
    let stats = region.stats();
    stats.check().unwrap();
    assert_eq!((stats.purged, stats.rescued, stats.marked), (1, 1, Pages::new(2)));
    let engine = region.engine().to_string();
    assert!(stats.to_json().starts_with(&format!("{{ \"engine\": \"{engine}\", \"marks\": 1,")));
    assert!(stats.to_string().contains(&engine));
    assert!(stats.to_openmetrics().contains(&format!("engine=\"{engine}\"")));
    let two = Stats::openmetrics_of(&[("a", &stats), ("b", &stats)]);
    assert!(two.contains("region=\"a\"") && two.contains("region=\"b\""));
    assert!(Stats::describe().lines().count() == stats.lines().len());
}

#[test]
fn huge_pages_are_marked_and_lost_whole_and_made_again() {
    let Ok(huge) = madvise::transparent_huge_page() else {
        return println!("skipped: no transparent huge pages");
    };
    for engine in [Engine::Scan, Engine::Tag] {
        let options = || Region::options().engine(engine).huge(true);
        let granule = huge.bytes();
        let region = match options().build(granule + granule + Bytes::new(1)) {
            Ok(region) => region,
            Err(error) => {
                println!("skipped: {engine} engine: {error}");
                continue;
            }
        };
        assert_eq!((region.len(), region.granule()), (Bytes::new(3 * granule.get()), granule));
        let small = Bytes::ZERO..bytes(1);
        assert!(matches!(region.mark(small, Priority::NORMAL), Err(Error::Unaligned { .. })));
        let pagemap = glebe_os::internal::sys::memory::pagemap::Pagemap::open().unwrap();
        let is_told = pagemap.huge_bytes(region.addr(), region.len()).is_ok();
        drop(region);
        // The kernel splits a huge page that is written while another test's child shares it.
        let rounds = if is_told { 100 } else { 1 };
        let mut was_huge = false;
        let stays_huge = (0..rounds).any(|_| {
            let region = options().build(Bytes::new(3 * granule.get())).unwrap();
            let round = huge_round(&region, granule);
            was_huge |= round.is_some();
            round.unwrap_or_else(|| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                false
            })
        });
        if !was_huge {
            return println!(
                "skipped: memory is too fragmented, or the kernel tells no huge pages"
            );
        }
        assert!(stays_huge, "{engine}");
    }
}

fn huge_round(region: &Region, granule: Bytes) -> Option<bool> {
    let all = || Bytes::ZERO..region.len();
    let in_huge = || {
        let pagemap = glebe_os::internal::sys::memory::pagemap::Pagemap::open().unwrap();
        pagemap.huge_bytes(region.addr(), region.len()).unwrap_or(Bytes::ZERO)
    };
    let each = granule.pages_down(page_size()).get();
    fill(region, 0..3 * each);
    let at_first = in_huge() == region.len();
    region.mark(all(), Priority::NORMAL).unwrap();
    let marked = in_huge() == region.len();
    purge(region, each, each);
    let purged = region.unmark(all()).unwrap();
    assert_eq!(purged.runs(), [extent(each, each)]);
    expect(region, 0..3 * each, &[extent(each, each)]);
    fill(region, each..2 * each);
    let filled = in_huge() == granule + granule;
    region.mark(all(), Priority::NORMAL).unwrap();
    let made_again = in_huge() == region.len();
    assert!(region.unmark(all()).unwrap().is_empty());
    expect(region, 0..3 * each, &[]);
    at_first.then_some(marked && filled && made_again)
}

mod whole;
