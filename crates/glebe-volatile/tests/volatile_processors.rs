//! Tests that pages reported lost read as zeros on every processor at once.
//!
//! The kernel removes pages from the page table before it flushes their TLB entries. An urgent
//! thread interrupts the kernel in between, waits until another thread has unmarked everything, and
//! reads the lost pages.
//!
//! # Safety
//! The threads read words of a region that outlives them, as atomics, and give advice on it.
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use glebe_os::internal::sys::memory::madvise::{advise, Advice};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_testing::time::{is_long, slowed, storm};
use glebe_volatile::{Engine, Error, Priority, Region};

const PAGES: u64 = 256;
/// Maximum rounds per kind of region. Without `GLEBE_LONG`, a test ends after `ROUNDS_LEAST` rounds
/// once a page was lost and the time `USUAL` is over.
const ROUNDS: u64 = 200;
const ROUNDS_LEAST: u64 = 20;
const USUAL: Duration = Duration::from_secs(1);
/// Longest time the reader keeps its processor, because the interrupted thread may hold a kernel
/// lock that the unmark needs.
const HELD: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);

fn bytes(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

fn stay_on(processor: usize, is_urgent: bool) -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: i32::from(is_urgent) };
    let class = if is_urgent { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
    // SAFETY: an all-zero set is valid; both calls read locals.
    let refused = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set) != 0
            || libc::sched_setscheduler(0, class, &raw const priority) != 0
    };
    if refused {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Stage(AtomicU64);

impl Stage {
    const TAKING: u64 = 1;
    const INTERRUPTED: u64 = 2;
    const UNMARKED: u64 = 3;
    /// The kernel was not interrupted.
    const MISSED: u64 = 4;

    fn pass(&self, from: u64, to: u64) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn is_reached(&self, stage: u64, rest: Duration, time: Duration) -> bool {
        let begin = Instant::now();
        loop {
            if self.0.load(Ordering::Acquire) >= stage {
                return true;
            }
            if begin.elapsed() > time {
                return false;
            }
            match rest {
                Duration::ZERO => std::hint::spin_loop(),
                rest => thread::sleep(rest),
            }
        }
    }

    fn reach(&self, stage: u64, rest: Duration) {
        let is_reached = self.is_reached(stage, rest, slowed(PATIENCE));
        assert!(is_reached, "stage {stage} was not reached");
    }
}

fn word(region: &Region, page: u64) -> u64 {
    let at = region.addr() + bytes(page).as_usize() + size_of::<u64>();
    // SAFETY: the word is in the region and aligned, and no thread writes it.
    let word = unsafe { &*ptr::with_exposed_provenance::<AtomicU64>(at) };
    word.load(Ordering::Acquire)
}

/// Returns how many pages were reported lost, and how many of these held old contents; (0, 0) if
/// the reader came too late or gave up.
fn round(region: &Region, run: u64, nth: u64) -> (u64, u64) {
    let whole = vec![0xA5; region.len().as_usize()];
    region.write(Bytes::ZERO, &whole).unwrap();
    let runs = (0..PAGES).step_by(run as usize).map(|page| bytes(page)..bytes(page + run));
    runs.clone().for_each(|run| region.mark(run, Priority::NORMAL).unwrap());
    let (stage, ready) = (&Stage::default(), &Barrier::new(3));
    let told: &Vec<_> = &(0..PAGES).map(|_| AtomicBool::new(false)).collect();
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            stay_on(0, true).unwrap();
            // Lets this processor cache the pages' addresses.
            std::hint::black_box((0..PAGES).map(|page| word(region, page)).max());
            ready.wait();
            stage.reach(Stage::TAKING, Duration::from_micros(20));
            // Varies the wait, to hit the moment before the flush on a slow kernel too.
            thread::sleep(Duration::from_micros(nth % 50 * (1 + nth / 50)));
            if !stage.pass(Stage::TAKING, Stage::INTERRUPTED) {
                return None;
            }
            if !stage.is_reached(Stage::UNMARKED, Duration::ZERO, HELD) {
                stage.reach(Stage::UNMARKED, Duration::from_millis(1));
                return None;
            }
            let lost = (0..PAGES).filter(|page| told[*page as usize].load(Ordering::Acquire));
            Some(lost.filter(|page| word(region, *page) != 0).count() as u64)
        });
        scope.spawn(move || {
            stay_on(0, false).unwrap();
            ready.wait();
            stage.pass(0, Stage::TAKING);
            // SAFETY: the kernel takes only marked pages.
            unsafe { advise(region.addr(), region.len(), Advice::PageOut).unwrap() };
            stage.pass(Stage::TAKING, Stage::MISSED);
        });
        let unmarker = scope.spawn(move || {
            stay_on(1, false).unwrap();
            ready.wait();
            stage.reach(Stage::INTERRUPTED, Duration::ZERO);
            let mut lost = 0;
            for run in runs {
                let purged = region.unmark(run).unwrap();
                for page in purged.runs().iter().flat_map(|run| run.start()..run.end()) {
                    told[page as usize].store(true, Ordering::Release);
                    lost += 1;
                }
            }
            stage.pass(Stage::INTERRUPTED, Stage::UNMARKED);
            lost
        });
        let lost = unmarker.join().unwrap();
        reader.join().unwrap().map_or((0, 0), |old| (lost, old))
    })
}

fn region(engine: Engine, is_own: bool, memory: &mut [u8]) -> Result<Region, Error> {
    let options = Region::options().engine(engine);
    if is_own {
        return options.build(bytes(PAGES));
    }
    // SAFETY: the memory outlives the region and has no other users.
    unsafe { options.build_over(memory.as_mut_ptr(), Bytes::new(memory.len() as u64)) }
}

#[test]
fn what_is_told_lost_is_zeros_on_every_processor() {
    let able = || stay_on(1, true).and_then(|()| stay_on(0, true));
    if let Err(why) = thread::spawn(able).join().unwrap() {
        return println!("skipped: two processors and a real-time priority: {why}");
    }
    let own = [(Engine::Tag, 8), (Engine::Tag, PAGES), (Engine::Scan, 8)];
    let kinds = own.map(|kind| (kind, true)).into_iter().chain([((Engine::Tag, 8), false)]);
    for ((engine, run), is_own) in kinds {
        let mut memory = vec![0_u8; bytes(PAGES + 1).as_usize()];
        let region = match region(engine, is_own, &mut memory) {
            Ok(region) => region,
            Err(why) => {
                println!("skipped: {engine} engine: {why}");
                continue;
            }
        };
        let (mut lost, mut old) = (0, 0);
        let (begin, time) = (Instant::now(), storm(USUAL));
        for nth in 0..ROUNDS {
            if nth >= ROUNDS_LEAST && lost > 0 && !is_long() && begin.elapsed() > time {
                break;
            }
            let seen = round(&region, run, nth);
            (lost, old) = (lost + seen.0, old + seen.1);
        }
        let whose = if is_own { "its own" } else { "the caller's" };
        println!("{engine}, {whose}, runs of {run} pages: {lost} lost, {old} of them old");
        assert!(lost > 0, "the kernel took nothing: nothing was tested");
        assert_eq!(old, 0, "of {lost} pages that are told lost so many hold old contents");
    }
}
