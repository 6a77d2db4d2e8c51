//! Tests a Rust program on the heap: threads, zeros, alignments.
#![allow(unsafe_code)] // Safety: each test touches only its own objects.

use std::alloc::{alloc, alloc_zeroed, dealloc, realloc, Layout};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{mpsc, Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use glebe_malloc::stats::Stats;
use glebe_malloc::Glebe;
use glebe_testing::time::slowed;

#[global_allocator]
static ALLOCATOR: Glebe = Glebe;

const MIB: usize = 1 << 20;

/// Runs one test at a time: some measure the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn the_first_object_has_started_the_page_layer() {
    let _alone = alone();
    let stats = Stats::now();
    if stats.address_bytes == 0 {
        println!("skipped: no addresses for a page layer on this machine");
        return;
    }
    let before = stats.live_bytes;
    let block = vec![7_u8; 64 * MIB];
    assert!(Stats::now().live_bytes >= before.max(64 * MIB as u64), "{}", block[0]);
}

#[test]
fn collections_in_threads_hold_what_was_put_in() {
    let _alone = alone();
    let (to, from) = mpsc::sync_channel::<(usize, Vec<String>)>(8);
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let to = to.clone();
            thread::spawn(move || {
                let mut map = HashMap::new();
                let mut tree = BTreeMap::new();
                let mut queue = VecDeque::new();
                for n in 0..20_000_usize {
                    map.insert(n, format!("{worker}-{n}"));
                    tree.insert(n * 7 % 20_000, vec![n as u8; n % 300]);
                    queue.push_back(Box::new(n));
                    if n % 3 == 0 {
                        assert_eq!(*queue.pop_front().unwrap(), n / 3);
                    }
                }
                for (key, value) in &tree {
                    // 17143 is the inverse of 7 modulo 20000.
                    let n = key * 17_143 % 20_000;
                    assert!(value.len() == n % 300 && value.iter().all(|&byte| byte == n as u8));
                }
                to.send((worker, (0..2000).map(|n| map.remove(&n).unwrap()).collect())).unwrap();
            })
        })
        .collect();
    drop(to);
    for (worker, strings) in from {
        for (n, string) in strings.into_iter().enumerate() {
            assert_eq!(string, format!("{worker}-{n}"));
        }
    }
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

fn is_all(at: *const u8, len: usize, byte: u8) -> bool {
    // SAFETY: the object is the caller's, has this length, and was written whole.
    unsafe { std::slice::from_raw_parts(at, len) }.iter().all(|&found| found == byte)
}

#[test]
fn zeros_are_zeros_where_memory_was_used() {
    let _alone = alone();
    for len in [1, 8, 100, 5000, 70_000, MIB, 5 * MIB] {
        for align in [1, 8, 16, 64, 4096, 1 << 21] {
            let layout = Layout::from_size_align(len, align).unwrap();
            for round in 0..3 {
                // SAFETY: the object is this test's, and has this layout.
                unsafe {
                    let at = alloc_zeroed(layout);
                    assert!(!at.is_null() && at.addr() % align == 0, "{layout:?}");
                    assert!(is_all(at, len, 0), "{layout:?}, round {round}");
                    at.write_bytes(0xff, len);
                    dealloc(at, layout);
                }
            }
        }
    }
}

#[test]
fn a_new_size_keeps_contents_and_alignment() {
    let _alone = alone();
    for align in [1, 2, 8, 16, 32, 128, 4096, 1 << 16, 1 << 21] {
        let mut layout = Layout::from_size_align(24, align).unwrap();
        // SAFETY: the object is this test's, and every size is above zero.
        unsafe {
            let mut at = alloc(layout);
            at.write_bytes(0x5a, layout.size());
            for size in [25, 300, 4096, 4097, 100_000, 3 * MIB, 70_000, 100, 8, 3] {
                let kept = layout.size().min(size);
                at = realloc(at, layout, size);
                assert!(!at.is_null() && at.addr() % align == 0, "{layout:?} to {size}");
                assert!(is_all(at, kept, 0x5a), "{layout:?} to {size}");
                layout = Layout::from_size_align(size, align).unwrap();
                at.write_bytes(0x5a, size);
            }
            dealloc(at, layout);
        }
    }
}

#[test]
fn what_cannot_be_had_is_an_error_and_no_end() {
    let _alone = alone();
    let mut bytes = Vec::<u8>::new();
    assert!(bytes.try_reserve(usize::MAX / 4).is_err() && bytes.is_empty());
    let layout = Layout::from_size_align(1 << 62, 1 << 30).unwrap();
    // SAFETY: the call returns null.
    assert!(unsafe { alloc(layout) }.is_null());
}

#[test]
fn threads_that_come_and_go_do_not_grow_the_heap() {
    let _alone = alone();
    let shared = Arc::new(vec![1_u8; 1000]);
    let churn = |rounds: usize| {
        for _ in 0..rounds {
            let shared = Arc::clone(&shared);
            let made = thread::spawn(move || vec![shared[0]; 300_000]).join().unwrap();
            assert_eq!(made[299_999], 1);
        }
    };
    churn(50);
    let before = Stats::now().live_bytes;
    churn(500);
    let after = Stats::now().live_bytes;
    assert!(after < before + 64 * MIB as u64, "{before} to {after} bytes");
}

fn blocks(count: usize, value: u8) -> Vec<Vec<u8>> {
    (0..count).map(|_| vec![value; MIB / 2]).collect()
}

fn are_all(blocks: &[Vec<u8>], value: u8) -> bool {
    let page = glebe::page_size().bytes().as_usize();
    blocks.iter().flatten().step_by(page).all(|&byte| byte == value)
}

/// Drops 150 MiB. Returns true if 100 MiB are soon marked or given back.
fn is_let_go(blocks: Vec<Vec<u8>>) -> bool {
    let went = || {
        let now = Stats::now();
        now.marked_bytes + now.given_back_bytes
    };
    let (begin, before) = (std::time::Instant::now(), went());
    let most = slowed(Duration::from_secs(20));
    drop(blocks);
    while went() < before + 100 * MIB as u64 {
        if begin.elapsed() > most {
            return false;
        }
        drop(std::hint::black_box(Box::new(0_u64)));
        thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
fn what_a_program_drops_is_marked_and_its_children_have_their_own() {
    let _alone = alone();
    if Stats::now().address_bytes == 0 {
        return println!("skipped: no addresses for a page layer on this machine");
    }
    let kept = blocks(100, 7);
    assert!(is_let_go(blocks(300, 8)), "{:?}", Stats::now());
    // SAFETY: the child uses the heap, whose fork handlers ran, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the call takes no pointer; it ends a child that hangs.
        unsafe { libc::alarm(slowed(Duration::from_secs(60)).as_secs() as u32) };
        let own = blocks(300, 9);
        let is_well = are_all(&own, 9) && are_all(&kept, 7);
        let is_well = is_well && is_let_go(own) && Stats::now().keeper == 1;
        // SAFETY: the call ends only the child.
        unsafe { libc::_exit(i32::from(!is_well)) };
    }
    let mut status = 0;
    // SAFETY: the call fills a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child");
    assert!(are_all(&kept, 7) && are_all(&blocks(300, 5), 5));
}
