//! Tests a fork during another thread's first use of the library. The child must not wait for that
//! thread, which does not run in the child.
//!
//! Each try runs in a fresh process, forked from a process that never used the library.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use glebe::contig::{Contig, Source};
use glebe::reserve::Reserve;
use glebe::units::Bytes;
use glebe::volatile::{Priority, Region};

use glebe_testing::stressed::{in_child, ChildEnd};

/// Number of forks, spread over 24 ms. The first use takes about 10 ms.
const TRIES: u32 = 80;
const STEP: Duration = Duration::from_micros(300);

/// Makes parts of the library that have process-wide state.
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

fn says(body: impl FnOnce() -> bool) -> bool {
    in_child(|| u8::from(!body())) == ChildEnd::Exit(0)
}

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
