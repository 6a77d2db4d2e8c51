//! Tests that the kernel can take refilled pages again, whether the program or the callback
//! refilled them.
//!
//! Each test has its own process, where no other test forks, because the kernel takes no pages that
//! a child shares.
//!
//! Safety: the callback's bytes outlive the regions.

use std::time::{Duration, Instant};

use glebe_os::units::Bytes;
use glebe_testing::time::slowed;
use glebe_volatile::{Priority, Region};

use super::adopted::Mapped;
use super::children::{child_says, fork};
use super::memory::{fill, is_filled, lost, page, pages, purge, reclaim, whole, with_engines};
use super::refill::{refilled, touch};

const COUNT: u64 = 256;
const CAP: u64 = 16;
/// Most pages that a reclaim misses, in processors' batches.
const MISSED_MAX: u64 = 64;

fn without_callback() -> Vec<Region> {
    let small = with_engines(|options| options.build(pages(0..COUNT).end));
    let len = Bytes::mib(4);
    let huge = match Region::options().huge(true).build(len) {
        Ok(_) => with_engines(|options| options.huge(true).build(len)),
        Err(why) => {
            println!("skipped: huge pages: {why}");
            Vec::new()
        }
    };
    small.into_iter().chain(huge).collect()
}

fn with_callback(sevens: &[u8], mapped: &Mapped, cap: Option<u64>) -> Vec<Region> {
    let options = || {
        let options = refilled(sevens);
        cap.map_or(options.clone(), |cap| options.cap(pages(0..cap).end))
    };
    let made = [
        options().build(pages(0..COUNT).end),
        options().huge(true).build(Bytes::mib(4)),
        mapped.adopted_by(options()),
    ];
    let made = made.into_iter().map(|made| made.map_err(|why| println!("skipped: {why}")));
    made.flatten().collect()
}

fn count(region: &Region) -> u64 {
    region.len().get() / page() as u64
}

fn mark(region: &Region) {
    region.mark(whole(region), Priority::NORMAL).unwrap();
}

fn is_reclaimed(region: &Region) -> bool {
    let count = count(region);
    let begin = Instant::now();
    loop {
        let is_so = reclaim(region, count).len() as u64 + MISSED_MAX >= count;
        if is_so || begin.elapsed() > slowed(Duration::from_secs(20)) {
            return is_so;
        }
    }
}

fn touch_all(region: &Region) {
    (0..count(region)).for_each(|number| assert_eq!(touch(region, number as usize), 7));
}

#[test]
fn what_the_program_filled_after_an_unmark_is_taken_again() {
    glebe_testing::alone!();
    for region in without_callback() {
        let count = count(&region);
        for _ in 0..3 {
            fill(&region, 0..count);
            mark(&region);
            purge(&region, 0..count);
            assert_eq!(lost(region.unmark(whole(&region))).len() as u64, count);
            fill(&region, 0..count);
            mark(&region);
            assert!(is_reclaimed(&region), "{}", region.stats());
            assert!(lost(region.unmark(whole(&region))).len() as u64 + MISSED_MAX >= count);
            fill(&region, 0..count);
            mark(&region);
            assert_eq!(region.drop_now(whole(&region)).unwrap(), region.len());
            assert_eq!(lost(region.unmark(whole(&region))).len() as u64, count);
        }
        fill(&region, 0..count);
        assert!(is_filled(&region, 0..count));
    }
}

fn goes_round(region: &Region) {
    let count = count(region);
    fill(region, 0..count);
    mark(region);
    purge(region, 0..count);
    for _ in 0..3 {
        touch_all(region);
        mark(region);
        assert!(is_reclaimed(region), "{}", region.stats());
    }
    touch_all(region);
    assert!(region.unmark(whole(region)).unwrap().is_empty());
    assert!(reclaim(region, count).is_empty());
    region.stats().check().unwrap();
}

#[test]
fn what_the_callback_filled_is_taken_again_once_it_is_marked() {
    glebe_testing::alone!();
    let (sevens, mapped) = (vec![7; page()], Mapped::of_pages(COUNT as usize));
    for region in with_callback(&sevens, &mapped, None) {
        goes_round(&region);
        assert!(child_says(fork, || {
            goes_round(&region);
            true
        }));
        goes_round(&region);
    }
}

#[test]
fn a_mark_of_anything_gives_the_kernel_what_the_callback_filled() {
    glebe_testing::alone!();
    let (sevens, mapped) = (vec![7; page()], Mapped::of_pages(COUNT as usize));
    for region in with_callback(&sevens, &mapped, None) {
        let (count, granule) = (count(&region), region.granule().get() / page() as u64);
        fill(&region, 0..count);
        region.mark(pages(granule..count), Priority::NORMAL).unwrap();
        purge(&region, granule..count);
        (granule..count).for_each(|number| assert_eq!(touch(&region, number as usize), 7));
        region.mark(pages(0..granule), Priority::NORMAL).unwrap();
        assert!(is_reclaimed(&region), "{}", region.stats());
    }
}

#[test]
fn what_the_callback_filled_is_dropped_on_request() {
    glebe_testing::alone!();
    let (sevens, mapped) = (vec![7; page()], Mapped::of_pages(COUNT as usize));
    for region in with_callback(&sevens, &mapped, None) {
        fill(&region, 0..count(&region));
        mark(&region);
        for _ in 0..3 {
            assert_eq!(region.drop_now(whole(&region)).unwrap(), region.len());
            assert_eq!(region.drop_now(whole(&region)).unwrap(), Bytes::ZERO);
            touch_all(&region);
        }
        assert!(region.unmark(whole(&region)).unwrap().is_empty());
    }
}

#[test]
fn a_cap_counts_what_the_callback_filled() {
    glebe_testing::alone!();
    let (sevens, mapped) = (vec![7; page()], Mapped::of_pages(COUNT as usize));
    for region in with_callback(&sevens, &mapped, Some(CAP)) {
        fill(&region, 0..count(&region));
        mark(&region);
        for _ in 0..3 {
            assert!(region.stats().resident.get() <= CAP, "{}", region.stats());
            // Up to `CAP` pages were not dropped, and so not refilled.
            let sevens = (0..count(&region)).filter(|page| touch(&region, *page as usize) == 7);
            assert!(sevens.count() as u64 + CAP >= count(&region));
            mark(&region);
        }
        assert!(region.stats().resident.get() <= CAP, "{}", region.stats());
    }
}
