//! Tests the heap of a process: thread, marks, reuse, trims, limits, and settings.
#![allow(unsafe_code)] // Safety: each call is on memory or limits of this process.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Duration;

use glebe_malloc::engine;
use glebe_malloc::heap::{self, Settings};

use crate::process::{alloc, comes, free, limit, objects, status, Object, GATE};

const MIB: u64 = 1 << 20;
const OBJECT: usize = 512 << 10;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn what_stays_free_is_marked_and_used_again_without_a_call() {
    glebe_testing::alone!();
    let used = objects(400, OBJECT);
    let counts = heap::counts();
    assert!(counts.live - counts.tables >= 200 * MIB, "not in the space: {counts:?}");
    drop(used);
    assert!(comes(|| heap::counts().volatile > 190 * MIB), "{:?}", heap::counts());
    let (before, there) = (heap::counts(), heap::audit().unwrap());
    assert!(there > 100 * MIB, "{there}");
    let again = objects(400, OBJECT);
    let after = heap::counts();
    assert!(after.reused_warm - before.reused_warm > 190 * MIB, "{before:?} {after:?}");
    assert!(after.calls - before.calls < 10, "reuse made calls: {before:?} {after:?}");
    drop(again);
}

#[test]
fn there_is_no_thread_until_it_pays_and_then_one() {
    glebe_testing::alone!();
    let before = threads();
    for _ in 0..20 {
        drop(objects(16, OBJECT));
    }
    assert_eq!((threads(), heap::mechanisms().thread), (before, false), "a small heap");
    let grown = objects(200, OBJECT);
    assert_eq!((threads(), heap::mechanisms().thread), (before + 1, true));
    drop(grown);
    for _ in 0..20 {
        drop(objects(200, OBJECT));
    }
    assert_eq!(threads(), before + 1);
}

fn limit_addresses(to: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls fill and read a local.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &raw mut limit), 0);
        let was = std::mem::replace(&mut limit.rlim_cur, to);
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &raw const limit), 0);
        was
    }
}

#[test]
fn a_thread_that_was_not_to_be_had_is_tried_again_when_the_heap_has_grown() {
    glebe_testing::alone!();
    free(alloc(64));
    let before = threads();
    // Memory stays usable, but nothing new can be mapped, not even a stack.
    let was = limit_addresses(1 << 20);
    let first = objects(100, OBJECT);
    limit_addresses(was);
    let second = objects(4, OBJECT);
    assert_eq!((threads(), heap::mechanisms().thread), (before, false), "not at once");
    let third = objects(100, OBJECT);
    assert_eq!((threads(), heap::mechanisms().thread), (before + 1, true));
    assert!(first.iter().chain(&second).chain(&third).all(Object::is_whole));
}

#[test]
fn a_free_starts_no_thread_and_the_next_allocation_does() {
    glebe_testing::alone!();
    free(alloc(64));
    let before = threads();
    drop(Object::new(200 << 20, 1).expect("memory"));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!((threads(), heap::counts().volatile), (before, 0));
    assert!(heap::counts().hot > 190 * MIB, "{:?}", heap::counts());
    free(alloc(64));
    assert_eq!(threads(), before + 1);
    assert!(comes(|| heap::counts().volatile > 190 * MIB), "{:?}", heap::counts());
}

#[test]
fn without_a_thread_memory_stays_and_goes_by_a_trim() {
    glebe_testing::alone!();
    heap::start(&GATE, &Settings { thread: false, ..Settings::DEFAULT });
    let before = (threads(), status("VmRSS"));
    drop(objects(200, OBJECT));
    free(alloc(64));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((threads(), heap::counts().volatile), (before.0, 0));
    assert!(status("VmRSS") > before.1 + (90 << 10));
    let half = heap::trim(50 << 20) as u64;
    assert!((45 * MIB..60 * MIB).contains(&half), "{half}");
    assert!(heap::trim(0) as u64 >= 45 * MIB);
    assert!(status("VmRSS") < before.1 + (10 << 10));
    let counts = heap::counts();
    assert_eq!((counts.hot, counts.volatile), (0, 0));
    let objects = objects(200, OBJECT);
    assert!(objects.iter().all(Object::is_whole));
}

#[test]
fn zeros_are_zeros_whatever_the_memory_was() {
    glebe_testing::alone!();
    let zeroed = |size: usize| {
        // SAFETY: any size is valid; the reads stay within the object.
        unsafe {
            let at = engine::mi_zalloc(size).cast::<u8>();
            assert!((0..size).step_by(512).all(|nth| at.add(nth).read() == 0));
            free(at);
        }
    };
    for _ in 0..4 {
        drop(objects(50, OBJECT));
        (0..50).for_each(|_| zeroed(OBJECT));
        heap::trim(0);
        (0..50).for_each(|_| zeroed(OBJECT));
    }
}

#[test]
fn a_limit_on_addresses_leaves_a_smaller_space_or_none() {
    glebe_testing::alone!();
    limit(libc::RLIMIT_AS, 2 << 30);
    drop(objects(20, OBJECT));
    let addresses = heap::mechanisms().addresses;
    assert!((64 * MIB..=1024 * MIB).contains(&addresses), "{addresses}");
    assert!(heap::counts().reused_cold > 0);
}

#[test]
fn without_room_for_a_space_mimalloc_is_alone() {
    glebe_testing::alone!();
    limit(libc::RLIMIT_AS, 110 << 20);
    let _objects = objects(4, OBJECT);
    assert_eq!(heap::mechanisms().addresses, 0);
    assert_eq!((heap::counts().live, heap::trim(0)), (0, 0));
}

#[test]
fn the_page_layer_can_be_turned_off() {
    glebe_testing::alone!();
    heap::start(&GATE, &Settings { pages: false, ..Settings::DEFAULT });
    drop(objects(100, OBJECT));
    assert_eq!(heap::mechanisms(), heap::Mechanisms::default());
    assert_eq!(heap::counts(), heap::Counts::default());
}

#[test]
fn memory_that_is_refused_is_null_and_no_crash() {
    glebe_testing::alone!();
    let before = status("VmData") << 10;
    drop(objects(8, OBJECT));
    limit(libc::RLIMIT_DATA, before + 256 * MIB);
    let mut had: Vec<Object> = Vec::new();
    while let Some(object) = Object::new(OBJECT, 5) {
        assert!(had.len() < 1000, "no limit");
        had.push(object);
    }
    assert!(had.len() > 100, "{}", had.len());
    drop(had);
    assert!(Object::new(OBJECT, 6).is_some());
}

#[test]
fn without_huge_pages_slices_are_marked_by_themselves() {
    glebe_testing::alone!();
    // SAFETY: the call takes no pointer.
    let asked = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    if asked != 0 {
        return println!("skipped: prctl: {}", std::io::Error::last_os_error());
    }
    let mut used = objects(200, 1 << 20);
    let mut nth = 0;
    // Frees every other object, so that no unit is wholly free.
    used.retain(|_| {
        nth += 1;
        nth % 2 == 0
    });
    assert!(comes(|| heap::counts().volatile > 80 * MIB), "{:?}", heap::counts());
    assert!(!heap::mechanisms().huge_pages);
    assert!(used.iter().all(Object::is_whole));
}

#[test]
fn the_keeper_has_no_part_in_the_descriptors_of_the_program() {
    glebe_testing::alone!();
    let lowest = || File::open("/proc/self/stat").unwrap().as_raw_fd();
    let before = lowest();
    drop(objects(200, OBJECT));
    assert!(comes(|| heap::counts().looks > 0));
    if !heap::mechanisms().own_files {
        return println!("skipped: no table of open files for one thread");
    }
    assert_eq!(lowest(), before);
}

#[test]
fn a_free_keeps_errno() {
    glebe_testing::alone!();
    for _ in 0..10 {
        let used = objects(200, OBJECT);
        for object in used {
            glebe::internal::sys::errno::set(77);
            drop(object);
            assert_eq!(glebe::internal::sys::errno::get(), 77);
        }
    }
    glebe::internal::sys::errno::set(78);
    heap::trim(0);
    free(alloc(64));
    assert_eq!(glebe::internal::sys::errno::get(), 78);
}

#[test]
fn a_process_that_locks_its_memory_locks_no_more_than_it_used() {
    glebe_testing::alone!();
    drop(objects(100, OBJECT));
    // SAFETY: the call takes no pointer.
    if unsafe { libc::mlockall(libc::MCL_CURRENT) } != 0 {
        return println!("skipped: mlockall: {}", std::io::Error::last_os_error());
    }
    let locked = status("VmRSS") << 10;
    assert!(locked < 400 * MIB, "{} MiB", locked / MIB);
    drop(objects(300, OBJECT));
    assert!(heap::trim(0) as u64 > 50 * MIB, "{:?}", heap::counts());
}
