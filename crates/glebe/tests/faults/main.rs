//! The n-th kernel call fails, for every n of a reserve's life: from the build, over blocks,
//! promises and the page cache, to the drop; and for every n of a volatile region's, of a cache's
//! in one, of a shared file's, of views', of a pool's of objects and of a store's.
//!
//! Whatever fails, a call succeeds or says what was refused, no byte is wrong, and nothing is
//! left: no mapping, descriptor or thread, no page of the pool.
//! Where it was the give-back itself that failed, the next reserve makes up for it, and the test
//! makes one to see that. One fault at a time, and then faults that last: of the one call, as
//! where a filter denies it, and of every call.
//!
//! Faults and what is held are counted for the whole process, so all of it is one test.
#![allow(unsafe_code)] // Safety: mallopt, before any thread of the test's own is started.

#[allow(dead_code)]
#[path = "../contig/pool.rs"]
mod pool;

mod area;
mod cache;
mod cut_short;
mod footing;
mod foreign;
mod lent;
mod paged;
mod reclaim;
mod resized;
mod shared;
mod standing;
mod swap;
mod views;
mod volatile;
mod zpool;

use std::error::Error;

use glebe::contig::{Contig, Options, Source};
use glebe::reserve::{Block, Error as ReserveError, Namespace, Put, Request, Reserve};
use glebe::sys::fault::{arm, disarm, Fault, Lasting, Met};
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Engine, Region};

use footing::{running, Footing};
use foreign::ForeignPages;
use pool::Machine;
use volatile::Memory;

/// Attempts at one fault in a pool that others may change too.
const ATTEMPTS: u32 = 3;
const ONE: Pages = Pages::new(1);
const GRANULE: Bytes = Bytes::mib(2);
const LEN: Bytes = Bytes::mib(6);

type Outcome = Result<(), Box<dyn Error>>;

/// Bytes that follow from the key; never zero.
fn page_of(index: u64) -> Vec<u8> {
    vec![(index % 251) as u8 + 1; page_size().bytes().as_usize()]
}

/// What a life met that it may meet: the first error is its outcome.
struct Errors<E>(Option<E>);

impl<E: Error + 'static> Errors<E> {
    fn new() -> Self {
        Self(None)
    }

    /// What a call gave, if it was not refused.
    fn keep<T>(&mut self, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.0.get_or_insert(error)).ok()
    }

    fn outcome(self) -> Outcome {
        self.0.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// A block filled with `fill`, or the error.
fn filled(reserve: &Reserve, request: Request, fill: u8) -> Result<(Block, u8), ReserveError> {
    let mut block = reserve.alloc(request)?;
    block.bytes_mut()?.fill(fill);
    Ok((block, fill))
}

/// No page of the cache holds another's bytes.
fn look_at_all(pool: &Namespace, pages: u64) -> Result<(), ReserveError> {
    let mut buf = page_of(0);
    for index in 0..pages {
        if pool.get(1, index, &mut buf)? {
            assert_eq!(buf, page_of(index), "page {index}");
        }
    }
    Ok(())
}

/// Builds a reserve, uses all that it has, and drops it.
fn live(options: Options, len: Bytes, zero_ahead: Pages) -> Outcome {
    let reserve = Reserve::options().zero_ahead(zero_ahead).build_on(options.build(len)?)?;
    let all = reserve.len().get();
    let granule = GRANULE.pages_down(page_size()).get();
    let mut errors = Errors::new();
    let pool = reserve.page_cache().namespace("faults")?;
    for index in 0..all {
        let put = pool.put(1, index, &page_of(index))?;
        assert!(put == Put::Stored || zero_ahead > Pages::ZERO, "{index}: {put:?}");
    }
    look_at_all(&pool, all)?;
    let promise = errors.keep(reserve.promise(ONE));
    let mut blocks = Vec::new();
    for (fill, pages) in [(0xa1, 1), (0xa2, 3), (0xa3, granule + 5)] {
        let request = Request::new(Pages::new(pages)).any();
        blocks.extend(errors.keep(filled(&reserve, request, fill)));
    }
    let request = Request::new(Pages::new(granule)).any().zeroed();
    if let Some(zeroed) = errors.keep(reserve.alloc(request)) {
        assert!(zeroed.bytes()?.iter().all(|byte| *byte == 0), "a zeroed block");
    }
    look_at_all(&pool, all)?;
    let taken = promise.and_then(|promise| errors.keep(promise.take()));
    for index in 0..all {
        pool.put(1, index, &page_of(index))?;
    }
    pool.invalidate_page(1, 1)?;
    assert!(!pool.get(1, 1, &mut page_of(0))?, "a page that was invalidated");
    look_at_all(&pool, all)?;
    for (block, fill) in &blocks {
        assert!(block.bytes()?.iter().all(|byte| byte == fill), "a block of {fill:#x}");
    }
    drop((taken, blocks));
    pool.invalidate_all()?;
    if zero_ahead == Pages::ZERO {
        reserve.stats().check()?; // else the thread may be at work
    }
    assert_eq!(reserve.stats().held, Pages::ZERO);
    errors.outcome()
}

/// One life with a fault in it; what was met, and how it ended.
fn with_fault(life: &impl Fn() -> Outcome, fault: Fault) -> (Met, Outcome) {
    struct Armed;
    impl Drop for Armed {
        fn drop(&mut self) {
            disarm(); // where a life panics
        }
    }
    arm(fault);
    let _armed = Armed;
    let outcome = life();
    (disarm(), outcome)
}

/// What a walk saw, in one line.
#[derive(Default)]
struct Seen {
    faults: u64,
    errors: u64,
    made_up_for: Vec<&'static str>,
}

/// Lets the n-th call of a life fail for n = 1, 2, 3, until none is left to fail.
fn walk(
    machine: Option<&Machine>,
    name: &str,
    (lasting, walks): (Lasting, usize),
    life: impl Fn() -> Outcome,
) -> Seen {
    let (threads, begin) = (running(), std::time::Instant::now());
    for _ in 0..3 {
        life().unwrap_or_else(|error| panic!("{name} without a fault: {error}"));
    }
    let mut seen = Seen::default();
    // In each walk the n-th call returns another of the errors that fit it.
    for choice in 0..walks {
        for nth in 1.. {
            let mut last = Ok(false);
            // Who changes the pool and does not keep to the lock makes an unsettled change look
            // like another; that does not happen to the same call again and again.
            for _ in 0..ATTEMPTS {
                let mut step = || {
                    let before = Footing::of_threads(threads);
                    last = step(&before, &life, Fault { nth, choice, lasting }, &mut seen);
                };
                let kept = match machine {
                    Some(machine) => machine.try_base_is_kept(&mut step),
                    None => {
                        step();
                        Ok(())
                    }
                };
                last = kept.and(last);
                if last.is_ok() || machine.is_none() {
                    break;
                }
            }
            let last = last.unwrap_or_else(|what| panic!("{name}, {lasting:?}, {nth}: {what}"));
            if last {
                break;
            }
        }
    }
    seen.made_up_for.sort_unstable();
    seen.made_up_for.dedup();
    println!(
        "{name}, {lasting:?}: {} faults, {} errors; made up for by the next: {:?}; {:.1} s",
        seen.faults,
        seen.errors,
        seen.made_up_for,
        begin.elapsed().as_secs_f64()
    );
    assert!(seen.faults >= 8, "{name}: hardly a fault was met");
    seen
}

/// One fault and what it left; whether there was no such call any more.
fn step(
    before: &Footing,
    life: &impl Fn() -> Outcome,
    fault: Fault,
    seen: &mut Seen,
) -> Result<bool, String> {
    let (met, outcome) = with_fault(life, fault);
    let what = format!("{fault:?} {:?}: {:?}", met.refused.first(), outcome.as_ref().err());
    if met.refused.is_empty() {
        outcome.unwrap_or_else(|error| panic!("an error without a fault: {error}"));
        return before.check(&what).map(|()| true);
    }
    seen.faults += 1;
    if let Err(error) = outcome {
        seen.errors += 1;
        assert!(!error.to_string().is_empty());
    }
    if !before.is_kept() {
        // Only a call that gives something back may leave it for later.
        seen.made_up_for.extend(met.refused.first().map(|(call, _)| *call));
        life().unwrap_or_else(|error| panic!("{what}, and then without a fault: {error}"));
        before.check(&what)?;
    }
    Ok(false)
}

fn walk_all(machine: Option<&Machine>, name: &str, life: impl Fn() -> Outcome) {
    for ways in [(Lasting::Once, 2), (Lasting::ThisCall, 1), (Lasting::EveryCall, 1)] {
        let seen = walk(machine, name, ways, &life);
        assert!(seen.errors > 0, "{name}: every fault was made up for");
    }
}

fn base_pages() {
    let life = || live(Contig::options().source(Source::Plain), LEN, Pages::ZERO);
    walk_all(None, "base pages", life);
}

fn transparent_huge_pages_and_a_thread_that_zeroes() {
    if let Err(why) = Contig::options().source(Source::Thp).build(LEN) {
        println!("skipped: {why}");
        return;
    }
    let life = || live(Contig::options().source(Source::Thp), LEN, ONE);
    walk_all(None, "transparent huge pages", life);
}

fn reserves_that_grow_and_shrink() {
    walk_all(None, "grows and shrinks", || resized::live(Contig::options().source(Source::Plain)));
    let Some(machine) = Machine::privileged() else { return };
    let options = || Contig::options().source(Source::HUGETLB_2M).search(Bytes::ZERO);
    let life = || resized::live(options());
    walk_all(Some(&machine), "grows and shrinks, hugetlb", life);
}

fn populating_by_threads() {
    let len = Bytes::mib(66); // two slices
    let life = || {
        let contig = Contig::options().source(Source::Plain).threads(3).build(len)?;
        drop(Reserve::options().build_on(contig)?);
        Ok(())
    };
    let seen = walk(None, "populating by threads", (Lasting::Once, 1), life);
    assert!(seen.errors > 0, "every fault was made up for");
}

fn a_pool_that_is_grown_for_pages_in_order() {
    let Some(machine) = Machine::privileged() else { return };
    let Some(_foreign) = ForeignPages::add(2) else { return };
    let life = || live(Contig::options().source(Source::HUGETLB_2M), LEN, Pages::ZERO);
    walk_all(Some(&machine), "hugetlb, required", life);
}

fn a_run_that_is_searched_for() {
    let Some(machine) = Machine::privileged() else { return };
    // Of few pages, so that the walk ends: each of a thousand calls fails once.
    let options = || Contig::options().source(Source::HUGETLB_2M).search(Bytes::mib(64)).threads(1);
    let life = || {
        drop(options().prefer_run(Bytes::mib(4)).build(Bytes::mib(4))?);
        Ok(())
    };
    walk(Some(&machine), "hugetlb, a run searched for", (Lasting::Once, 1), life);
}

fn a_pool_that_is_grown_for_one_page() {
    let Some(machine) = Machine::privileged() else { return };
    let life = || {
        let contig = Contig::options().source(Source::HUGETLB_2M).build(GRANULE)?;
        drop(Reserve::options().build_on(contig)?);
        Ok(())
    };
    walk_all(Some(&machine), "hugetlb, one page", life);
}

fn a_pool_of_pages_that_are_moved() {
    let Some(machine) = Machine::privileged() else { return };
    let pages = standing::PAGES as u64;
    let Some(_foreign) = ForeignPages::add(pages) else { return };
    let life = || {
        standing::scramble();
        let options = Contig::options().source(Source::HUGETLB_2M).threads(1);
        let contig = options.build(Bytes::mib(pages))?;
        drop(Reserve::options().build_on(contig)?);
        Ok(())
    };
    walk_all(Some(&machine), "hugetlb, moved", life);
}

fn a_standing_pool() {
    let Some(machine) = Machine::privileged() else { return };
    let Some(_foreign) = ForeignPages::add(standing::PAGES as u64) else { return };
    walk_all(Some(&machine), "standing pool", standing::live);
}

fn whatever_source_is_best() {
    let machine = Machine::privileged();
    let life = || live(Contig::options(), LEN, ONE);
    // There is another source for nearly every fault: how many are errors is not said.
    walk(machine.as_ref(), "any source", (Lasting::Once, 1), life);
}

fn volatile_regions(memories: &[Memory]) {
    for engine in [Engine::Scan, Engine::Tag] {
        for without_scan in [false, true] {
            let options = Region::options().engine(engine).without_pagemap_scan(without_scan);
            if let Err(error) = options.clone().build(LEN) {
                println!("skipped: {engine} engine: {error}");
                continue;
            }
            for &memory in memories {
                if let Err(error) = volatile::live(options.clone(), memory) {
                    println!("skipped: {engine} engine, {memory:?}: {error}");
                    continue;
                }
                let name = format!("volatile, {engine}, {memory:?}, without scan {without_scan}");
                walk_all(None, &name, || volatile::live(options.clone(), memory));
            }
        }
    }
}

fn shared_files() {
    shared::pins_make_no_call();
    walk_all(None, "shared file", || shared::live(None));
    let Some(path) = shared::path() else { return };
    walk_all(None, "shared file with a name", || shared::live(Some(&path)));
}

fn caches() {
    for engine in [Engine::Scan, Engine::Tag] {
        match cache::live(engine) {
            Ok(()) => walk_all(None, &format!("cache, {engine}"), || cache::live(engine)),
            Err(error) => println!("skipped: {engine} engine: {error}"),
        }
    }
}

fn statistics_that_are_served() {
    let dir = std::env::temp_dir().join(format!("glebe-faults-{}", std::process::id()));
    let life = || {
        let _ = std::fs::remove_dir_all(&dir); // a socket may be left where unlink failed
        let contig = Contig::options().source(Source::Plain).build(GRANULE)?;
        let reserve = Reserve::options().build_on(contig)?;
        reserve.serve_stats_in(&dir)?;
        Ok(())
    };
    walk_all(None, "statistics that are served", life);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn any_kernel_call_may_fail_and_nothing_is_left() {
    if foreign::was_child() || cut_short::was_child() {
        return;
    }
    cut_short::a_walk_that_is_cut_short_leaves_nothing();
    footing::steady_heap();
    walk_all(None, "views", views::live);
    walk_all(None, "compressed-object pool", zpool::live);
    walk_all(None, "pool on lent pages", lent::live);
    walk_all(None, "store", || swap::live(false));
    walk_all(None, "store with a file", || swap::live(true));
    for has_file in [false, true] {
        walk_all(None, &format!("area, file {has_file}"), || area::live(has_file));
    }
    for (moves, has_file) in [(true, false), (true, true), (false, false), (false, true)] {
        let name = format!("paged region, moves {moves}, file {has_file}");
        walk_all(None, &name, || paged::live(moves, has_file));
    }
    shared_files();
    walk_all(None, "reclaimer", reclaim::live);
    volatile::refused_memory_is_as_it_was();
    volatile::marks_make_the_calls_they_need();
    volatile_regions(&Memory::ALL);
    caches();
    base_pages();
    reserves_that_grow_and_shrink();
    transparent_huge_pages_and_a_thread_that_zeroes();
    populating_by_threads();
    statistics_that_are_served();
    a_pool_that_is_grown_for_pages_in_order();
    a_pool_that_is_grown_for_one_page();
    a_run_that_is_searched_for();
    a_pool_of_pages_that_are_moved();
    a_standing_pool();
    whatever_source_is_best();
    volatile_regions(&[Memory::Own]); // after the heap was used for all else
}
