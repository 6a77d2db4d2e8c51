//! A child that is forked while another thread makes the process's first reserve, pool of objects
//! and volatile region makes its own: it never waits for that thread, which it lacks.
//!
//! Each try is a fresh process, forked from this one, which itself makes nothing. So this is the
//! only test here.
#![allow(unsafe_code)] // Safety: fork, waitpid and _exit; a child uses what it makes itself.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use glebe::contig::{Contig, Source};
use glebe::reserve::Reserve;
use glebe::units::Bytes;
use glebe::volatile::{Priority, Region};

/// The first use takes some ten milliseconds: the forks are spread over them.
const TRIES: u32 = 80;
const STEP: Duration = Duration::from_micros(300);
/// A child that takes so long waits for ever.
const LIMIT_S: u32 = 20;

/// Makes one of each part that keeps something for the whole process, after `begins`.
fn use_first(begins: impl FnOnce()) -> bool {
    let contig = Contig::options().source(Source::Plain).build(Bytes::mib(2)).unwrap();
    begins();
    let reserve = Reserve::options().build_on(contig).unwrap();
    let objects = reserve.object_pool().build().unwrap();
    objects.insert(&[7; 100]).unwrap();
    let region = Region::new(Bytes::mib(1)).unwrap();
    region.mark(Bytes::ZERO..region.len(), Priority::NORMAL).unwrap();
    region.unmark(Bytes::ZERO..region.len()).is_ok()
}

/// Runs `body` in a child and waits for it; whether it said yes within the limit.
fn in_child(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `body` and leaves by _exit; an alarm ends it if it hangs. `status` is
    // this frame's.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            libc::alarm(LIMIT_S);
            let said = catch_unwind(AssertUnwindSafe(body)).unwrap_or(false);
            libc::_exit(i32::from(!said));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

#[test]
fn a_child_of_the_first_use_makes_its_own() {
    let hung: Vec<u32> = (0..TRIES).filter(|nth| !in_child(|| fork_after(STEP * *nth))).collect();
    assert!(
        hung.is_empty(),
        "a child did not end when it was forked after {hung:?} times {STEP:?}"
    );
}

/// In a fresh process: forks while another thread is in its first use.
fn fork_after(delay: Duration) -> bool {
    let begun = AtomicBool::new(false);
    thread::scope(|scope| {
        let first = scope.spawn(|| use_first(|| begun.store(true, Ordering::Release)));
        while !begun.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let start = Instant::now();
        while start.elapsed() < delay {
            thread::yield_now();
        }
        let said = in_child(|| use_first(|| ()));
        first.join().is_ok_and(|made| made) && said
    })
}
