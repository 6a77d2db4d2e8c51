//! Tests that hugetlb pages of a killed process are freed within a second, without a call of the
//! library. The limit is five seconds if the process was searching for a run.
//!
//! The tests compare the pool's persistent, idle and total pages, and repeat their steps if another
//! program changes these. Each test runs alone and locks the pool against other tests, because a
//! call of the library would repair what a killed process left.
//!
//! # Safety
//! fork is called in a process that runs one test; the child only waits.
#![allow(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use glebe::contig::{Contig, PoolLock, Source};
use glebe::internal::sys::machine::hugetlb::Pool;
use glebe::units::{PageSize, Pages};
use glebe_testing::process::{child_of, is_child};
use glebe_testing::time::{is_long, slowed, wait_until};

use glebe_testing::turn::{Turn, POOL};

const KIND: &str = "GLEBE_TEST_KIND";
const PAGES: &str = "GLEBE_TEST_PAGES";
/// Pages that a holder (a child) takes in addition to the idle pages.
const BEYOND: u64 = 32;
const GIVEN_BACK: Duration = Duration::from_secs(1);
const ATTEMPTS: u32 = 8;

/// The holders' standard inputs, open until the tests end.
static STDINS: Mutex<Vec<ChildStdin>> = Mutex::new(Vec::new());

fn size() -> PageSize {
    PageSize::new(2 << 20).unwrap()
}

fn pool() -> Option<(Pool, Turn)> {
    let pool = Pool::of(size()).filter(Pool::is_writable);
    if pool.is_none() {
        println!("skipped: the 2 MiB pool cannot be changed");
    }
    Some((pool?, Turn::alone(POOL)?))
}

fn now(pool: &Pool) -> (u64, u64, u64) {
    let counts = pool.counts().unwrap();
    (counts.persistent(), counts.available(), counts.total)
}

struct Holder(Child);

impl Holder {
    /// Starts a holder, and waits until it is about to allocate.
    fn start(mut command: Command, kind: &str) -> (Self, impl Iterator<Item = String>) {
        let pages = Pool::of(size()).unwrap().counts().unwrap().available() + BEYOND;
        let command = command.env(KIND, kind).env(PAGES, pages.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        STDINS.lock().unwrap().extend(child.stdin.take());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        // The harness prints the test's name on the same line.
        assert!(lines.any(|line| line.ends_with("ready")), "a child that gets ready");
        (Self(child), lines)
    }

    fn with_memory(command: Command, kind: &str) -> Self {
        let (holder, mut lines) = Self::start(command, kind);
        assert!(lines.any(|line| line.ends_with("had")), "a child that has its memory");
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hold() -> ! {
    println!("ready");
    let pages: u64 = std::env::var(PAGES).unwrap().parse().unwrap();
    let len = Pages::new(pages).bytes(size());
    let options = || Contig::options().source(Source::HUGETLB_2M).threads(1);
    let memory = match &*std::env::var(KIND).unwrap() {
        "private" => options().build(len).map(drop_never),
        "run" => options().prefer_run(len).build(len).map(drop_never),
        "file" => options().mappable().build(len).map(drop_never),
        "file and child" => options().mappable().build(len).map(drop_never),
        kind => panic!("{kind}"),
    };
    memory.unwrap();
    if std::env::var(KIND).unwrap() == "file and child" {
        live_on_in_a_child();
    }
    println!("had");
    loop {
        thread::park();
    }
}

fn live_on_in_a_child() {
    let mut byte = 0_u8;
    // SAFETY: the child makes system calls only, and reads into a local.
    unsafe {
        if libc::fork() == 0 {
            libc::close(1); // else the parent's reader waits for the child
            libc::read(0, (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
}

fn drop_never<T>(memory: T) {
    std::mem::forget(memory);
}

fn moments() -> u32 {
    let usual = if is_long() { 50 } else { 20 };
    std::env::var("GLEBE_TEST_KILLS").map_or(usual, |kills| kills.parse::<u32>().unwrap() / 2)
}

/// Asserts that a second after `life` the pool's counts are as before, and that the next lock
/// restores the surplus limit.
fn is_given_back(pool: &Pool, life: impl FnMut()) {
    is_given_back_within(GIVEN_BACK, pool, life);
}

fn is_given_back_within(patience: Duration, pool: &Pool, mut life: impl FnMut()) {
    is_given_back_if(patience, pool, || {
        life();
        true
    });
}

/// Repeats the steps too if `life` returns false.
fn is_given_back_if(patience: Duration, pool: &Pool, mut life: impl FnMut() -> bool) {
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        drop(PoolLock::acquire().unwrap());
        let (before, limit) = (now(pool), pool.overcommit().unwrap());
        let is_well = life();
        let begin = Instant::now();
        while now(pool) != before && begin.elapsed() < slowed(patience) {
            thread::sleep(Duration::from_millis(1));
        }
        let after = now(pool);
        if after == before && is_well {
            let _lock = PoolLock::acquire().unwrap();
            return assert_eq!(pool.overcommit().unwrap(), limit, "the limit on surplus pages");
        }
        seen.push((before, after, is_well));
        thread::sleep(GIVEN_BACK);
    }
    panic!("persistent, idle and all pages before and after, and if all was well: {seen:?}");
}

#[test]
fn kills_at_any_moment_of_a_call_leave_nothing() {
    glebe_testing::alone!();
    if is_child() {
        hold();
    }
    let Some((pool, _turn)) = pool() else { return };
    let child = || child_of("given_back::kills_at_any_moment_of_a_call_leave_nothing");
    // A search grows the pool by many pages, and the kernel takes back only about 5000 a second.
    for (kind, patience) in [("private", GIVEN_BACK), ("run", 5 * GIVEN_BACK)] {
        let begin = Instant::now();
        let _ = Holder::with_memory(child(), kind);
        let call = begin.elapsed();
        for n in 0..moments() {
            is_given_back_within(patience, &pool, || {
                let (holder, _lines) = Holder::start(child(), kind);
                // About half of the kills hit the call.
                thread::sleep(2 * call * n / moments());
                drop(holder);
            });
        }
    }
}

#[test]
fn what_a_killed_process_had_is_given_back_of_every_kind() {
    glebe_testing::alone!();
    if is_child() {
        hold();
    }
    let Some((pool, _turn)) = pool() else { return };
    let child = || child_of("given_back::what_a_killed_process_had_is_given_back_of_every_kind");
    for kind in ["private", "run", "file", "file and child"].repeat(3) {
        is_given_back(&pool, || drop(Holder::with_memory(child(), kind)));
    }
}

#[test]
fn of_two_holders_each_gives_back_its_own() {
    glebe_testing::alone!();
    if is_child() {
        hold();
    }
    let Some((pool, _turn)) = pool() else { return };
    let child = || child_of("given_back::of_two_holders_each_gives_back_its_own");
    for kinds in [["private", "private"], ["file", "private"], ["private", "file"]] {
        is_given_back_if(GIVEN_BACK, &pool, || {
            let [first, second] = kinds.map(|kind| Holder::with_memory(child(), kind));
            let both = pool.counts().unwrap().total;
            drop(first);
            let begin = Instant::now();
            wait_until("pages of the first go", 20 * GIVEN_BACK, || {
                pool.counts().unwrap().total + BEYOND <= both
            });
            let is_in_time = begin.elapsed() < slowed(GIVEN_BACK);
            drop(second);
            is_in_time
        });
    }
}

#[test]
fn a_killed_process_of_another_namespace_gives_back_too() {
    glebe_testing::alone!();
    if is_child() {
        hold();
    }
    let Some((pool, _turn)) = pool() else { return };
    let unshare = |args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).args(args);
        command
    };
    if !unshare(&["true"]).status().is_ok_and(|status| status.success()) {
        println!("skipped: no PID namespace can be made");
        return;
    }
    let program = std::env::current_exe().unwrap();
    is_given_back(&pool, || {
        let test = "given_back::a_killed_process_of_another_namespace_gives_back_too";
        let plain = child_of(test);
        let mut command = unshare(&[program.to_str().unwrap()]);
        command.args(plain.get_args());
        command.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
        drop(Holder::with_memory(command, "private"));
    });
}
