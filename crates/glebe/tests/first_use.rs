//! A child that is forked while another thread makes the process's first reserve, pool of objects
//! and volatile region makes its own: it never waits for that thread, which it lacks.
//!
//! Each try is a fresh process, forked from one that itself makes nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use glebe::contig::{Contig, Source};
use glebe::reserve::Reserve;
use glebe::units::Bytes;
use glebe::volatile::{Priority, Region};

use crate::stressed::{in_child, End};

/// The first use takes some ten milliseconds: the forks are spread over them.
const TRIES: u32 = 80;
const STEP: Duration = Duration::from_micros(300);

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

#[test]
fn a_child_of_the_first_use_makes_its_own() {
    glebe_testing::alone!();
    let hung: Vec<u32> = (0..TRIES).filter(|nth| !says(|| fork_after(STEP * *nth))).collect();
    assert!(
        hung.is_empty(),
        "a child did not end when it was forked after {hung:?} times {STEP:?}"
    );
}

/// Whether `body` said yes, in a child that ended in time.
fn says(body: impl FnOnce() -> bool) -> bool {
    in_child(|| u8::from(!body())) == End::Exit(0)
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
        let said = says(|| use_first(|| ()));
        first.join().is_ok_and(|made| made) && said
    })
}
