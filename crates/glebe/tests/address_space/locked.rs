//! Tests `mlockall`: the kernel must not populate or lock reserved addresses, but must lock
//! objects.

use std::sync::Arc;

use glebe::contig::{Contig, Source};
use glebe::extent::Extent;
use glebe::internal::sys::memory::map_count::map_count;
use glebe::internal::without_moves;
use glebe::page_size;
use glebe::reserve::Reserve;
use glebe::swap::cache::SwapCache;
use glebe::swap::{Region as Paged, Store, SwapError};
use glebe::units::{Bytes, PageSize, Pages};
use glebe::vmap::{MemFile, Space};
use glebe::volatile::Region;
use glebe::zpool::{Budget, ObjectPool};

use super::{limit, sealed, sealed_areas, status};

const LITTLE: Bytes = Bytes::mib(8);
/// Limit on address space, so that an error cannot fill the machine.
const GUARD: Bytes = Bytes::gib(4);

fn lock_memory(flags: libc::c_int) -> bool {
    // SAFETY: `mlockall` takes a number and changes no contents.
    let locked = unsafe { libc::mlockall(flags) } == 0;
    if !locked {
        println!("skipped: mlockall: {}", std::io::Error::last_os_error());
    }
    locked
}

fn all_is_locked() -> bool {
    limit(libc::RLIMIT_AS, GUARD);
    lock_memory(libc::MCL_CURRENT | libc::MCL_FUTURE)
}

fn taken<T>(body: impl FnOnce() -> T) -> (Bytes, Bytes, T) {
    let (present, locked) = (status("VmRSS"), status("VmLck"));
    let made = body();
    (status("VmRSS").saturating_sub(present), status("VmLck").saturating_sub(locked), made)
}

fn is_little(what: &str, (present, locked): (Bytes, Bytes)) {
    println!("{what}: {present} present, {locked} locked");
    assert!(present <= LITTLE, "{what}: {present} present");
    assert!(locked <= LITTLE, "{what}: {locked} locked");
}

#[test]
fn a_pool_of_objects_takes_what_it_holds() {
    glebe_testing::alone!();
    if !all_is_locked() {
        return;
    }
    let limited = taken(|| ObjectPool::options().limit(Bytes::mib(64)).build().unwrap());
    is_little("a pool of 64 MiB", (limited.0, limited.1));
    let default = taken(|| ObjectPool::options().build().unwrap());
    is_little("a pool without a limit", (default.0, default.1));
    for pool in [limited.2, default.2] {
        stores_and_gives_back(&pool, Locked::AsItComes);
    }
}

fn object(nth: u64) -> Vec<u8> {
    let mut words = [0_u64; 500];
    let mut state = nth;
    words.iter_mut().for_each(|word| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *word = state ^ state >> 29;
    });
    words.map(u64::to_ne_bytes).concat()
}

#[derive(Clone, Copy, PartialEq)]
enum Locked {
    /// The kernel locks each page when the pool commits it.
    AsItComes,
    /// `mlockall` locked all addresses after the build.
    Already,
}

fn stores_and_gives_back(pool: &ObjectPool, how: Locked) {
    let empty = (status("VmRSS"), pool.held());
    let mappings = map_count().unwrap();
    let objects = 0..5000;
    let (present, locked, handles) =
        taken(|| objects.clone().map(|nth| pool.insert(&object(nth)).unwrap()).collect::<Vec<_>>());
    // The committed pages form one mapping and the other pages another, so few mappings are added.
    let more = map_count().unwrap().saturating_sub(mappings);
    assert!(more <= 32, "{more} mappings more");
    let held = pool.held() - empty.1;
    println!("5000 objects: {held} held, {present} present, {locked} locked");
    assert!(held > Bytes::mib(16));
    assert!(present <= held + LITTLE, "{present} present");
    assert!(how == Locked::Already || locked >= held.saturating_sub(LITTLE), "{locked} locked");
    assert!(locked.get() <= held.get() + held.get() / 4 + LITTLE.get(), "{locked} locked");
    for (nth, handle) in objects.zip(handles) {
        assert_eq!(pool.get(handle).unwrap().to_vec(), object(nth));
        pool.remove(handle).unwrap();
    }
    pool.compact(Budget::All).unwrap();
    assert!(pool.held() <= empty.1 + LITTLE, "{} held", pool.held());
    let left = status("VmRSS").saturating_sub(empty.0);
    assert!(left <= LITTLE, "{left} still present");
}

#[test]
fn a_pool_that_was_there_before_gives_back_too() {
    glebe_testing::alone!();
    let pool = ObjectPool::options().limit(Bytes::mib(64)).build().unwrap();
    let before = status("VmRSS");
    if !lock_memory(libc::MCL_CURRENT) {
        return;
    }
    let own = status("VmRSS").saturating_sub(before);
    println!("{own} present after mlockall");
    assert!(own <= Bytes::mib(32), "{own} came with mlockall");
    stores_and_gives_back(&pool, Locked::Already);
}

#[test]
fn a_process_that_may_lock_little_has_a_small_pool() {
    glebe_testing::alone!();
    let all = limit(libc::RLIMIT_MEMLOCK, Bytes::mib(128));
    // SAFETY: `setresuid` takes numbers. It only gives up rights, or fails.
    unsafe { libc::setresuid(65534, 65534, 65534) };
    if !lock_memory(libc::MCL_FUTURE) {
        return;
    }
    let pool = ObjectPool::options().build().unwrap();
    is_little("a pool", (Bytes::ZERO, status("VmLck")));
    let refused = loop {
        let nth = pool.held().get();
        if let Err(error) = pool.insert(&object(nth)) {
            break error;
        }
        assert!(status("VmLck") <= all);
    };
    println!("{} held: {refused}", pool.held());
    assert!(pool.held().get() >= all.get() / 8);
    let is_named = refused.to_string().contains("RLIMIT_MEMLOCK");
    assert!(is_named, "{refused}");
}

#[test]
fn a_reserve_takes_its_pages_and_little_more() {
    glebe_testing::alone!();
    if !all_is_locked() {
        return;
    }
    let len = Bytes::mib(64);
    let (present, _, _made) = taken(|| {
        let reserve = {
            let options = Contig::options().source(Source::Plain);
            Reserve::options().memory(options).build(len).unwrap()
        };
        let pool = reserve.object_pool().build().unwrap();
        let cache = reserve.page_cache();
        (reserve, pool, cache)
    });
    println!("a reserve of {len} with pools: {present} present");
    assert!(present <= len + Bytes::mib(16), "{present} present");
}

#[test]
fn addresses_for_views_are_not_locked() {
    glebe_testing::alone!();
    if !all_is_locked() {
        return;
    }
    let file = Arc::new(MemFile::new(Pages::new(256).bytes(page_size())).unwrap());
    let (present, locked, space) = taken(|| Space::new(Bytes::gib(1)).unwrap());
    is_little("addresses", (present, locked));
    let (present, locked, ()) = taken(|| {
        for nth in 0..2000 {
            drop(space.view(&file, &[Extent::new(nth % 200, 8).unwrap()]).unwrap());
        }
        space.flush().unwrap();
    });
    is_little("addresses after views", (present, locked));
}

#[test]
fn volatile_memory_is_refused_before_it_is_there() {
    glebe_testing::alone!();
    // This build runs the library's self-test, before memory is locked.
    let page = Bytes::new(1);
    if let Err(error) = Region::options().build(page) {
        return println!("skipped: {error}");
    }
    if !lock_memory(libc::MCL_FUTURE) {
        return;
    }
    let before = status("VmHWM");
    assert!(Region::options().build(Bytes::mib(256)).is_err());
    let came = status("VmHWM").saturating_sub(before);
    assert!(came <= LITTLE, "{came} came and went");
}

#[test]
fn memory_at_a_multiple_takes_no_more_than_its_length() {
    glebe_testing::alone!();
    if !all_is_locked() {
        return;
    }
    // Raises VmRSS to its peak, so that VmHWM shows growth.
    let fill = vec![1_u8; Bytes::mib(16).as_usize()];
    let before = status("VmHWM");
    let huge = PageSize::new(2 << 20).unwrap();
    let len = huge.bytes();
    match Contig::options().source(Source::Thp).build(len) {
        Ok(contig) => assert_eq!(contig.len(), len),
        Err(error) => println!("{error}"),
    }
    let came = status("VmHWM").saturating_sub(before);
    println!("{came} came beside {}", Bytes::new(fill.len() as u64));
    assert!(came.get() < len.get() * 3 / 2, "{came} came for {len}");
}

#[test]
fn a_reserve_with_room_locks_what_it_has() {
    glebe_testing::alone!();
    if !all_is_locked() {
        return;
    }
    let (room, len) = (Bytes::mib(512), Bytes::mib(4));
    let contig = Contig::options().source(Source::Plain).build(len).unwrap();
    let made = taken(|| Reserve::options().room(room).build_on(contig).unwrap());
    let (present, _, reserve) = made;
    println!("room for {room}: {present} present");
    // The sixteenth is for the reserve's tables, which `mlockall` populates for the whole `room`.
    assert!(present <= LITTLE + Bytes::new(room.get() / 16), "{present} present");
    let more = Bytes::mib(64);
    let mut seen = Vec::new();
    let comes = |_| {
        let (present, locked, _) = taken(|| reserve.grow(more).unwrap());
        seen.push((present, locked));
        let is_right = locked >= more && locked <= more + more;
        if !is_right {
            reserve.shrink(more).unwrap();
        }
        is_right
    };
    // A thread of the test harness may free memory during a try, so one good try suffices.
    assert!((0..5).any(comes), "{more} came: present and locked {seen:?}");
    println!("{more} came: present and locked {seen:?}");
    let before = (status("VmRSS"), status("VmLck"));
    reserve.shrink(more).unwrap();
    let gone = (before.0 - status("VmRSS"), before.1 - status("VmLck"));
    println!("{more} went: {} present, {} locked", gone.0, gone.1);
    assert!(gone.0 >= more.saturating_sub(LITTLE) && gone.1 >= more.saturating_sub(LITTLE));
}

fn is_locked(addr: usize) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_there, mut flags) = (false, "");
    for line in smaps.lines() {
        let bounds = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        if let Some((start, end)) = bounds.and_then(|(a, b)| Some((number(a)?, number(b)?))) {
            is_there = (start..end).contains(&addr);
        } else if let (true, Some(of)) = (is_there, line.strip_prefix("VmFlags:")) {
            flags = of;
        }
    }
    flags.split_whitespace().any(|flag| flag == "lo")
}

const BUDGET: Bytes = Bytes::mib(4);

fn is_paged_in_its_budget(region: &Paged) {
    let offsets = || (0..region.len().get()).step_by(page_size().bytes().as_usize());
    let (present, ..) = taken(|| {
        offsets().for_each(|at| region.write_at(Bytes::new(at), &at.to_ne_bytes()).unwrap());
    });
    println!("all written, in a budget of {BUDGET}: {present} present");
    assert!(present <= BUDGET + LITTLE, "{present} present");
    for at in offsets() {
        let mut word = [0; 8];
        region.read_at(Bytes::new(at), &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), at);
    }
    let stats = region.stats();
    stats.check().unwrap();
    assert_eq!((stats.stuck_pages, stats.came_over_pages), (0, 0), "{stats}");
}

#[test]
fn a_region_of_swap_is_present_and_locked_as_far_as_its_budget() {
    glebe_testing::alone!();
    limit(libc::RLIMIT_AS, GUARD);
    for how in [libc::MCL_CURRENT | libc::MCL_FUTURE, libc::MCL_FUTURE | libc::MCL_ONFAULT] {
        for options in [Store::options(), without_moves(Store::options())] {
            if !lock_memory(how) {
                return;
            }
            let options = options.pool_limit(BUDGET);
            let (present, _, made) = taken(|| options.build_region(Bytes::mib(64), BUDGET));
            let region = match made {
                Ok(region) => region,
                Err(SwapError::Os(error)) if error.call() == "userfaultfd" => {
                    return println!("skipped: {error}");
                }
                Err(error) => panic!("{error}"),
            };
            println!("a region of 64 MiB, locked by {how}: {present} present");
            assert!(present <= LITTLE, "{present} present");
            assert!(is_locked(region.as_ptr().addr()));
            is_paged_in_its_budget(&region);
        }
    }
}

#[test]
fn a_region_of_swap_that_may_not_be_locked_is_refused() {
    glebe_testing::alone!();
    limit(libc::RLIMIT_MEMLOCK, Bytes::mib(64));
    // SAFETY: `setresuid` takes numbers. It only gives up rights, or fails.
    unsafe { libc::setresuid(65534, 65534, 65534) };
    if !lock_memory(libc::MCL_FUTURE) {
        return;
    }
    let before = status("VmHWM");
    for len in [Bytes::mib(40), Bytes::mib(256)] {
        match Store::options().build_region(len, BUDGET) {
            Err(SwapError::Os(error)) if error.call() == "userfaultfd" => {
                println!("skipped: {error}")
            }
            Err(error) => assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}"),
            Ok(region) => panic!("a region of {}", region.len()),
        }
    }
    let came = status("VmHWM").saturating_sub(before);
    assert!(came <= LITTLE, "{came} came and went");
}

#[test]
fn stores_and_areas_of_swap_take_what_they_hold() {
    glebe_testing::alone!();
    limit(libc::RLIMIT_AS, GUARD);
    let dir = std::env::temp_dir();
    for how in [libc::MCL_CURRENT | libc::MCL_FUTURE, libc::MCL_FUTURE | libc::MCL_ONFAULT] {
        if !lock_memory(how) {
            return;
        }
        let (present, _, _made) = taken(|| {
            let cache = sealed_areas(SwapCache::with_limit(Bytes::mib(64)).unwrap());
            let pages = Bytes::mib(256).pages_down(page_size());
            let area = cache.area(pages, &dir, Bytes::mib(64)).unwrap();
            let options = sealed(Store::options().capacity(Bytes::mib(256)));
            let store = options.file_in(&dir, Bytes::mib(64)).cached_in(&cache).build(BUDGET);
            let store = store.unwrap();
            let keys: Vec<_> = (0..64).map(|nth| store.insert(&object(nth)).unwrap()).collect();
            (0..16).for_each(|nth| {
                let mut page = vec![0; page_size().bytes().as_usize()];
                page[..4000].copy_from_slice(&object(nth));
                area.store(nth, &page).unwrap();
            });
            (store, keys, area)
        });
        println!("a store and an area, locked by {how}: {present} present");
        assert!(present <= LITTLE, "{present} present");
    }
}
