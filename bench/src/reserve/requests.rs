//! One first-class request: ask, look at the frames, write, let tenants run, read, give back.
//!
//! Timed is the asking alone. The frames are read from `/proc/self/pagemap` and not taken from the
//! reserve's word. Unit: microseconds, base pages.

use std::time::Duration;

use glebe::reserve::{Block, Contiguity, Error, Request, Reserve};
use glebe::sys::page_size;
use glebe::units::Pages;

use super::keyed;
use crate::clock::{Elapsed, Stopwatch};
use crate::peers::longest_run;

/// Time between requests whose latency is measured.
pub(super) const EVERY: Duration = Duration::from_millis(10);

/// What was wrong in a number of requests; all zero is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests that gave no block.
    pub failures: u64,
    /// Bytes that were not as written while the block was held.
    pub stray_writes: u64,
    /// Blocks said to be one physical run that the kernel's page map shows otherwise.
    pub not_contiguous: u64,
    /// Bytes of blocks asked for as zero that were not.
    pub not_zero: u64,
    /// Pages that tenants lost beyond those of the block, where one thread asks.
    pub over_recall: u64,
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

/// How much of a block is written and read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marking {
    /// Every byte.
    Whole,
    /// One word a page: a page that a tenant writes is overwritten whole.
    Pages,
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
    let block = reserve.alloc_with(request);
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
    pub(super) fn mark(&mut self, marking: Marking) -> Faults {
        let pages = self.block.pages();
        let claimed = self.block.contiguity() == Contiguity::Proved;
        let refuted = self.longest_run.is_some_and(|run| run != pages);
        let (zeroed, seed) = (self.zeroed, self.seed);
        let mut faults =
            Faults { not_contiguous: u64::from(claimed && refuted), ..Faults::default() };
        let Ok(bytes) = self.block.bytes_mut() else {
            return Faults { failures: 1, ..faults };
        };
        if zeroed {
            faults.not_zero = bytes.iter().filter(|&&byte| byte != 0).count() as u64;
        }
        match marking {
            Marking::Whole => keyed::poison(bytes, seed),
            Marking::Pages => {
                for (at, page) in bytes.chunks_exact_mut(page_bytes()).enumerate() {
                    keyed::poison(&mut page[..size_of::<u64>()], seed.wrapping_add(at as u64));
                }
            }
        }
        faults
    }

    /// Reads the block again and gives it back.
    pub(super) fn check(self, marking: Marking) -> Faults {
        let Ok(bytes) = self.block.bytes() else {
            return Faults { failures: 1, ..Faults::default() };
        };
        let stray_writes = match marking {
            Marking::Whole => keyed::strays(bytes, self.seed),
            Marking::Pages => {
                let stray = |(at, page): (usize, &[u8])| {
                    let word = &page[..size_of::<u64>()];
                    keyed::strays(word, self.seed.wrapping_add(at as u64))
                };
                bytes.chunks_exact(page_bytes()).enumerate().map(stray).sum()
            }
        };
        Faults { stray_writes, ..Faults::default() }
    }
}

fn page_bytes() -> usize {
    page_size().bytes().as_usize()
}
