//! Tests a region as a program uses it: touches and calls return the bytes written, under any
//! budget; impossible calls return errors and change nothing.
#![allow(unsafe_code)] // Safety: touches of a live region, each word by one thread.

mod hints;
mod sources;
mod split;
mod threads;
mod traps;

use glebe::internal::without_moves;
use glebe::page_size;
use glebe::swap::{Region, Store, SwapError, SwapOptions};
use glebe::units::{Bytes, Pages};

use glebe_testing::stressed::mix;

fn page() -> usize {
    page_size().bytes().as_usize()
}

fn pages(count: u64) -> Bytes {
    Pages::new(count).bytes(page_size())
}

fn region_of(options: SwapOptions, len: u64, budget: u64) -> Option<Region> {
    match options.build_region(pages(len), pages(budget)) {
        Ok(region) => Some(region),
        Err(SwapError::Os(error)) if error.call() == "userfaultfd" => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn both(len: u64, budget: u64, test: impl Fn(&Region)) {
    for options in [Store::options(), without_moves(Store::options())] {
        let Some(region) = region_of(options.pool_limit(pages(16 << 10)), len, budget) else {
            return;
        };
        test(&region);
        region.stats().check().unwrap();
    }
}

fn word_of(index: u64, round: u64) -> u64 {
    match index / (page() as u64 / 8) % 5 {
        0 => 0,
        1 => round,
        2 => mix(index << 8 | round),
        _ => index << 16 | round << 8 | (index % 7),
    }
}

fn words(region: &Region) -> u64 {
    region.len().get() / 8
}

fn word_at(region: &Region, index: u64) -> *mut u64 {
    assert!(index < words(region));
    region.as_ptr().cast::<u64>().wrapping_add(index as usize)
}

fn load(region: &Region, index: u64) -> u64 {
    // SAFETY: the word is in a live region.
    unsafe { word_at(region, index).read_volatile() }
}

fn store(region: &Region, index: u64, word: u64) {
    // SAFETY: the word is in a live region.
    unsafe { word_at(region, index).write_volatile(word) }
}

fn fill(region: &Region, round: u64) {
    (0..words(region)).for_each(|at| store(region, at, word_of(at, round)));
}

fn check(region: &Region, round: u64) {
    for at in 0..words(region) {
        assert_eq!(load(region, at), word_of(at, round), "word {at:#x}, round {round}");
    }
}

#[test]
fn what_was_written_is_read_whatever_left_meanwhile() {
    for budget in [4, 5, 16, 100] {
        both(200, budget, |region| {
            check_zeros(region);
            for round in 1..4 {
                fill(region, round);
                check(region, round);
                check(region, round);
            }
            let stats = region.stats();
            assert!(stats.evicted > 300 && stats.came_over_pages == 0, "{stats}");
            assert!(stats.charged <= stats.budget, "{stats}");
        });
    }
}

/// Moves one word by one instruction.
fn move_word(from: *const u64, to: *mut u64) {
    // SAFETY: both words are in a live region.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("movsq", inout("rsi") from => _, inout("rdi") to => _);
        #[cfg(not(target_arch = "x86_64"))]
        to.write_unaligned(from.read_unaligned());
    }
}

#[test]
fn an_instruction_that_needs_four_pages_ends_with_the_least_budget() {
    for (budget, pinned) in [(4, 0), (16, 12)] {
        both(64, budget, |region| {
            let pins = region.resident(pages(0), pages(pinned)).unwrap();
            let word =
                |page_at: usize| region.as_ptr().wrapping_add(page_at * page() - 4).cast::<u64>();
            for at in (16..60).step_by(4) {
                store(region, at as u64 * (page() as u64 / 8), 7);
                move_word(word(at), word(at + 2));
                assert_eq!(load(region, (at + 2) as u64 * (page() as u64 / 8)), 7);
            }
            drop(pins);
        });
    }
}

fn check_zeros(region: &Region) {
    assert!((0..words(region)).all(|at| load(region, at) == 0));
}

#[test]
fn random_touches_and_copies_beside_a_vector() {
    both(64, 20, |region| {
        let len = region.len().as_usize();
        let mut oracle = vec![0_u8; len];
        let mut seed = 1;
        let mut next = |below: usize| {
            seed = mix(seed);
            (seed % below as u64) as usize
        };
        for step in 0..6_000 {
            let at = next(len);
            let count = next(3 * page()).min(len - at);
            let (offset, bytes) = (Bytes::new(at as u64), Bytes::new(count as u64));
            match next(9) {
                6 => region.cold(offset, bytes).unwrap(),
                7 => region.will_need(offset, bytes).unwrap(),
                8 => {
                    region.discard(offset, bytes).unwrap();
                    let (first, end) =
                        (at.next_multiple_of(page()), (at + count) / page() * page());
                    oracle[first.min(end)..end].fill(0);
                }
                0 => {
                    let bytes: Vec<u8> = (0..count).map(|n| (n / 9 + step) as u8).collect();
                    region.write_at(Bytes::new(at as u64), &bytes).unwrap();
                    oracle[at..at + count].copy_from_slice(&bytes);
                }
                1 => {
                    let mut bytes = vec![0; count];
                    region.read_at(Bytes::new(at as u64), &mut bytes).unwrap();
                    assert_eq!(bytes, oracle[at..at + count], "step {step}");
                }
                2 => {
                    let mut all =
                        region.resident(Bytes::new(at as u64), Bytes::new(count as u64)).unwrap();
                    assert_eq!(*all, oracle[at..at + count], "step {step}");
                    all.fill(step as u8);
                    oracle[at..at + count].fill(step as u8);
                }
                3 => {
                    let word = at / 8;
                    store(region, word as u64, step as u64);
                    oracle[word * 8..][..8].copy_from_slice(&(step as u64).to_ne_bytes());
                }
                _ => {
                    let word = at / 8;
                    let expected = u64::from_ne_bytes(oracle[word * 8..][..8].try_into().unwrap());
                    assert_eq!(load(region, word as u64), expected, "step {step}");
                }
            }
        }
        region.stats().check().unwrap();
    });
}

#[test]
fn what_is_resident_stays_and_is_nobody_elses() {
    both(64, 16, |region| {
        fill(region, 1);
        let mut kept = region.resident(pages(3), pages(4)).unwrap();
        kept[5] = 77;
        (0..3).for_each(|_| check_from(region, 7));
        let before = region.stats();
        assert_eq!((kept[5], before.pinned), (77, Pages::new(4)));
        assert!(matches!(region.resident(pages(6), pages(2)), Err(SwapError::Pinned)));
        assert!(matches!(region.write_at(pages(4), &[1]), Err(SwapError::Pinned)));
        assert!(matches!(region.resident(pages(20), pages(9)), Err(SwapError::Budget { .. })));
        assert!(matches!(
            region.set_budget(pages(7)),
            Err(SwapError::BudgetBelowPinned { pinned, .. }) if pinned == pages(4)
        ));
        assert_eq!(region.budget(), pages(16));
        drop(kept);
        let again = region.resident(pages(3), pages(12)).unwrap();
        assert_eq!(again[5], 77);
        drop(again);
        region.set_budget(pages(4)).unwrap();
        check_from(region, 7);
        assert!(region.stats().charged <= Pages::new(4));
        assert_eq!(region.stats().pinned, Pages::new(0));
    });
}

fn check_from(region: &Region, first: u64) {
    for at in first * page() as u64 / 8..words(region) {
        assert_eq!(load(region, at), word_of(at, 1), "word {at:#x}");
    }
}

#[test]
fn a_page_that_was_only_read_leaves_by_the_copy_it_has() {
    let Some(region) = region_of(Store::options().pool_limit(pages(16 << 10)), 256, 64) else {
        return;
    };
    fill(&region, 1);
    check(&region, 1);
    let before = region.stats();
    check(&region, 1);
    let after = region.stats();
    let (left, reused) = (after.evicted - before.evicted, after.reused - before.reused);
    assert!(left >= 192 && reused * 10 >= left * 9, "{reused} of {left} by a kept copy");
    // An eviction cannot reuse the old copy of a rewritten page, unless the page is zeros (a fifth
    // of the pages). The 64 pages in memory may leave by their copies before `fill` rewrites them.
    let before = region.stats();
    fill(&region, 2);
    let after = region.stats();
    let (left, reused) = (after.evicted - before.evicted, after.reused - before.reused);
    assert!(left >= 192 && reused <= 256 / 5 + 64, "{reused} of {left}");
    check(&region, 2);
}

#[test]
fn touches_in_sequence_are_read_ahead() {
    both(1024, 512, |region| {
        fill(region, 1);
        let before = region.stats();
        check(region, 1);
        let after = region.stats();
        let loads = after.load.count() - before.load.count();
        let (pages, ahead) =
            (after.loaded - before.loaded, after.read_ahead_pages - before.read_ahead_pages);
        assert!(pages >= 512 && ahead * 10 >= pages * 8, "{ahead} of {pages} in {loads}");
    });
}

#[test]
fn the_window_gives_pages_back_that_are_touched() {
    let Some(region) = region_of(Store::options().pool_limit(pages(16 << 10)), 4096, 1024) else {
        return;
    };
    if !region.moves_pages() {
        return eprintln!("skipped: no UFFDIO_MOVE");
    }
    fill(&region, 1);
    let words_a_page = page() as u64 / 8;
    // Touches a hot half of the budget, with cold pages in between.
    for round in 0..4 * 4096_u64 {
        let hot = mix(round) % 512 * words_a_page;
        assert_eq!(load(&region, hot), word_of(hot, 1));
        if round % 4 == 0 {
            let cold = (512 + mix(round) % 3500) * words_a_page;
            assert_eq!(load(&region, cold), word_of(cold, 1));
        }
    }
    let stats = region.stats();
    stats.check().unwrap();
    assert!(stats.retouched_pages > 500, "{stats}");
    assert!(stats.window.get() <= 1024 / 8 + 64, "{stats}");
}

#[test]
fn with_a_file_the_pool_may_be_small() {
    let dir = std::env::temp_dir();
    let options = Store::options().pool_limit(pages(256)).file_in(dir, pages(16 << 10));
    let Some(region) = region_of(options, 4096, 256) else { return };
    for round in 1..3 {
        fill(&region, round);
        check(&region, round);
    }
    let stats = region.stats();
    stats.check().unwrap();
    assert!(stats.spilled > 1000 && stats.read_back > 1000, "{stats}");
    assert_eq!(stats.came_over_pages, 0, "{stats}");
}

#[test]
fn where_nothing_can_leave_touches_go_over_and_calls_are_refused() {
    let Some(region) = region_of(Store::options().pool_limit(pages(256)), 2048, 64) else {
        return;
    };
    let noise = |at| mix(at) | 1;
    (0..words(&region)).for_each(|at| store(&region, at, noise(at)));
    let stats = region.stats();
    stats.check().unwrap();
    assert!(stats.over.get() > 1000 && stats.came_over_pages > 1000, "{stats}");
    assert!((0..words(&region)).all(|at| load(&region, at) == noise(at)));
    let stored = (0..2048).find_map(|at| region.write_at(pages(at), &[1]).err());
    assert!(matches!(stored, Some(SwapError::Full { .. })), "{stored:?}");
}

#[test]
fn what_cannot_be_is_refused_with_the_limit() {
    let made = |len, budget| Store::options().build_region(Bytes::new(len), Bytes::new(budget));
    for len in [0, pages(1 << 31).get() + 1, u64::MAX] {
        assert!(matches!(made(len, 1 << 20), Err(SwapError::Capacity { .. })), "{len}");
    }
    assert!(matches!(made(1 << 20, 4 * page() as u64 - 1), Err(SwapError::NoBudget { .. })));
    let Some(region) = region_of(Store::options(), 4, 64) else { return };
    let end = region.len();
    for (offset, len) in [(end, 1), (Bytes::ZERO, end.get() + 1), (Bytes::new(u64::MAX), 2)] {
        let buf = &mut vec![0; len as usize][..];
        let said = region.read_at(offset, buf);
        assert!(matches!(said, Err(SwapError::Beyond { limit, .. }) if limit == end), "{said:?}");
        assert!(matches!(region.write_at(offset, buf), Err(SwapError::Beyond { .. })));
        let said = region.resident(offset, Bytes::new(len));
        assert!(matches!(said, Err(SwapError::Beyond { .. })), "{said:?}");
    }
    region.read_at(end, &mut []).unwrap();
    assert!(region.resident(end, Bytes::ZERO).unwrap().is_empty());
    assert!(matches!(region.set_budget(Bytes::ZERO), Err(SwapError::NoBudget { .. })));
    // A budget above the length never evicts.
    fill(&region, 1);
    check(&region, 1);
    assert_eq!(region.stats().evicted, 0);
}
