//! Tests hints about pages.

use super::*;

fn words_of_page(at: u64) -> std::ops::Range<u64> {
    let words = page() as u64 / 8;
    at * words..(at + 1) * words
}

fn fill_page(region: &Region, at: u64) {
    words_of_page(at).for_each(|word| store(region, word, word_of(word, 1)));
}

fn check_page(region: &Region, at: u64) {
    words_of_page(at)
        .for_each(|word| assert_eq!(load(region, word), word_of(word, 1), "page {at}"));
}

fn came(region: &Region, work: impl FnOnce()) -> u64 {
    let before = region.stats();
    work();
    let after = region.stats();
    after.loaded + after.retouched_pages - before.loaded - before.retouched_pages
}

#[test]
fn cold_pages_leave_first_and_no_sooner_than_they_must() {
    // Makes one call for the range, or one per page.
    for step in [24, 1] {
        both(128, 64, |region| {
            (0..64).for_each(|at| fill_page(region, at));
            (20..44).step_by(step).for_each(|at| {
                region.cold(pages(at), pages(step as u64)).unwrap();
            });
            assert_eq!(region.stats().evicted, 0);
            (64..80).for_each(|at| fill_page(region, at));
            let others = (0..20).chain(44..80);
            assert_eq!(came(region, || others.for_each(|at| check_page(region, at))), 0);
            let stats = region.stats();
            assert!((16..=24).contains(&stats.evicted), "{stats}");
            let cold = came(region, || (20..44).for_each(|at| check_page(region, at)));
            assert!((16..=64).contains(&cold), "{cold} came");
        });
    }
}

#[test]
fn of_a_cold_range_pages_that_lie_in_it_in_part_stay() {
    both(32, 16, |region| {
        (0..16).for_each(|at| fill_page(region, at));
        region.cold(pages(3) + Bytes::new(1), pages(2) - Bytes::new(1)).unwrap();
        fill_page(region, 20);
        let others = (0..4).chain(5..16);
        assert_eq!(came(region, || others.for_each(|at| check_page(region, at))), 0);
        check_page(region, 4);
    });
}

#[test]
fn what_will_be_needed_is_there_at_its_touch() {
    both(256, 64, |region| {
        fill(region, 1);
        let read_before = came(region, || region.will_need(pages(10), pages(20)).unwrap());
        assert!((20..=24).contains(&read_before), "{read_before}");
        assert_eq!(came(region, || (10..30).for_each(|at| check_page(region, at))), 0);
        // Beyond the budget, only the first pages are loaded.
        assert!(came(region, || region.will_need(pages(64), pages(192)).unwrap()) <= 68);
        assert!(region.stats().charged <= Pages::new(64));
        check(region, 1);
    });
}

#[test]
fn what_is_discarded_takes_no_memory_and_is_zeros() {
    both(256, 64, |region| {
        fill(region, 1);
        let before = region.stats();
        // Discards pages that are resident, wait for compression or are compressed, and parts of
        // two pages.
        region.discard(pages(10) + Bytes::new(8), pages(230) - Bytes::new(16)).unwrap();
        let after = region.stats();
        after.check().unwrap();
        assert_eq!(after.freed_pages, 228);
        assert_eq!(after.resident + after.stored, Pages::new(28), "{after}");
        assert!(after.pool < before.pool && after.charged < before.charged, "{after}");
        (0..11).chain(239..256).for_each(|at| check_page(region, at));
        let mut words = (11..239).flat_map(words_of_page);
        assert!(words.all(|word| load(region, word) == 0));
        fill(region, 1);
        check(region, 1);
        region.discard(Bytes::ZERO, region.len()).unwrap();
        let end = region.stats();
        assert_eq!((end.charged, end.resident, end.stored), Default::default(), "{end}");
        assert_eq!((end.window, end.kept), Default::default(), "{end}");
        check_zeros(region);
    });
}

#[test]
fn what_a_guard_has_is_not_discarded_and_nothing_is_told_of_what_is_beyond() {
    both(32, 16, |region| {
        (0..32).for_each(|at| fill_page(region, at));
        let guard = region.resident(pages(5), pages(2)).unwrap();
        assert!(matches!(region.discard(pages(3), pages(10)), Err(SwapError::Pinned)));
        assert_eq!(guard[page()..page() + 8], 1_u64.to_ne_bytes());
        drop(guard);
        (5..32).for_each(|at| check_page(region, at));
        region.discard(pages(3), pages(10)).unwrap();
        assert!((3..13).flat_map(words_of_page).all(|word| load(region, word) == 0));
        (13..32).for_each(|at| check_page(region, at));
        type Hint = fn(&Region, Bytes, Bytes) -> Result<(), SwapError>;
        for hint in [Region::cold as Hint, Region::will_need, Region::discard] {
            assert!(matches!(hint(region, pages(31), pages(2)), Err(SwapError::Beyond { .. })));
            let all = Bytes::new(u64::MAX);
            assert!(matches!(hint(region, pages(1), all), Err(SwapError::Beyond { .. })));
            hint(region, pages(32), Bytes::ZERO).unwrap();
            hint(region, pages(7) + Bytes::new(1), Bytes::new(1)).unwrap();
        }
    });
}
