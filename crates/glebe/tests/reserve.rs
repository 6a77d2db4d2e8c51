//! Tests the reserve through its public interface.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use glebe::contig::{Contig, Source};
use glebe::internal::with_writers;
use glebe::page_size;
use glebe::reserve::{Put, Request, Reserve, ReserveError, Writers};
use glebe::units::{Bytes, Pages};
use glebe_testing::time::wait_until;

const ONE: Pages = Pages::new(1);

/// Returns a reserve of ordinary memory, whose frames may be scattered, so tests request `any`
/// blocks.
fn reserve(len: Bytes, writers: Option<Writers>) -> Reserve {
    let contig = Contig::options().source(Source::Plain).build(len).expect("ordinary memory");
    let builder = Reserve::options();
    let builder = match writers {
        Some(writers) => with_writers(builder, writers),
        None => builder,
    };
    builder.build_on(contig).expect("a whole number of granules")
}

fn long_runs(len: Bytes) -> Option<Reserve> {
    match Contig::options().source(Source::Thp).build(len) {
        Ok(contig) => {
            Some(Reserve::options().build_on(contig).expect("a whole number of granules"))
        }
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

fn len_of(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

fn page(fill: u8) -> Vec<u8> {
    vec![fill; page_size().bytes().as_usize()]
}

fn any(reserve: &Reserve, pages: u64) -> Result<glebe::reserve::Block, ReserveError> {
    reserve.alloc(Request::new(Pages::new(pages)).any())
}

fn fill(reserve: &Reserve) -> glebe::reserve::Namespace {
    let pool = reserve.page_cache().namespace("fill").unwrap();
    for index in 0..reserve.len().get() {
        let put = pool.put(1, index, &page_of(index)).unwrap();
        assert_eq!(put, Put::Stored, "{index}");
    }
    pool
}

fn page_of(index: u64) -> Vec<u8> {
    let mut bytes = page(index as u8);
    bytes[..8].copy_from_slice(&index.to_le_bytes());
    bytes
}

fn hits(pool: &glebe::reserve::Namespace, pages: u64) -> u64 {
    let mut buf = page(0);
    (0..pages)
        .filter(|index| {
            let hit = pool.get(1, *index, &mut buf).unwrap();
            assert!(!hit || buf == page_of(*index), "wrong bytes under {index}");
            hit
        })
        .count() as u64
}

#[test]
fn a_full_reserve_still_gives_every_block_and_drops_only_what_it_takes() {
    for writers in [None, Some(Writers::Counted)] {
        let reserve = reserve(len_of(4096), writers);
        let pool = fill(&reserve);
        let all = reserve.len().get();
        let kept = hits(&pool, all);
        assert!(kept > all * 99 / 100, "{kept} of {all}");
        for pages in [1, 7, 63, 64, 511, 512, 513, 1000, 1537] {
            let before = reserve.stats();
            let block = any(&reserve, pages).unwrap();
            let after = reserve.stats();
            assert!(after.recalled - before.recalled <= pages, "{pages}");
            assert_eq!(after.live, before.live - Pages::new(after.recalled - before.recalled));
            assert_eq!(after.held, Pages::new(pages));
            assert_eq!(hits(&pool, all), after.live.get(), "after {pages}");
            drop(block);
            reserve.stats().check().unwrap();
        }
        assert_eq!(reserve.stats().alloc_failures, 0);
    }
}

#[test]
fn thousand_single_pages_leave_the_rest_lent() {
    let reserve = reserve(Bytes::mib(64), None);
    fill(&reserve);
    let blocks: Vec<_> = (0..1000).map(|_| any(&reserve, 1).unwrap()).collect();
    let stats = reserve.stats();
    let rest = reserve.len().get() - blocks.len() as u64;
    assert!(stats.live.get() * 100 >= rest * 95, "{stats}");
    assert!(stats.recalled <= 1000);
}

#[test]
fn pages_at_hand_for_single_blocks_are_there_for_every_other_request() {
    let Some(reserve) = long_runs(len_of(2048)) else { return };
    let all = reserve.len().get();
    let single = any(&reserve, 1).unwrap();
    assert_eq!(any(&reserve, all - 1).unwrap().pages().get(), all - 1);
    drop(any(&reserve, 1).unwrap());
    let longest = reserve.largest_run().unwrap();
    let promise = reserve.promise(longest).unwrap();
    let beside = any(&reserve, 1);
    // If all frames form one run, no page is left.
    assert_eq!(beside.is_ok(), longest.get() < all - 1);
    drop((promise, beside, single));
    let largest = reserve.largest_run().unwrap();
    let block = reserve.alloc(largest).unwrap();
    assert_eq!(block.pages(), largest);
    drop(block);
    assert_eq!(any(&reserve, all).unwrap().pages().get(), all);
    let singles: Vec<_> = (0..all).map(|_| any(&reserve, 1).unwrap()).collect();
    assert!(any(&reserve, 1).is_err() && singles.len() as u64 == all);
}

#[test]
fn no_two_blocks_of_many_threads_share_a_page() {
    let Some(reserve) = long_runs(Bytes::mib(4)) else { return };
    let owned: Vec<_> = (0..reserve.len().get()).map(|_| AtomicBool::new(false)).collect();
    let give_back = |block: glebe::reserve::Block| {
        for page in block.extent().start()..block.extent().end() {
            owned[page as usize].store(false, Ordering::SeqCst);
        }
    };
    let turn = |worker: u64| {
        let mut blocks = Vec::new();
        for n in 0..20_000_u64 {
            let pages = if (n + worker) % 7 == 0 { 1 + n % 40 } else { 1 };
            if let Ok(block) = any(&reserve, pages) {
                for page in block.extent().start()..block.extent().end() {
                    assert!(!owned[page as usize].swap(true, Ordering::SeqCst), "page {page}");
                }
                blocks.push(block);
            }
            if n % 3 == 0 || blocks.len() > 50 {
                blocks.pop().map(give_back);
            }
        }
        blocks.into_iter().for_each(give_back);
    };
    std::thread::scope(|scope| (0..3).for_each(|worker| drop(scope.spawn(move || turn(worker)))));
    let stats = reserve.stats();
    stats.check().unwrap();
    assert_eq!(stats.held, Pages::ZERO, "{stats}");
    let all = reserve.len().get();
    assert_eq!(any(&reserve, all).unwrap().pages().get(), all);
}

#[test]
fn an_empty_part_is_taken_before_a_cached_page_is() {
    let reserve = reserve(len_of(4096), None);
    let pool = reserve.page_cache().namespace("half").unwrap();
    for index in 0..reserve.len().get() / 2 {
        pool.put(1, index, &page_of(index)).unwrap();
    }
    let _small = any(&reserve, 3).unwrap();
    let _large = any(&reserve, 1024).unwrap();
    assert_eq!(reserve.stats().recalled, 0);
}

#[test]
fn a_block_lies_in_the_lowest_place_that_fits() {
    let unit = Bytes::mib(2).pages_down(page_size()).get() / 8;
    let reserve = reserve(Bytes::mib(16), None);
    let mut small: Vec<_> = (0..30).map(|_| any(&reserve, unit).ok()).collect();
    // Frees a hole that is too short, a long hole and an exact fit.
    small[1..5].fill_with(|| None);
    small[6..17].fill_with(|| None);
    small[18..27].fill_with(|| None);
    let large = any(&reserve, 9 * unit).unwrap();
    assert_eq!(large.extent().start(), 6 * unit);
}

#[test]
fn zeroed_blocks_are_zero_and_others_keep_their_owners_bytes() {
    let reserve = reserve(len_of(2048), None);
    fill(&reserve);
    for pages in [1, 100, 700] {
        let request = Request::new(Pages::new(pages)).any();
        let zeroed = reserve.alloc(request.zeroed()).unwrap();
        assert!(zeroed.bytes().unwrap().iter().all(|byte| *byte == 0), "{pages}");
        let mut block = reserve.alloc(request).unwrap();
        block.bytes_mut().unwrap().fill(0xa5);
        fill(&reserve);
        assert!(block.bytes().unwrap().iter().all(|byte| *byte == 0xa5), "{pages}");
    }
}

#[test]
fn zeros_are_kept_ready_and_tenants_leave_them_alone() {
    let contig = Contig::options().source(Source::Plain).build(len_of(4096)).unwrap();
    let stock = Pages::new(1024);
    let reserve = Reserve::options().zero_ahead(stock).build_on(contig).unwrap();
    let all = any(&reserve, reserve.len().get()).unwrap();
    all.bytes().unwrap();
    drop(all);
    wait_until("zeros are kept ready", Duration::from_secs(60), || {
        reserve.stats().zeroed_ahead >= stock.get()
    });
    let pool = reserve.page_cache().namespace("rest").unwrap();
    for index in 0..2 * reserve.len().get() {
        pool.put(1, index, &page_of(index)).unwrap();
    }
    let live = reserve.stats().live;
    assert!(live >= reserve.len() - stock, "{live} are lent");
    let recalled = reserve.stats().recalled;
    let zeroed = reserve.alloc(Request::new(Pages::new(512)).any().zeroed()).unwrap();
    assert!(zeroed.bytes().unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(reserve.stats().recalled, recalled, "it came from the stock");
    drop(zeroed);
}

#[test]
fn a_promise_is_lent_until_it_is_taken_and_cannot_fail() {
    let reserve = reserve(Bytes::mib(8), None);
    let promise = reserve.promise(ONE).unwrap();
    let pool = fill(&reserve);
    // A put into a full index bucket displaces a page, so some pages may still be idle.
    for index in reserve.len().get()..2 * reserve.len().get() {
        if reserve.stats().live == reserve.len() {
            break;
        }
        pool.put(1, index, &page_of(index)).unwrap();
    }
    assert_eq!(reserve.stats().live, reserve.len(), "the promised page is lent");
    let mut blocks = Vec::new();
    while let Ok(block) = any(&reserve, 1) {
        blocks.push(block);
    }
    assert_eq!(blocks.len() as u64, reserve.len().get() - 1);
    let block = promise.take().unwrap();
    assert!(blocks.iter().all(|other| !other.extent().overlaps(block.extent())));
    drop((blocks, block));
    let given_up = reserve.promise(ONE).unwrap();
    drop(given_up);
    assert_eq!(any(&reserve, reserve.len().get()).unwrap().pages(), reserve.len());
}

#[test]
fn bad_requests_are_refused_with_their_values() {
    let reserve = reserve(Bytes::mib(4), None);
    let all = reserve.len();
    assert!(matches!(reserve.alloc(Pages::ZERO), Err(ReserveError::ZeroPages)));
    for align in [0, 3, u64::MAX] {
        let refused = reserve.alloc(Request::new(ONE).align(Pages::new(align)));
        assert!(matches!(refused, Err(ReserveError::BadAlign { align: a }) if a.get() == align));
    }
    for pages in [all.get() + 1, u64::MAX] {
        let refused = any(&reserve, pages);
        assert!(
            matches!(refused, Err(ReserveError::NoRun { asked, largest })
                if asked.get() == pages && largest == all),
            "{refused:?}"
        );
        let refused = reserve.promise(Pages::new(pages));
        assert!(matches!(refused, Err(ReserveError::NoRun { .. })), "{refused:?}");
    }
    // A page is free, but none at a multiple of `align`.
    for align in [1 << 45, 1 << 63] {
        let align = Pages::new(align);
        let refused = [
            reserve.alloc(Request::new(ONE).align(align)).map(drop),
            reserve.try_alloc(Request::new(ONE).align(align)).map(drop),
            reserve.promise(Request::new(ONE).align(align)).map(drop),
        ];
        for refused in refused {
            // If frames are hidden, `align` refers to page numbers, so page 0 fits every `align`.
            let Err(refused) = refused else { continue };
            let is_told = matches!(refused, ReserveError::NoAlignedRun { asked, align: a, largest }
                if asked == ONE && a == align && largest >= ONE);
            let text = refused.to_string();
            assert!(is_told && text.contains(&align.get().to_string()), "{text}");
        }
    }
    let held = any(&reserve, all.get() / 2).unwrap();
    let promised = reserve.promise(ONE).unwrap();
    let refused = reserve.promise(all - held.pages());
    assert!(
        matches!(refused, Err(ReserveError::NoRun { asked, largest })
            if asked > largest && largest.get() < all.get() / 2),
        "{refused:?}"
    );
    drop((held, promised));
    let largest = reserve.largest_run().unwrap();
    assert!(reserve.alloc(largest).is_ok());
    let pool = reserve.page_cache().namespace("bad").unwrap();
    assert!(matches!(pool.put(1, 1, &[0; 100]), Err(ReserveError::BadPageLen { given: 100, .. })));
    assert!(matches!(pool.get(1, 1, &mut []), Err(ReserveError::BadPageLen { given: 0, .. })));
    assert_eq!(reserve.stats().held, Pages::ZERO);
    reserve.stats().check().unwrap();
}

#[test]
fn a_reserve_is_whole_granules_and_not_larger_than_the_machine() {
    let odd = page_size().bytes();
    let contig = Contig::options().source(Source::Plain).build(odd).unwrap();
    assert!(matches!(Reserve::options().build_on(contig), Err(ReserveError::BadLen { .. })));
    for len in [Bytes::new(u64::MAX), Bytes::gib(1 << 20)] {
        assert!(matches!(Reserve::new(len), Err(ReserveError::Contig(_))));
    }
}

#[test]
fn a_panic_in_the_holder_gives_the_block_back() {
    let reserve = reserve(len_of(1024), None);
    let theirs = reserve.clone();
    let panicked = std::thread::spawn(move || {
        let _block = any(&theirs, 600).unwrap();
        panic!("on purpose, with a block in hand");
    });
    assert!(panicked.join().is_err());
    assert_eq!(any(&reserve, reserve.len().get()).unwrap().pages(), reserve.len());
}

#[test]
fn pages_given_back_are_used_before_any_is_evicted() {
    let once = || {
        let reserve = reserve(len_of(4096), None);
        let pool = fill(&reserve);
        drop((any(&reserve, 700).unwrap(), any(&reserve, 3).unwrap()));
        for index in 0..703 {
            pool.put(2, index, &page_of(index)).unwrap();
        }
        let stats = reserve.stats();
        (stats.live, stats.evicted) == (reserve.len(), 0)
    };
    // Each reserve hashes keys differently. About one in 75 has a full bucket and evicts a page. If
    // puts missed free pages, all would evict.
    assert!((0..8).any(|_| once()));
}

#[test]
fn pages_given_back_that_are_in_use_again_hinder_no_put() {
    for writers in [Writers::Restartable, Writers::Counted] {
        let reserve = reserve(Bytes::mib(4), Some(writers));
        let pool = fill(&reserve);
        for _ in 0..200 {
            drop(any(&reserve, 1).unwrap());
        }
        // Puts use the invalidated pages again: the thread remembers the last few, and the clock
        // algorithm finds the others.
        let last = reserve.len().get();
        (0..100).for_each(|nth| {
            pool.invalidate_page(1, nth).unwrap();
        });
        for index in last..last + 300 {
            let put = pool.put(1, index, &page_of(index)).unwrap();
            assert_eq!(put, Put::Stored, "{index}");
        }
    }
}

#[test]
fn what_is_invalidated_is_not_found() {
    let reserve = reserve(Bytes::mib(4), None);
    let pool = reserve.page_cache().namespace("a").unwrap();
    let other = reserve.page_cache().namespace("b").unwrap();
    let mut buf = page(0);
    let mut has = |pool: &glebe::reserve::Namespace, object, index| {
        pool.get(object, index, &mut buf).unwrap().then(|| buf[0])
    };
    for (object, index) in [(1, 1), (1, 2), (2, 1)] {
        pool.put(object, index, &page(10)).unwrap();
        other.put(object, index, &page(20)).unwrap();
    }
    pool.put(1, 1, &page(11)).unwrap();
    assert_eq!(has(&pool, 1, 1), Some(11));
    assert!(pool.invalidate_page(1, 1).unwrap());
    assert!(!pool.invalidate_page(1, 1).unwrap());
    assert_eq!((has(&pool, 1, 1), has(&pool, 1, 2)), (None, Some(10)));
    pool.invalidate_object(1).unwrap();
    assert_eq!((has(&pool, 1, 2), has(&other, 1, 2)), (None, Some(20)));
    pool.invalidate_all().unwrap();
    assert_eq!((has(&pool, 2, 1), has(&other, 2, 1)), (None, Some(20)));
    reserve.stats().check().unwrap();
    let stats = reserve.stats();
    assert_eq!((stats.invalidated_objects, stats.invalidated_pools), (1, 1));
    assert_eq!((stats.replaced, stats.invalidate_failed), (1, 1));
}

#[test]
fn pages_in_use_outlive_pages_that_are_not() {
    let reserve = reserve(Bytes::mib(4), None);
    let pool = fill(&reserve);
    let all = reserve.len().get();
    let mut buf = page(0);
    for round in 0..3 {
        for index in 0..32 {
            pool.get(1, index, &mut buf).unwrap();
        }
        for index in 0..all / 2 {
            pool.put(2, round * all + index, &page(0)).unwrap();
        }
    }
    let used = (0..32).filter(|index| pool.get(1, *index, &mut buf).unwrap()).count();
    assert!(used >= 24, "{used} of 32 pages that were read each round are left");
    let stats = reserve.stats();
    assert!(stats.evicted >= all, "{stats}");
    stats.check().unwrap();
}

#[test]
fn statistics_print_in_both_forms() {
    let reserve = reserve(Bytes::mib(2), None);
    drop(any(&reserve, 5).unwrap());
    let stats = reserve.stats();
    assert!(stats.to_string().lines().any(|line| line.starts_with("allocs ")));
    assert!(stats.to_json().starts_with("{ \"stored\": 0, ") && stats.to_json().ends_with(" }"));
    assert_eq!(stats.alloc_ns.count(), 1);
}
