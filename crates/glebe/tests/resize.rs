//! Tests a reserve that grows and shrinks.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use glebe::contig::{Contig, HeldBy, Options, Source};
use glebe::extent::Extent;
use glebe::internal::sys::processes::process::effective_user;
use glebe::internal::with_writers;
use glebe::page_size;
use glebe::reserve::{Block, Put, Request, Reserve, ReserveError, Writers};
use glebe::units::{Bytes, Pages};
use glebe_testing::time::{storm, wait_until, Storm};

use glebe_testing::stressed::Stop;
use glebe_testing::turn::{Turn, POOL};

const GRANULE: Bytes = Bytes::mib(2);
const USUAL: Duration = Duration::from_millis(500);

fn plain() -> Options {
    Contig::options().source(Source::Plain)
}

fn pages(len: Bytes) -> u64 {
    len.pages_down(page_size()).get()
}

fn page_of(key: u64) -> Vec<u8> {
    let words = page_size().bytes().as_usize() / 8;
    (0..words as u64).flat_map(|at| (key.wrapping_mul(0x9e37_79b9) ^ at).to_ne_bytes()).collect()
}

fn reserve(room: Bytes, len: Bytes) -> Reserve {
    let builder = Reserve::options().room(room);
    builder.memory(plain()).build(len).expect("ordinary memory")
}

fn any(pages: u64) -> Request {
    Request::new(Pages::new(pages)).any()
}

fn resident(reserve: &Reserve) -> Bytes {
    let base = reserve.contig().mapping().addr();
    let room = base..base + reserve.room().as_usize();
    let smaps = fs::read_to_string("/proc/self/smaps").expect("smaps");
    let (mut kib, mut inside) = (0, false);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next().and_then(|word| word.parse::<u64>().ok())) {
            (Some("Rss:" | "Private_Hugetlb:"), Some(more)) if inside => kib += more,
            (Some(range), _) if !range.ends_with(':') => {
                let start = range
                    .split_once('-')
                    .and_then(|(start, _)| usize::from_str_radix(start, 16).ok());
                inside = start.is_some_and(|start| room.contains(&start));
            }
            _ => {}
        }
    }
    Bytes::new(kib << 10)
}

fn assert_kept(reserve: &Reserve) {
    assert_eq!(resident(reserve), reserve.len().bytes(page_size()));
}

fn fill(reserve: &Reserve) -> u64 {
    let pool = reserve.page_cache().namespace("fill").unwrap();
    let all = reserve.len().get();
    for key in 0..2 * all {
        pool.put(1, key, &page_of(key)).unwrap();
    }
    found(reserve, 2 * all)
}

fn found(reserve: &Reserve, keys: u64) -> u64 {
    let pool = reserve.page_cache().namespace("fill").unwrap();
    let mut buf = page_of(0);
    let is_found = |key: &u64| {
        let found = pool.get(1, *key, &mut buf).unwrap();
        assert!(!found || buf == page_of(*key), "page {key}");
        found
    };
    (0..keys).filter(is_found).count() as u64
}

#[test]
fn it_grows_is_used_and_shrinks_to_a_granule_and_grows_again() {
    let (room, first) = (Bytes::mib(32), Bytes::mib(4));
    for writers in [Writers::Restartable, Writers::Counted] {
        let builder = with_writers(Reserve::options(), writers);
        let reserve = builder.room(room).memory(plain()).build(first).unwrap();
        assert_eq!((reserve.len().get(), reserve.room()), (pages(first), room));
        let before = fill(&reserve);
        let came = reserve.grow(Bytes::mib(24)).unwrap();
        assert_eq!(came.len, Bytes::mib(24));
        assert_eq!(found(&reserve, 2 * pages(first)), before, "growing drops nothing");
        assert_eq!(reserve.len().get(), pages(Bytes::mib(28)));
        assert!(fill(&reserve) > pages(Bytes::mib(20)), "tenants use what came");
        let block = reserve.alloc(any(pages(Bytes::mib(26)))).unwrap();
        drop(block);
        fill(&reserve);
        reserve.shrink(Bytes::mib(26)).unwrap();
        assert_eq!(reserve.len().get(), pages(GRANULE));
        found(&reserve, 2 * pages(room));
        let refused = reserve.shrink(GRANULE).unwrap_err();
        assert!(matches!(refused, ReserveError::NotGiven { .. }), "{refused}");
        let zero = reserve.alloc(any(pages(GRANULE))).unwrap();
        reserve.grow(Bytes::mib(30)).unwrap();
        assert_eq!(reserve.len().get(), pages(room));
        drop(zero);
        let all = reserve.alloc(any(pages(room)).zeroed()).unwrap();
        assert!(all.bytes().unwrap().iter().all(|byte| *byte == 0));
        drop(all);
        assert!(fill(&reserve) > pages(Bytes::mib(24)));
        let stats = reserve.stats();
        assert_eq!(stats.total.get(), pages(room));
        stats.check().unwrap();
    }
}

#[test]
fn blocks_and_promises_stay_and_the_figures_say_what_can_be_given() {
    let reserve = reserve(Bytes::mib(16), Bytes::mib(8));
    reserve.grow(Bytes::mib(8)).unwrap();
    let granule = pages(GRANULE);
    let below = reserve.alloc(any(granule)).unwrap();
    let mut block = reserve.alloc(any(granule + 1)).unwrap();
    drop(below);
    block.bytes_mut().unwrap().fill(0x5a);
    let promise = reserve.promise(Pages::new(1)).unwrap();
    fill(&reserve);
    let refused = reserve.shrink(Bytes::mib(14)).unwrap_err();
    let ReserveError::NotGiven { asked, free, unit } = refused else { panic!("{refused}") };
    // The block lies in two granules, the promised page in a third; five are free.
    let expected = (Bytes::mib(14), Bytes::mib(10), GRANULE);
    assert_eq!((asked, free, unit), expected);
    let went = reserve.shrink(free).unwrap();
    assert_eq!((went.len, reserve.len().get()), (free, pages(Bytes::mib(6))));
    assert!(block.bytes().unwrap().iter().all(|byte| *byte == 0x5a));
    let mut taken = promise.take().unwrap();
    taken.bytes_mut().unwrap().fill(0xa5);
    assert!(block.bytes().unwrap().iter().all(|byte| *byte == 0x5a));
    drop((block, taken));
    fill(&reserve);
    reserve.stats().check().unwrap();
}

#[test]
fn what_cannot_be_is_refused_and_nothing_changes() {
    let fixed = Reserve::options().memory(plain()).build(GRANULE).unwrap();
    for refused in [fixed.grow(GRANULE), fixed.shrink(GRANULE)] {
        assert!(matches!(refused, Err(ReserveError::FixedLen { .. })), "{refused:?}");
    }
    let file = Reserve::options().room(Bytes::mib(8)).memory(plain().mappable()).build(GRANULE);
    assert!(matches!(file, Err(ReserveError::FixedLen { .. })));
    for room in [1 << 62, 1 << 63, u64::MAX - page_size().bytes().get() + 1, u64::MAX] {
        let refused = Reserve::options().room(Bytes::new(room)).memory(plain()).build(GRANULE);
        assert!(matches!(refused, Err(ReserveError::Os(_))), "{room}: {refused:?}");
    }
    let reserve = reserve(Bytes::mib(6), Bytes::mib(4));
    let refused = reserve.grow(Bytes::mib(4)).unwrap_err();
    assert!(matches!(refused, ReserveError::NoRoom { left: GRANULE, .. }), "{refused}");
    for zero in [reserve.grow(Bytes::ZERO), reserve.shrink(Bytes::ZERO)] {
        assert!(matches!(zero, Err(ReserveError::BadLen { .. })));
    }
    assert!(
        reserve.grow(Bytes::new(u64::MAX)).is_err()
            && reserve.shrink(Bytes::new(u64::MAX)).is_err()
    );
    assert_eq!(reserve.len().get(), pages(Bytes::mib(4)));
    reserve.stats().check().unwrap();
}

#[test]
fn the_system_has_back_what_goes() {
    glebe_testing::alone!();
    let reserve = reserve(Bytes::mib(64), Bytes::mib(2));
    for (grow, shrink) in [(32, 30), (30, 24), (48, 56)] {
        reserve.grow(Bytes::mib(grow)).unwrap();
        assert_kept(&reserve);
        fill(&reserve);
        reserve.shrink(Bytes::mib(shrink)).unwrap();
        assert_kept(&reserve);
        found(&reserve, 2 * pages(reserve.room()));
        assert_kept(&reserve);
    }
    assert_eq!(resident(&reserve), GRANULE);
}

fn pinned() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("VmPin");
    line.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

#[test]
fn a_pin_ends_for_what_goes_and_stays_for_the_rest() {
    glebe_testing::alone!();
    let options = plain().pin(true);
    let builder = Reserve::options().room(Bytes::mib(32));
    let reserve = match builder.memory(options).build(Bytes::mib(16)) {
        Ok(reserve) => reserve,
        Err(why) => return println!("skipped: {why}"),
    };
    let before = pinned();
    match reserve.shrink(Bytes::mib(6)) {
        Err(ReserveError::Os(why)) => return println!("skipped: {why}"),
        went => drop(went.unwrap()),
    }
    assert_eq!(before - pinned(), Bytes::mib(6).get());
    reserve.grow(Bytes::mib(10)).unwrap();
    assert_eq!(pinned() - before, Bytes::mib(4).get());
    reserve.shrink(Bytes::mib(18)).unwrap();
    assert_eq!(before - pinned(), Bytes::mib(14).get());
    assert_eq!(reserve.certificate().unwrap().held_by, HeldBy::LongTermPin);
    drop(reserve);
    assert_eq!(before - pinned(), Bytes::mib(16).get());
}

fn of_pool(name: &str) -> u64 {
    let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
    fs::read_to_string(path).expect("a pool").trim().parse().expect("a number")
}

/// Returns this process's pool pages in KiB.
fn huge() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("HugetlbPages:")).expect("a line");
    line.trim().strip_suffix(" kB").and_then(|kib| kib.parse().ok()).expect("a number")
}

#[test]
fn pages_of_a_pool_come_for_it_and_go_with_it() {
    glebe_testing::alone!();
    if effective_user() != 0 {
        // Pages that others free are in the pool for a moment, but not for each growth.
        return println!("skipped: only root can add pages to the pool");
    }
    let _turn = Turn::shared(POOL);
    let options = Contig::options().source(Source::HUGETLB_2M);
    let builder = Reserve::options().room(Bytes::mib(64));
    let reserve = match builder.memory(options).build(Bytes::mib(4)) {
        Ok(reserve) => reserve,
        Err(why) => return println!("skipped: {why}"),
    };
    let mib = |kib: u64| Bytes::mib(kib >> 10);
    let made = huge();
    for _ in 0..3 {
        reserve.grow(Bytes::mib(40)).unwrap();
        assert_eq!(mib(huge() - made), Bytes::mib(40));
        assert_kept(&reserve);
        fill(&reserve);
        let used = |name| i128::from(of_pool(name));
        let before = used("nr_hugepages") - used("free_hugepages");
        reserve.shrink(Bytes::mib(42)).unwrap();
        // Other processes may use the pool, so only this process's count is exact.
        println!("{before} pages in use, then {}", used("nr_hugepages") - used("free_hugepages"));
        assert_eq!(mib(made - huge()), GRANULE);
        assert_kept(&reserve);
        assert_eq!(reserve.len().get(), pages(GRANULE));
        reserve.grow(GRANULE).unwrap();
        assert_eq!(huge(), made);
        assert!(fill(&reserve) > 0);
    }
    reserve.stats().check().unwrap();
    drop(reserve);
    assert_eq!(mib(made - huge()), Bytes::mib(4));
}

#[test]
fn what_is_present_has_gaps_after_a_shrink() {
    let reserve = reserve(Bytes::mib(16), Bytes::mib(8));
    let whole = |mib| [Extent::new(0, pages(Bytes::mib(mib))).unwrap()];
    let granule = pages(GRANULE);
    assert_eq!(reserve.present().unwrap(), whole(8));
    let below = reserve.alloc(any(granule)).unwrap();
    let middle = reserve.alloc(any(granule)).unwrap();
    let above = reserve.alloc(any(granule)).unwrap();
    let last = reserve.alloc(any(granule)).unwrap();
    drop((below, above));
    reserve.shrink(Bytes::mib(4)).unwrap();
    assert_eq!(reserve.present().unwrap(), [middle.extent(), last.extent()]);
    reserve.grow(Bytes::mib(12)).unwrap();
    assert_eq!(reserve.present().unwrap(), whole(16));
    let fixed = Reserve::options().memory(plain()).build(Bytes::mib(4)).unwrap();
    assert_eq!(fixed.present().unwrap(), whole(4));
}

#[test]
fn runs_are_those_of_the_memory_that_is_there() {
    let reserve = reserve(Bytes::mib(16), Bytes::mib(4));
    reserve.grow(Bytes::mib(8)).unwrap();
    reserve.shrink(Bytes::mib(4)).unwrap();
    reserve.grow(Bytes::mib(6)).unwrap();
    let certificate = reserve.certificate().unwrap();
    assert_eq!(certificate.len, Bytes::mib(14));
    let on_nodes: u64 = certificate.nodes.iter().map(|(pages, _)| pages.len()).sum();
    // A container may deny the question.
    assert!(on_nodes == reserve.len().get() || on_nodes == 0, "{:?}", certificate.nodes);
    assert!(
        reserve.nodes().is_err() && on_nodes == 0 || reserve.nodes().unwrap() == certificate.nodes
    );
    if certificate.runs.is_empty() {
        println!("skipped: frames are hidden");
        return;
    }
    let known: u64 = certificate.runs.iter().map(|run| run.pages.len()).sum();
    assert_eq!(known, reserve.len().get());
    assert_eq!(reserve.verify().unwrap(), []);
    let longest = certificate.runs.iter().map(|run| run.pages.len()).max();
    assert_eq!(reserve.largest_run().unwrap().get(), longest.unwrap());
    let block = reserve.alloc(Request::new(reserve.largest_run().unwrap())).unwrap();
    let place = block.locate(Bytes::ZERO).unwrap().unwrap();
    let run = certificate.runs.iter().find(|run| run.pages.contains(block.extent())).unwrap();
    let inside = Pages::new(block.extent().start() - run.pages.start());
    assert_eq!(place.pfn, run.pfn.map(|pfn| pfn.plus(inside)));
    assert!(place.contiguous >= block.pages().bytes(page_size()));
    assert_eq!(block.locate(block.pages().bytes(page_size())).unwrap(), None);
}

/// Fills a block with words that identify it, so that a page shared with another block is noticed.
fn poison(block: &mut Block, seed: u64) {
    for (at, word) in block.bytes_mut().unwrap().chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(seed ^ at as u64).to_ne_bytes());
    }
}

fn assert_poisoned(block: &Block, seed: u64) {
    let words = block.bytes().unwrap().chunks_exact(8).enumerate();
    let stray = words.filter(|(at, word)| **word != (seed ^ *at as u64).to_ne_bytes()).count();
    assert_eq!(stray, 0, "stray words in {:?}", block.extent());
}

fn stress(writers: Writers) {
    let (room, len) = (Bytes::mib(64), Bytes::mib(16));
    let builder = with_writers(Reserve::options(), writers);
    let reserve = builder
        .room(room)
        .zero_ahead(GRANULE.pages_down(page_size()))
        .memory(plain())
        .build(len)
        .unwrap();
    let storm = Storm::begin(USUAL);
    let (stop, hits, resized) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let tenant = |seed: u64| {
        let pool = reserve.page_cache().namespace("stress").unwrap();
        let (mut random, mut buf) = (seed, page_of(0));
        while !stop.load(Ordering::Relaxed) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = (random >> 33) % (2 * pages(room));
            if random >> 63 == 0 {
                pool.put(1, key, &page_of(key)).unwrap();
            } else if pool.get(1, key, &mut buf).unwrap() {
                assert!(buf == page_of(key), "another's bytes for {key}");
                hits.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let owner = |seed: u64| {
        let mut held: HashMap<u64, Block> = HashMap::new();
        for n in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let number = seed << 40 | n;
            let request = any([1, 3, 40, 700][n as usize % 4]);
            let made = match n % 5 {
                0 => reserve.promise(Pages::new(1)).and_then(|of| of.take()),
                1 => reserve.alloc(request.zeroed()),
                _ => reserve.alloc(request),
            };
            if let Ok(mut block) = made {
                poison(&mut block, number);
                held.insert(number, block);
            }
            if held.len() > 6 {
                let oldest = *held.keys().min().unwrap();
                assert_poisoned(&held.remove(&oldest).unwrap(), oldest);
            }
        }
        held.iter().for_each(|(number, block)| assert_poisoned(block, *number));
    };
    let (tenant, owner) = (&tenant, &owner);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        (1..4).for_each(|seed| drop(scope.spawn(move || tenant(seed))));
        (1..3).for_each(|seed| drop(scope.spawn(move || owner(seed))));
        for (n, mib) in [2, 8, 30, 4, 16].into_iter().cycle().enumerate() {
            let is_met =
                || hits.load(Ordering::Relaxed) > 100 && resized.load(Ordering::Relaxed) > 4;
            if !storm.goes_on(is_met) {
                break;
            }
            let len = Bytes::mib(mib);
            let done = if n % 2 == 0 { reserve.grow(len) } else { reserve.shrink(len) };
            match done {
                Ok(done) => {
                    assert_eq!(done.len, len);
                    resized.fetch_add(1, Ordering::Relaxed);
                }
                Err(ReserveError::NoRoom { .. } | ReserveError::NotGiven { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
    });
    let (hits, resized) = (hits.into_inner(), resized.into_inner());
    println!("{writers}: {resized} changes, {hits} hits, {} pages at the end", reserve.len());
    assert!(hits > 100 && resized > 4);
    // The zeroing thread may still work, so the statistics may not add up at once.
    let mut stats = reserve.stats();
    wait_until("the statistics add up", Duration::from_secs(20), || {
        stats = reserve.stats();
        stats.check().is_ok()
    });
    assert_eq!((stats.total, stats.held), (reserve.len(), Pages::ZERO));
    assert_kept(&reserve);
    // No memory is lost: `shrink` can remove all but a granule, and `grow` can fill the `room`.
    reserve.shrink(reserve.len().bytes(page_size()) - GRANULE).unwrap();
    reserve.grow(room - GRANULE).unwrap();
    let all = reserve.alloc(any(pages(room))).unwrap();
    assert_eq!(all.pages().get(), pages(room));
}

#[test]
fn under_load_no_byte_is_wrong_with_restartable_writers() {
    glebe_testing::alone!();
    stress(Writers::Restartable);
}

#[test]
fn under_load_no_byte_is_wrong_with_counted_writers() {
    glebe_testing::alone!();
    stress(Writers::Counted);
}

#[test]
fn readers_live_while_the_memory_under_them_goes() {
    let reserve = reserve(Bytes::mib(8), Bytes::mib(2));
    let stop = AtomicBool::new(false);
    let pool = reserve.page_cache().namespace("readers").unwrap();
    let end = Instant::now() + storm(USUAL);
    let keys = pages(Bytes::mib(8));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut buf = page_of(0);
                while !stop.load(Ordering::Relaxed) {
                    for key in 0..keys {
                        if pool.get(1, key, &mut buf).unwrap() {
                            assert!(buf == page_of(key), "page {key}");
                        }
                    }
                }
            });
        }
        let _stop = Stop(&stop);
        while Instant::now() < end {
            reserve.grow(Bytes::mib(6)).unwrap();
            for key in 0..keys {
                assert_eq!(pool.put(1, key, &page_of(key)).unwrap(), Put::Stored);
            }
            reserve.shrink(Bytes::mib(6)).unwrap();
        }
    });
    reserve.stats().check().unwrap();
}
