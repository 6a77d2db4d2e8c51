//! One first-class request: ask, look at the frames, write, let tenants run, read, give back.
//!
//! Timed is the asking alone. The frames are read from `/proc/self/pagemap` and not taken from the
//! reserve's word. Of a block one word a page is written and read again: a page that a tenant
//! writes is overwritten whole. Unit: microseconds, base pages.

use std::time::Duration;

use glebe::reserve::{Block, Contiguity, Error, Request, Reserve};
use glebe::sys::page_size;
use glebe::units::Pages;

use super::keyed;
use crate::clock::{Elapsed, Stopwatch};
use crate::peers::longest_run;
use crate::report::Report;

/// Time between requests whose latency is measured.
pub(super) const EVERY: Duration = Duration::from_millis(10);

const WORD: usize = size_of::<u64>();

/// What was wrong in a number of requests; all zero is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// Requests that gave no block.
    pub(super) failures: u64,
    /// Words that were not as written while the block was held.
    pub(super) stray_writes: u64,
    /// Blocks said to be one physical run that the kernel's page map shows otherwise.
    pub(super) not_contiguous: u64,
    /// Bytes of blocks asked for as zero that were not.
    pub(super) not_zero: u64,
    /// Pages that tenants lost beyond those of the block, where one thread asks.
    pub(super) over_recall: u64,
}

impl Faults {
    /// Adds what another set of requests found.
    pub(super) fn add(&mut self, other: Self) {
        self.failures += other.failures;
        self.stray_writes += other.stray_writes;
        self.not_contiguous += other.not_contiguous;
        self.not_zero += other.not_zero;
        self.over_recall += other.over_recall;
    }

    /// Adds all of it to the report's checks.
    pub(super) fn report(&self, report: &mut Report) {
        report.check("failures", self.failures);
        report.check("stray_writes", self.stray_writes);
        report.check("not_contiguous", self.not_contiguous);
        report.check("wrong_bytes", self.not_zero);
        report.check("over_recall", self.over_recall);
    }
}

/// A block that is held, and what it took.
#[derive(Debug)]
pub(super) struct Held {
    block: Block,
    pub(super) elapsed: Elapsed,
    /// The longest run of frames, where they can be read.
    pub(super) longest_run: Option<Pages>,
    /// Pages that tenants lost, if nobody else asked at that time.
    pub(super) recalled: u64,
    zeroed: bool,
    seed: u64,
}

/// Asks for one block after sleeping for `pause`. Nothing of the reserve is looked at between the
/// two: who looks fetches what the request would find cold.
pub(super) fn ask(
    reserve: &Reserve,
    pause: Duration,
    request: Request,
    zeroed: bool,
) -> Result<Held, Error> {
    let before = reserve.stats().recalled;
    if !pause.is_zero() {
        std::thread::sleep(pause);
    }
    let watch = Stopwatch::start();
    let block = reserve.alloc(request);
    let elapsed = watch.elapsed();
    let block = block?;
    let recalled = reserve.stats().recalled - before;
    let seed = keyed::mix(block.extent().start() ^ (elapsed.wall_us as u64) << 32);
    let longest_run = longest_run(block.as_ptr().addr(), block.pages());
    Ok(Held { block, elapsed, longest_run, recalled, zeroed, seed })
}

impl Held {
    /// What the request took too much; only if nobody else asked meanwhile.
    pub(super) fn over_recall(&self) -> Faults {
        let over_recall = self.recalled.saturating_sub(self.block.pages().get());
        Faults { over_recall, ..Faults::default() }
    }

    /// Zeroes the block as its holder would; what that took.
    pub(super) fn memset(&mut self) -> Result<Elapsed, Error> {
        let bytes = self.block.bytes_mut()?;
        let watch = Stopwatch::start();
        bytes.fill(0);
        std::hint::black_box(&bytes);
        Ok(watch.elapsed())
    }

    /// Writes the block; what is already wrong with it.
    pub(super) fn mark(&mut self) -> Faults {
        let claimed = self.block.contiguity() == Contiguity::Proved;
        let refuted = self.longest_run.is_some_and(|run| run != self.block.pages());
        let not_contiguous = u64::from(claimed && refuted);
        let (zeroed, seed) = (self.zeroed, self.seed);
        let Ok(bytes) = self.block.bytes_mut() else {
            return Faults { failures: 1, not_contiguous, ..Faults::default() };
        };
        let not_zero = bytes.iter().filter(|&&byte| zeroed && byte != 0).count() as u64;
        for (at, page) in (0..).zip(bytes.chunks_exact_mut(page_size().bytes().as_usize())) {
            page[..WORD].copy_from_slice(&keyed::mix(seed ^ at).to_ne_bytes());
        }
        Faults { not_contiguous, not_zero, ..Faults::default() }
    }

    /// Reads the block again and gives it back.
    pub(super) fn check(self) -> Faults {
        let Ok(bytes) = self.block.bytes() else {
            return Faults { failures: 1, ..Faults::default() };
        };
        let pages = (0..).zip(bytes.chunks_exact(page_size().bytes().as_usize()));
        let stray =
            |(at, page): &(u64, &[u8])| page[..WORD] != keyed::mix(self.seed ^ at).to_ne_bytes();
        Faults { stray_writes: pages.filter(stray).count() as u64, ..Faults::default() }
    }
}
