//! Tests many threads, constant signals, a blocked SIGBUS, and leaked guards.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use glebe::swap::{Store, SwapError};
use glebe::units::{Bytes, Pages};
use glebe_testing::time::{is_long, slowed, storm};
use glebe_testing::Scratch;

use super::{pages, Kind, Paged, BUDGET, KINDS, PAGES};
use glebe_testing::stressed::{self, signals::Signals, Random, Stop};

/// Many more than the budget has pages.
const THREADS: u64 = 250;
const THREADS_LONG: u64 = 1000;
const PATIENCE: Duration = Duration::from_secs(60);

fn retry<T>(call: impl Fn() -> Result<T, SwapError>) -> T {
    let begin = Instant::now();
    loop {
        match call() {
            Err(SwapError::Budget { .. } | SwapError::Full { .. }) => {
                assert!(begin.elapsed() < slowed(PATIENCE), "no more room, ever");
                thread::sleep(Duration::from_millis(1));
            }
            done => return done.unwrap(),
        }
    }
}

#[test]
fn hundreds_of_threads_each_have_their_page() {
    let count = if is_long() { THREADS_LONG } else { THREADS };
    for kind in KINDS {
        let scratch = Scratch::new(&format!("threads-{kind:?}"));
        let Some(paged) = Paged::new(kind, scratch.path(), count, false) else { continue };
        let all_are_there = Barrier::new(count as usize);
        thread::scope(|scope| {
            for n in 0..count {
                let (paged, all_are_there) = (&paged, &all_are_there);
                let body = move || {
                    all_are_there.wait();
                    for version in 1..4 {
                        retry(|| paged.write(n, version));
                        assert_eq!(retry(|| paged.read(n)), version, "page {n}");
                    }
                    if let Paged::Region(region) = paged {
                        let word = region.as_ptr().wrapping_add(pages(n).as_usize()).cast::<u64>();
                        // SAFETY: the word is in a live region, in this thread's page.
                        assert_eq!(unsafe { word.read_volatile() }, 3);
                    }
                };
                thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, body).unwrap();
            }
        });
        (0..count).for_each(|n| assert_eq!(paged.read(n).unwrap(), 3, "page {n}"));
        paged.check();
    }
}

#[test]
fn signals_all_the_time_are_no_errors() {
    glebe_testing::alone!();
    let signals = Signals::start(Duration::from_millis(1));
    for kind in KINDS {
        let scratch = Scratch::new(&format!("signals-{kind:?}"));
        let Some(paged) = Paged::new(kind, scratch.path(), PAGES, false) else { continue };
        let (came, stop) = (signals.came(), AtomicBool::new(false));
        let time = storm(Duration::from_secs(1)) / KINDS.len() as u32;
        thread::scope(|scope| {
            for whose in 0..2 {
                let (paged, stop) = (&paged, &stop);
                stressed::spawn(scope, stop, move || signalled(paged, whose, stop));
            }
            let _stop = Stop(&stop);
            let begin = Instant::now();
            while begin.elapsed() < time && !stop.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
            }
        });
        paged.check();
        assert!(signals.came() > came, "no signal came");
        println!("{kind:?}: {} signals", signals.came() - came);
    }
}

fn signalled(paged: &Paged, whose: u64, stop: &AtomicBool) {
    let (mut known, mut random) = ([0; PAGES as usize], Random(whose));
    let mut version = 0;
    while !stop.load(Ordering::Relaxed) {
        let n = random.below(PAGES / 2) * 2 + whose;
        version += 1;
        if random.below(2) == 0 {
            paged.write(n, version).unwrap();
            known[n as usize] = version;
        }
        assert_eq!(paged.read(n).unwrap(), known[n as usize], "page {n}");
        if let Paged::Region(region) = paged {
            let other = random.below(PAGES / 2) * 2 + whose;
            let word = region.as_ptr().wrapping_add(pages(other).as_usize()).cast::<u64>();
            // SAFETY: the word is in a live region, in a page of this thread.
            assert_eq!(unsafe { word.read_volatile() }, known[other as usize], "page {other}");
        }
    }
}

/// Direct access to a region's memory needs SIGBUS; calls do not.
#[test]
fn calls_of_a_thread_that_blocks_sigbus_work() {
    for kind in KINDS {
        let scratch = Scratch::new(&format!("blocked-{kind:?}"));
        let Some(paged) = Paged::new(kind, scratch.path(), PAGES, false) else { continue };
        thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: the calls use a local set and this thread's mask.
                unsafe {
                    let mut set = std::mem::zeroed();
                    libc::sigemptyset(&mut set);
                    libc::sigaddset(&mut set, libc::SIGBUS);
                    libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut());
                }
                paged.write_all(1);
                paged.check_all(&[1; PAGES as usize]);
                if let Paged::Region(region) = &paged {
                    assert!(matches!(region.arm_thread(), Err(SwapError::SignalBlocked)));
                    let guard = region.resident(Bytes::ZERO, pages(4)).unwrap();
                    assert_eq!(stressed::version(&guard[..pages(1).as_usize()], 0), Some(1));
                }
            });
        });
    }
}

#[test]
fn guards_that_are_held_for_ever_are_told_and_the_rest_leaves() {
    let scratch = Scratch::new("guards");
    let Some(paged) = Paged::new(Kind::Region, scratch.path(), PAGES, false) else { return };
    let Paged::Region(region) = &paged else { unreachable!("a region was made") };
    paged.write_all(1);
    std::mem::forget(region.resident(pages(8), pages(20)).unwrap());
    let rest = || (0..PAGES).filter(|n| !(8..28).contains(n));
    rest().for_each(|n| paged.write(n, 2).unwrap());
    rest().for_each(|n| assert_eq!(paged.read(n).unwrap(), 2));
    assert!(matches!(paged.read(9), Err(SwapError::Pinned)));
    let refused = region.resident(pages(100), pages(9)).map(drop).unwrap_err();
    let SwapError::Budget { len, pinned, budget } = refused else { panic!("{refused}") };
    assert_eq!((len, pinned, budget), (pages(9), pages(20), pages(BUDGET)));
    let refused = region.set_budget(pages(19)).unwrap_err();
    let SwapError::BudgetBelowPinned { given, pinned } = refused else { panic!("{refused}") };
    assert_eq!((given, pinned, region.budget()), (pages(19), pages(20), pages(BUDGET)));
    paged.check();
}

#[test]
fn a_budget_is_what_the_last_call_made_it_beside_guards() {
    let Ok(region) = Store::options().build_region(pages(400), pages(200)) else {
        return println!("skipped: no region");
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(1);
            while !stop.load(Ordering::Relaxed) {
                let made = region.resident(pages(random.below(100)), pages(1 + random.below(90)));
                assert!(matches!(made, Ok(_) | Err(SwapError::Budget { .. })), "{made:?}");
            }
        });
        let _stop = Stop(&stop);
        let mut random = Random(2);
        for _ in 0..20_000 {
            let budget = [pages(4), pages(200), pages(9)][random.below(3) as usize];
            let before = region.budget();
            match region.set_budget(budget) {
                Ok(()) => assert_eq!(region.budget(), budget),
                Err(SwapError::BudgetBelowPinned { .. }) => assert_eq!(region.budget(), before),
                Err(error) => panic!("{error}"),
            }
        }
    });
    assert!(region.stats().pinned == Pages::ZERO);
    region.stats().check().unwrap();
}
