//! On the machine as it is: without root or hugepages the parts that need them skip.

use glebe::contig::{PoolLock, Source};
use glebe::sys::hugetlb;

use super::*;
use crate::set_aside::SetAside;

fn check(peer: Peer, pages: u64) {
    let pages = Pages::new(pages);
    let block = match peer.alloc(pages) {
        Ok(block) => block,
        Err(e) if peer != Peer::Plain => {
            println!("skipped: {peer}: {e}");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    assert_eq!(block.pages(), pages);
    assert!(block.obtained().wall_us > 0.0);
    match block.longest_run() {
        Some(run) => {
            assert!(run > Pages::ZERO && run <= pages, "{peer}: {run} of {pages}");
            assert_eq!(block.is_one_run(), Some(run == pages));
            if peer == Peer::SurplusHugetlb {
                let huge = pool::hugepage_bytes().unwrap().pages_down(page_size());
                assert!(run >= pages.min(huge), "{peer}: {run} of {pages}");
            }
        }
        None => println!("skipped: page frames are hidden"),
    }
}

#[test]
fn every_peer_gives_what_was_asked() {
    for peer in Peer::ALL {
        for pages in [1, 3, 512, 1025] {
            check(peer, pages);
        }
    }
}

#[test]
fn sizes_that_cannot_be_are_errors() {
    for peer in Peer::ALL {
        assert!(matches!(peer.alloc(Pages::ZERO), Err(PeerError::Size { .. })));
        assert!(matches!(peer.alloc(Pages::new(u64::MAX)), Err(PeerError::Size { .. })));
        let over = peer.alloc(Pages::new(1 << 33));
        assert!(matches!(over, Err(PeerError::TooLarge { .. })), "{over:?}");
        let sample = measure(peer, Pages::new(1 << 33));
        assert!(sample.failed.is_some_and(|why| why.contains("available")));
    }
}

#[test]
fn a_sample_is_the_block_in_numbers() {
    let sample = measure(Peer::Plain, Pages::new(64));
    assert_eq!(sample.failed, None);
    assert!(sample.wall_us > 0.0 && sample.cpu_us > 0.0, "{sample:?}");
}

#[test]
fn a_window_of_the_standing_pool_is_the_same_pages_each_time() {
    let pages = Pages::new(1025);
    let pool = match StandingPool::new(pages) {
        Ok(pool) => pool,
        Err(e) => {
            println!("skipped: {e}");
            return;
        }
    };
    assert!(pool.idle() >= pages.bytes(page_size()));
    let first = pool.measure(pages);
    assert_eq!(first.failed, None);
    assert!(first.wall_us > 0.0);
    // Hugetlb pages are not moved, so their runs are as they were.
    assert_eq!(pool.measure(pages).longest_run, first.longest_run);
    let beyond = Pages::new(1 << 20);
    assert!(pool.measure(beyond).failed.is_some(), "a window beyond the file");
}

#[test]
fn what_is_set_aside_beside_surplus_pages_goes_back_without_them() {
    let Source::Hugetlb(size) = Source::HUGETLB_2M else { unreachable!() };
    let Some(pool) = hugetlb::Pool::of(size) else {
        println!("skipped: no pool of 2 MiB pages");
        return;
    };
    // Others may change the pool too.
    let mut seen = Vec::new();
    for _ in 0..8 {
        let before = persistent(&pool);
        // More than lies idle.
        let huge = Pages::new(pool.counts().unwrap().available() + 8);
        let surplus = match Peer::SurplusHugetlb.alloc(huge.bytes(size).pages_up(page_size())) {
            Ok(block) => block,
            Err(e) => {
                println!("skipped: {e}");
                return;
            }
        };
        let aside = SetAside::new(size, 4).unwrap();
        drop(surplus);
        drop(aside);
        seen.push((before, persistent(&pool)));
        if seen.last().is_some_and(|(before, after)| before == after) {
            return;
        }
    }
    panic!("persistent pages before and after: {seen:?}");
}

fn persistent(pool: &hugetlb::Pool) -> u64 {
    let _lock = PoolLock::acquire().unwrap();
    pool.counts().unwrap().persistent()
}
