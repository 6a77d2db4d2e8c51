//! Forks a process whose heap has a keeper (the thread that marks free memory). Parent and child
//! keep their memory, the child gets a keeper once its heap is large, and the child waits for no
//! thread that it lacks.
#![allow(unsafe_code)] // Safety: children touch objects of their own, and end by _exit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use glebe_malloc::heap;
use glebe_testing::time::{is_long, slowed};

use crate::process::{comes, ended_well, exit_of, limit, objects, Object};

const MIB: u64 = 1 << 20;
const OBJECT: usize = 512 << 10;
/// Exit status of a child that the kernel refused a thread.
const REFUSED: libc::c_int = 2;

/// Runs `body` in a child, which exits with 0 if `body` returns true.
fn in_child(make: impl Fn() -> libc::pid_t, body: impl FnOnce() -> bool) -> libc::pid_t {
    let child = make();
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: the calls take no pointer; _exit runs nothing of the parent's.
        unsafe {
            libc::alarm(slowed(Duration::from_secs(20)).as_secs() as u32);
            let is_well = body();
            libc::_exit(i32::from(!is_well));
        }
    }
    child
}

fn fork() -> libc::pid_t {
    // SAFETY: the child uses only the kernel and the heap, whose atfork handlers run.
    unsafe { libc::fork() }
}

/// Makes a child that the C library does not know.
fn clone() -> libc::pid_t {
    // SAFETY: the child uses only the kernel and the heap, which detects such forks.
    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t }
}

fn children(all: usize) -> usize {
    if is_long() {
        all
    } else {
        all / 2
    }
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn churn(is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        drop(objects(40, OBJECT));
        thread::sleep(Duration::from_millis(3));
    }
}

fn lives_on(inherited: &[Object]) -> bool {
    let own = objects(100, OBJECT);
    let is_whole = inherited.iter().chain(&own).all(Object::is_whole);
    drop(own);
    is_whole && objects(50, OBJECT).iter().all(Object::is_whole)
}

fn beside_a_child(body: impl FnOnce()) {
    let mut ends = [0; 2];
    // SAFETY: the call fills a local.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let child = in_child(fork, || {
        // SAFETY: the read fills a local, and ends when the parent closes its end.
        unsafe {
            libc::close(ends[1]);
            libc::read(ends[0], (&raw mut ends).cast(), 1) == 0
        }
    });
    body();
    // SAFETY: the descriptor is this function's.
    unsafe { libc::close(ends[1]) };
    assert!(ended_well(child));
}

#[test]
fn children_of_a_threaded_program_have_what_it_had_and_live_on() {
    glebe_testing::alone!();
    let is_over = AtomicBool::new(false);
    let kept = objects(50, OBJECT);
    drop(objects(200, OBJECT));
    assert!(comes(|| heap::mechanisms().thread));
    thread::scope(|scope| {
        let _ends = Ends(&is_over);
        (0..3).for_each(|_| drop(scope.spawn(|| churn(&is_over))));
        for nth in 0..children(40) {
            let child = in_child(fork, || {
                let had = heap::mechanisms();
                !had.thread && !had.gauge && !had.own_files && lives_on(&kept)
            });
            assert!(ended_well(child), "child {nth}");
            heap::trim(0);
        }
    });
    assert!(kept.iter().all(Object::is_whole));
}

#[test]
fn children_without_steps_wait_for_no_thread_of_the_parents() {
    glebe_testing::alone!();
    let (is_over, kept) = (AtomicBool::new(false), objects(50, OBJECT));
    drop(objects(200, OBJECT));
    assert!(comes(|| heap::mechanisms().thread));
    thread::scope(|scope| {
        let _ends = Ends(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(objects(60, OBJECT));
                heap::trim(0);
            }
        });
        for nth in 0..children(60) {
            let child = in_child(clone, || {
                let is_well = lives_on(&kept);
                heap::trim(0);
                is_well && lives_on(&kept)
            });
            assert!(ended_well(child), "child {nth}");
        }
    });
}

#[test]
fn children_of_a_program_without_a_space_start_threads() {
    glebe_testing::alone!();
    limit(libc::RLIMIT_AS, 110 << 20);
    let is_over = AtomicBool::new(false);
    let start = || {
        let thread = thread::Builder::new().stack_size(64 << 10);
        let started = thread.spawn(|| objects(1, 64).iter().all(Object::is_whole));
        started.ok().map(|thread| thread.join().unwrap())
    };
    drop(objects(1, OBJECT));
    assert_eq!(heap::mechanisms().addresses, 0);
    thread::scope(|scope| {
        let _ends = Ends(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                start();
            }
        });
        let mut refused = 0;
        for nth in 0..children(400) {
            let child = in_child(fork, || {
                // SAFETY: _exit runs nothing of the parent's.
                start().unwrap_or_else(|| unsafe { libc::_exit(REFUSED) })
            });
            match exit_of(child) {
                Some(0) => {}
                Some(REFUSED) => refused += 1,
                other => panic!("child {nth}: {other:?}"),
            }
        }
        assert!(refused * 2 < children(400), "{refused} were refused a thread");
    });
}

#[test]
fn a_child_gets_a_keeper_of_its_own_when_it_pays() {
    glebe_testing::alone!();
    drop(objects(200, OBJECT));
    assert!(comes(|| heap::mechanisms().thread));
    let child = in_child(fork, || {
        drop(objects(200, OBJECT));
        comes(|| heap::mechanisms().thread)
            && comes(|| heap::counts().hot < 20 * MIB)
            && lives_on(&[])
    });
    assert!(ended_well(child));
    assert!(heap::mechanisms().thread);
}

#[test]
fn a_child_outgrows_what_it_inherited() {
    glebe_testing::alone!();
    let kept = objects(100, OBJECT);
    let child = in_child(fork, || {
        // More than an arena.
        let own = objects(2200, OBJECT);
        let is_whole = kept.iter().chain(&own).all(Object::is_whole);
        drop(own);
        is_whole && comes(|| heap::mechanisms().thread && heap::counts().hot < 20 * MIB)
    });
    assert!(ended_well(child));
}

/// A child of a raw clone(2) cannot safely start a keeper thread, and must not report its parent's.
#[test]
fn a_child_without_steps_has_no_keeper() {
    glebe_testing::alone!();
    let check = || {
        drop(objects(200, OBJECT));
        lives_on(&[]) && !heap::mechanisms().thread
    };
    let small = objects(2, OBJECT);
    assert!(ended_well(in_child(clone, check)), "of a parent without a keeper");
    let large = objects(200, OBJECT);
    assert!(comes(|| heap::mechanisms().thread));
    assert!(ended_well(in_child(clone, check)), "of a parent with one");
    assert!(small.iter().chain(&large).all(Object::is_whole));
}

#[test]
fn a_fork_before_there_is_a_keeper_is_known() {
    glebe_testing::alone!();
    drop(objects(2, OBJECT));
    assert!(!heap::mechanisms().thread);
    beside_a_child(|| {
        drop(objects(200, OBJECT));
        assert!(comes(|| heap::counts().given_back >= 90 * MIB), "{:?}", heap::counts());
        assert!(heap::counts().marked < 10 * MIB, "{:?}", heap::counts());
    });
}

#[test]
fn while_a_child_lives_memory_is_dropped_and_later_marked_again() {
    glebe_testing::alone!();
    let used = objects(200, OBJECT);
    drop(objects(100, OBJECT));
    assert!(comes(|| heap::mechanisms().thread && heap::counts().hot < 10 * MIB));
    beside_a_child(|| {
        let before = heap::counts();
        drop(used);
        assert!(comes(|| heap::counts().given_back >= before.given_back + 90 * MIB));
        let marked = heap::counts().marked - before.marked;
        assert!(marked < 10 * MIB, "{marked} bytes were marked beside a child");
    });
    let before = heap::counts();
    drop(objects(200, OBJECT));
    assert!(comes(|| heap::counts().hot < 10 * MIB));
    drop(objects(200, OBJECT));
    assert!(comes(|| heap::counts().marked >= before.marked + 90 * MIB));
}
