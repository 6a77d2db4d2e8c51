//! Tests that marks and unmarks need no extra memory, that a mark loses no contents that are in
//! swap, and that a mark drops what was marked longer ago than the age limit.
//!
//! Safety: advice concerns marked pages of a region, or changes no contents.

use std::time::Duration;

use glebe_os::internal::sys::memory::madvise;
use glebe_os::internal::sys::memory::vma;
use glebe_os::units::Pages;
use glebe_volatile::internal::without_pagemap_scan;
use glebe_volatile::{Engine, Options, Priority, Region};

use super::children::{child_says, fork};
use super::memory::{fill, is_filled, lost, page, pages, purge, regions, whole};

fn each_way(count: u64) -> Vec<(Region, bool)> {
    let ways = [Engine::Scan, Engine::Tag].into_iter().flat_map(|it| [(it, false), (it, true)]);
    let made = ways.filter_map(|(engine, without)| {
        let options = without_pagemap_scan(Region::options().engine(engine), without);
        let made = options.build(pages(0..count).end);
        made.map(|region| (region, without)).map_err(|why| println!("skipped: {why}")).ok()
    });
    made.collect()
}

/// Reads the region's pagemap entries, because smaps counts a whole mapping, which may exceed the
/// region.
fn entries(region: &Region) -> Vec<u64> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut bytes = vec![0; region.len().as_usize() / page() * size_of::<u64>()];
    file.read_exact_at(&mut bytes, (region.addr() / page() * size_of::<u64>()) as u64).unwrap();
    let words = bytes.chunks_exact(size_of::<u64>());
    words.map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
}

/// Counts present pages that only this process maps, so not the zero page.
fn rss(region: &Region) -> usize {
    entries(region).iter().filter(|word| *word >> 63 & 1 == 1 && *word >> 56 & 1 == 1).count()
}

#[test]
fn what_is_lost_needs_no_memory_when_it_is_unmarked() {
    glebe_testing::alone!();
    // Unmarks of few pages may skip the look at the page tables.
    for count in [4, 16, 512] {
        for (region, without_scan) in each_way(count) {
            fill(&region, 0..count);
            assert_eq!(rss(&region) as u64, count);
            region.mark(whole(&region), Priority::NORMAL).unwrap();
            purge(&region, 1..count);
            let before = rss(&region);
            assert!(lost(region.unmark(whole(&region))).len() as u64 >= count - 1);
            let what = format!("{}, {count}, {without_scan}", region.engine());
            assert!(rss(&region) <= before, "{what}: {before}, then {}", rss(&region));
            fill(&region, 0..count);
            region.mark(whole(&region), Priority::NORMAL).unwrap();
            purge(&region, 0..count);
            assert_eq!(lost(region.unmark(whole(&region))).len() as u64, count, "{what}");
            assert_eq!(rss(&region), 0, "{what}");
        }
    }
}

#[test]
fn memory_never_written_needs_none_in_large_ranges() {
    glebe_testing::alone!();
    for region in regions(512) {
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        assert!(lost(region.unmark(whole(&region))).is_empty() && rss(&region) == 0);
    }
}

#[test]
fn no_huge_page_is_made_of_a_regions_memory() {
    if madvise::transparent_huge_page().is_err() {
        println!("skipped: no transparent huge pages");
        return;
    }
    for huge in [false, true] {
        for engine in [Engine::Scan, Engine::Tag] {
            let Ok(region) = Region::options().engine(engine).huge(huge).build(pages(0..8).end)
            else {
                println!("skipped: engine {engine:?}");
                continue;
            };
            let range = region.addr()..region.addr() + region.len().as_usize();
            let is_refused = |region: &str| {
                let all = vma::among(&range).unwrap();
                assert!(all.iter().all(|vma| vma.has("nh") && !vma.has("hg")), "{region}");
            };
            is_refused("new");
            region.mark(whole(&region), Priority::NORMAL).unwrap();
            is_refused("marked");
            let _ = region.unmark(whole(&region)).unwrap();
            is_refused("unmarked");
        }
    }
}

fn swapped(region: &Region) -> usize {
    entries(region).iter().filter(|word| *word >> 62 & 1 == 1).count()
}

#[test]
fn what_is_in_swap_is_not_lost_by_a_mark() {
    for count in [8, 512] {
        for (region, _) in each_way(count) {
            fill(&region, 0..count);
            // SAFETY: MADV_PAGEOUT keeps the contents.
            unsafe {
                let len = region.len().as_usize();
                libc::madvise(region.as_ptr().cast(), len, libc::MADV_PAGEOUT);
            }
            if swapped(&region) == 0 {
                println!("skipped: nothing goes to swap here");
                return;
            }
            region.mark(whole(&region), Priority::NORMAL).unwrap();
            assert_eq!(swapped(&region), 0);
            let gone = lost(region.unmark(whole(&region))).len() as u64;
            // Memory pressure may take some pages, but not half.
            assert!(gone < count / 2, "{gone} of {count}, {}", region.engine());
        }
    }
}

#[test]
fn a_large_region_that_a_fork_shares_is_unmarked_in_both() {
    glebe_testing::alone!();
    const COUNT: u64 = 6000; // more pages than one call populates
    for region in regions(COUNT) {
        fill(&region, 0..COUNT);
        region.mark(whole(&region), Priority::NORMAL).unwrap();
        for gone in [0..1, 1023..1025, 2048..2049, 5999..6000] {
            purge(&region, gone);
        }
        let all = [0, 1023, 1024, 2048, 5999];
        let ends_well = || {
            let told = lost(region.unmark(whole(&region)));
            let kept = (0..COUNT).filter(|page| !told.contains(page));
            let kept = kept.clone().all(|page| is_filled(&region, page..page + 1));
            all.iter().all(|page| told.contains(page)) && kept
        };
        assert!(child_says(fork, ends_well), "{}", region.engine());
        assert!(ends_well(), "{}", region.engine());
    }
}

fn aged(age: Duration) -> impl Iterator<Item = Region> {
    let make = move |options: Options| options.max_age(age).build(pages(0..8).end);
    super::memory::with_engines(make).into_iter()
}

#[test]
fn what_is_old_goes_with_the_next_mark_and_what_is_young_stays() {
    let age = Duration::from_millis(20);
    for region in aged(age) {
        fill(&region, 0..8);
        region.mark(pages(0..2), Priority::HIGHEST).unwrap();
        std::thread::sleep(2 * age);
        // Age alone drops nothing.
        let mut byte = [0];
        region.try_read(pages(0..1).start, &mut byte).unwrap();
        assert_eq!(region.stats().dropped_by_cap, 0);
        region.mark(pages(0..2), Priority::HIGHEST).unwrap();
        assert_eq!(region.stats().dropped_by_cap, 0);
        region.mark(pages(4..5), Priority::LOWEST).unwrap();
        assert!(region.stats().dropped_by_cap >= 2, "{}", region.stats());
        assert!(lost(region.unmark(whole(&region))).starts_with(&[0, 1]));
    }
    for region in aged(Duration::from_secs(3600)) {
        fill(&region, 0..8);
        region.mark(pages(0..2), Priority::LOWEST).unwrap();
        region.mark(pages(4..5), Priority::LOWEST).unwrap();
        assert_eq!(region.stats().dropped_by_cap, 0);
        assert_eq!(region.stats().marked, Pages::new(3));
    }
}
