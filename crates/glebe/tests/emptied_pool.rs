//! Tests reserves built while a thread empties the hugetlb pool, as another process may. A reserve
//! that uses other memory gives the reason, and no reserve lacks a page.
#![allow(unsafe_code)] // Safety: mmap and munmap of pages that nothing refers to.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use glebe::contig::Source;
use glebe::reserve::Reserve;
use glebe::units::Bytes;

use crate::contig::pool::Machine;
use crate::contig::use_all::use_all;
use glebe_testing::stressed::Stop;
use glebe_testing::turn::{Turn, POOL};

const LEN: Bytes = Bytes::mib(16);
const MAPS: u64 = 12;
const TAKEN_MAX: usize = 32;

/// A huge page that mmap takes without the pool lock, never touched.
struct Taken(*mut libc::c_void);

impl Taken {
    const LEN: usize = 2 << 20;

    fn one() -> Option<Self> {
        let flags =
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        // SAFETY: the kernel chooses the place.
        let at = unsafe { libc::mmap(ptr::null_mut(), Self::LEN, libc::PROT_NONE, flags, -1, 0) };
        (at != libc::MAP_FAILED).then(|| Self(at))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: `one` mapped the page, and only this drop unmaps it.
        unsafe { libc::munmap(self.0, Self::LEN) };
    }
}

fn empty_pool_until(stop: &AtomicBool) -> u64 {
    let mut times = 0;
    while !stop.load(Ordering::Relaxed) {
        let taken: Vec<Taken> = std::iter::from_fn(Taken::one).take(TAKEN_MAX).collect();
        times += u64::from(!taken.is_empty());
        thread::sleep(Duration::from_micros(300 * (times % 4)));
    }
    times
}

#[test]
fn a_pool_that_somebody_else_empties_meanwhile_is_no_pool() {
    let _turn = Turn::alone(POOL);
    let Some(machine) = Machine::privileged() else { return };
    machine.base_is_kept(|| {
        let stop = AtomicBool::new(false);
        let (taken, other) = thread::scope(|scope| {
            let _stop = Stop(&stop);
            let other = scope.spawn(|| empty_pool_until(&stop));
            let mut elsewhere = 0;
            for _ in 0..MAPS {
                let reserve = Reserve::new(LEN).unwrap();
                let why = reserve.contig().why_not_better();
                if matches!(reserve.contig().source(), Source::Thp | Source::Plain) {
                    assert!(why.iter().any(|why| why.contains("hugetlb")), "{why:?}");
                    elsewhere += 1;
                }
                use_all(&reserve);
            }
            stop.store(true, Ordering::Relaxed);
            (other.join().unwrap(), elsewhere)
        });
        println!("{taken} times somebody took pages; {other} of {MAPS} reserves went elsewhere");
    });
}
