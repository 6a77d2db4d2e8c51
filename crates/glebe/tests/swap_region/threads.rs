//! Tests threads that use their own words of common pages while pages are evicted.

use std::thread;

use super::*;

const THREADS: u64 = 4;

fn count_beside(region: &Region, turns: u64) {
    let pages = region.len().pages_down(page_size()).get();
    let words = page() as u64 / 8;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                region.arm_thread().unwrap();
                let mut counts = vec![0_u64; pages as usize];
                for turn in 0..turns {
                    let at = mix(turn << 8 | thread) % pages;
                    let word = at * words + thread * 9;
                    assert_eq!(load(region, word), counts[at as usize], "page {at}, turn {turn}");
                    counts[at as usize] += 1;
                    store(region, word, counts[at as usize]);
                }
                for (at, count) in (0..pages).zip(counts) {
                    assert_eq!(load(region, at * words + thread * 9), count, "page {at}");
                }
            });
        }
    });
}

#[test]
fn no_write_is_lost_beside_evictions() {
    for budget in [4, 40, 120] {
        both(256, budget, |region| {
            count_beside(region, 5_000);
            let stats = region.stats();
            assert!(stats.evicted > 2_000, "{stats}");
            // With fewer pages than threads, all may be on their way at once.
            assert!(stats.came_over_pages == 0 || budget < THREADS, "{stats}");
        });
    }
}

#[test]
fn what_a_thread_discards_is_zeros_and_no_others_page_is_lost() {
    // The budget is below one thread's pages, so even a thread that runs alone evicts.
    both(256, 24, |region| {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let mut words = vec![0_u64; 64];
                    for turn in 0..4_000 {
                        let nth = mix(turn << 8 | thread) % 64;
                        let at = nth * THREADS + thread;
                        let word = at * page() as u64 / 8 + 5;
                        assert_eq!(load(region, word), words[nth as usize], "page {at}");
                        if turn % 3 == 0 {
                            region.discard(pages(at), pages(1)).unwrap();
                            words[nth as usize] = 0;
                        } else {
                            words[nth as usize] = turn;
                            store(region, word, turn);
                        }
                    }
                });
            }
        });
        let stats = region.stats();
        assert!(stats.evicted > 1_000 && stats.freed_pages > 1_000, "{stats}");
    });
}

#[test]
fn no_write_is_lost_beside_changes_of_budget_guards_and_copies() {
    both(256, 64, |region| {
        thread::scope(|scope| {
            let counters = scope.spawn(|| count_beside(region, 5_000));
            let mut turn = 0;
            while !counters.is_finished() {
                turn += 1;
                let budget = 8 + mix(turn) % 100;
                region.set_budget(pages(budget)).unwrap();
                let at = mix(turn << 1) % 250;
                // No counter uses this word.
                region.write_at(pages(at) + Bytes::new(8), &turn.to_ne_bytes()).unwrap();
                let mut seen = [0; 8];
                region.read_at(pages(at) + Bytes::new(8), &mut seen).unwrap();
                assert_eq!(u64::from_ne_bytes(seen), turn);
                region.cold(pages(mix(turn << 2) % 200), pages(50)).unwrap();
                region.will_need(pages(mix(turn << 3) % 200), pages(5)).unwrap();
                let guard = region.resident(pages(at), pages(4)).unwrap();
                assert_eq!(guard[8..16], turn.to_ne_bytes());
            }
        });
    });
}
