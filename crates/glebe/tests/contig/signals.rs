//! Tests a program whose timer signals 10,000 times a second. A signal ends the kernel's search for
//! pages early, which must not count as a lack of pages.

use std::ptr;

use glebe::contig::{grow_pool, Contig, Error, PoolChange, PoolLock, Source};
use glebe::internal::sys::machine::hugetlb::Pool;
use glebe::units::{Bytes, PageSize, Pages};
use glebe_testing::process::{child_of, is_child, passes};
use glebe_testing::time::is_long;

use super::pool::Machine;
use glebe_testing::turn::{Turn, POOL};

const BEYOND: u64 = 64;
const TRIES: usize = 6;

extern "C" fn ring(_: libc::c_int) {}

/// Signals this thread until the process ends, without `SA_RESTART`.
fn ring_ten_thousand_times_a_second() {
    let every = libc::timespec { tv_sec: 0, tv_nsec: 100_000 };
    let times = libc::itimerspec { it_interval: every, it_value: every };
    // SAFETY: the handler does nothing, and the kernel reads and writes locals.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ring as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut()), 0);
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer: libc::timer_t = ptr::null_mut();
        let made = libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer);
        assert_eq!(made, 0);
        assert_eq!(libc::timer_settime(timer, 0, &raw const times, ptr::null_mut()), 0);
    }
}

#[test]
fn a_signal_while_pages_are_found_is_not_told_as_a_want_of_them() {
    if is_child() {
        ring_ten_thousand_times_a_second();
        let pool = Pool::of(PageSize::new(2 << 20).unwrap()).unwrap();
        let mut refused = Vec::new();
        for _ in 0..if is_long() { 2 * TRIES } else { TRIES } {
            let pages = Pages::new(pool.counts().unwrap().available() + BEYOND);
            let options = Contig::options().source(Source::HUGETLB_2M).threads(1);
            refused.extend(options.in_order(false).build(pages.bytes(pool.size())).err());
            let options = Contig::options().source(Source::HUGETLB_2M).threads(1);
            refused.extend(options.mappable().build(Bytes::mib(16)).err());
            match grow_pool(pool.size(), 2 * BEYOND, false) {
                Ok(PoolChange { pages: added, absorbed, .. }) => {
                    let _lock = PoolLock::acquire().unwrap();
                    let persistent = pool.counts().unwrap().persistent();
                    pool.set_persistent(persistent.saturating_sub(added + absorbed)).unwrap();
                }
                Err(error) => refused.push(error),
            }
        }
        assert!(refused.is_empty(), "{} refused: {}", refused.len(), refused[0]);
        return;
    }
    let _turn = Turn::alone(POOL);
    let Some(_machine) = Machine::privileged() else { return };
    // If memory is lacking even without signals, the test would prove nothing.
    match Contig::options().source(Source::HUGETLB_2M).build(Bytes::mib(512)) {
        Err(error @ (Error::PoolShort { .. } | Error::TooLarge { .. })) => {
            println!("skipped: {error}");
            return;
        }
        had => drop(had.unwrap()),
    }
    let test = "contig::signals::a_signal_while_pages_are_found_is_not_told_as_a_want_of_them";
    assert!(passes(&mut child_of(test)));
}
