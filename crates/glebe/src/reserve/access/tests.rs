//! Tests that [`Critical::fill`] stores nothing once its guard word has changed and
//! [`Critical::barrier`] has returned.
//!
//! Each round tries to change the guard during a long copy. After the barrier the round marks the
//! last word, which a continued copy would overwrite. Only rounds that interrupted a copy count.

use super::*;
use std::thread;

const CAUGHT: u32 = 200;
const COPY_WORDS: usize = 1 << 19;
const OPEN: u64 = 1;
const STOPPED: u64 = u64::MAX - OPEN;
const CLAIM: u64 = 5;
const COMMIT: u64 = 6;
const MARK: u64 = u64::MAX;

struct Shared {
    critical: Critical,
    /// `OPEN` and the number of a round; 0 while closed; `STOPPED` at the end.
    guard: AtomicU64,
    target: AtomicU64,
    meta: [AtomicU64; rseq::META_WORDS],
    page: Vec<AtomicU64>,
    over: AtomicU64,
}

struct Stop<'a>(&'a AtomicU64);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(STOPPED, Ordering::Relaxed);
    }
}

impl Shared {
    fn new(critical: Critical) -> Self {
        Self {
            critical,
            guard: AtomicU64::new(0),
            target: AtomicU64::new(0),
            meta: Default::default(),
            page: (0..COPY_WORDS).map(|_| AtomicU64::new(0)).collect(),
            over: AtomicU64::new(0),
        }
    }

    fn write(&self) {
        let from = vec![0_u64; COPY_WORDS];
        loop {
            let open = self.guard.load(Ordering::Acquire);
            if open == STOPPED {
                return;
            }
            let round = open >> 1;
            if open & OPEN == 0 || round == self.over.load(Ordering::Relaxed) {
                thread::yield_now();
                continue;
            }
            let guard = Guard { word: &self.guard, mask: u64::MAX, expect: open };
            let fill = Fill {
                target: &self.target,
                claim: CLAIM,
                commit: COMMIT,
                meta_at: &self.meta,
                meta: [round, 0, 0, 0],
                to: self.page.as_ptr().cast_mut().cast(),
                from: from.as_ptr().cast(),
                len: size_of_val(&*from),
            };
            // SAFETY: `page` and `from` are vectors of `len` bytes; other users access the words of
            // `page` as atomics.
            while unsafe { self.critical.fill(guard, &fill) } == Outcome::Aborted {}
            self.over.store(round, Ordering::Release);
        }
    }

    fn catch(&self, round: u64) -> bool {
        let last = &self.page[COPY_WORDS - 1];
        self.target.store(CLAIM, Ordering::Relaxed);
        self.guard.store(round << 1 | OPEN, Ordering::SeqCst);
        while self.meta[0].load(Ordering::Relaxed) != round {
            thread::yield_now();
        }
        self.guard.store(0, Ordering::SeqCst);
        self.critical.barrier().unwrap();
        let target = self.target.load(Ordering::Relaxed);
        last.store(MARK, Ordering::Relaxed);
        while self.over.load(Ordering::Acquire) != round {
            thread::yield_now();
        }
        let after = self.target.load(Ordering::Relaxed);
        assert_eq!(after, target, "round {round}: a commit after the barrier");
        let stored = last.load(Ordering::Relaxed);
        assert_eq!(stored, MARK, "round {round}: a store after the barrier");
        target == CLAIM
    }
}

#[test]
fn no_store_of_a_fill_that_was_under_way_lands_after_the_barrier() {
    let critical = match Critical::find() {
        Ok(critical) => critical,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let shared = Shared::new(critical);
    thread::scope(|scope| {
        let _stop = Stop(&shared.guard);
        scope.spawn(|| shared.write());
        let (mut round, mut caught) = (0, 0);
        while caught < CAUGHT {
            round += 1;
            caught += u32::from(shared.catch(round));
        }
        println!("{caught} of {round} fills were under way when their guard was closed");
    });
}
