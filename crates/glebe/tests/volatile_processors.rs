//! What an unmark says is lost is zeros on every processor, at once.
//!
//! The kernel takes pages out of the page table some time before it tells the processors that know
//! their addresses. Here a thread of higher priority interrupts it in between, on such a
//! processor, waits until another thread has unmarked everything, and reads what is told lost.
//! Needs two processors and a real-time priority.
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

use glebe::sys::madvise::{advise, Advice};
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Engine, Error, Priority, Region};
use glebe_testing::time::{is_long, slowed, storm};

const PAGES: u64 = 256;
/// Rounds of each kind, and how many are enough where others keep the processors busy for so long.
const ROUNDS: u64 = 200;
const ROUNDS_LEAST: u64 = 20;
const USUAL: Duration = Duration::from_secs(1);
/// For how long the reader keeps the processor. What it interrupted may hold a lock of the kernel
/// that the unmark waits for: then the round shows nothing.
const HELD: Duration = Duration::from_secs(1);
/// Nothing here takes as long, unless a thread has ended.
const PATIENCE: Duration = Duration::from_secs(10);

fn bytes(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

/// Has the calling thread run on one processor alone, before ordinary threads if it `is_urgent`.
fn stay_on(processor: usize, is_urgent: bool) -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: i32::from(is_urgent) };
    let class = if is_urgent { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
    // SAFETY: zeros are an empty set; both calls read what is this function's own.
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

/// How far a round is.
#[derive(Debug, Default)]
struct Stage(AtomicU64);

impl Stage {
    /// The kernel takes pages from here on.
    const TAKING: u64 = 1;
    /// The reader has interrupted it, and waits.
    const INTERRUPTED: u64 = 2;
    const UNMARKED: u64 = 3;
    /// It was not interrupted.
    const MISSED: u64 = 4;

    fn pass(&self, from: u64, to: u64) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Waits until it is this far, and says whether it got there in time.
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

    /// Waits until it is this far.
    fn reach(&self, stage: u64, rest: Duration) {
        let is_reached = self.is_reached(stage, rest, slowed(PATIENCE));
        assert!(is_reached, "stage {stage} was not reached");
    }
}

/// The second word of a page.
fn word(region: &Region, page: u64) -> u64 {
    let at = region.addr() + bytes(page).as_usize() + size_of::<u64>();
    // SAFETY: in the region, at a multiple of a word; nobody writes it meanwhile.
    let word = unsafe { &*ptr::with_exposed_provenance::<AtomicU64>(at) };
    word.load(Ordering::Acquire)
}

/// Returns how many pages were told lost in a round, and how many of them held what they had held
/// before; zeros where the reader came too late, or had to give the processor back too early.
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
            // From now on this processor knows where the pages are.
            std::hint::black_box((0..PAGES).map(|page| word(region, page)).max());
            ready.wait();
            stage.reach(Stage::TAKING, Duration::from_micros(20));
            // Later rounds wait longer, for a kernel that is slow to begin.
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
            // SAFETY: the kernel takes only pages that it may.
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

/// A region of its own memory, or of `memory`, which outlives it.
fn region(engine: Engine, is_own: bool, memory: &mut [u8]) -> Result<Region, Error> {
    let options = Region::options().engine(engine);
    if is_own {
        return options.build(bytes(PAGES));
    }
    // SAFETY: the caller's, who has no other use for it.
    unsafe { options.build_over(memory.as_mut_ptr(), Bytes::new(memory.len() as u64)) }
}

#[test]
fn what_is_told_lost_is_zeros_on_every_processor() {
    let able = || stay_on(1, true).and_then(|()| stay_on(0, true));
    if let Err(why) = thread::spawn(able).join().unwrap() {
        return println!("skipped: two processors and a real-time priority: {why}");
    }
    // With tags, and without; memory of the region's own, and of the caller's.
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
