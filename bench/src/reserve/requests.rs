//! Makes first-class requests: asks, looks at the frames, writes, lets tenants run, reads, gives
//! back.
//!
//! Only asking and [`Held::memset`] are timed. Frames come from `/proc/self/pagemap`, not from the
//! reserve. One word per page is written and checked, because a tenant overwrites whole pages.
//! Errors go to the report's checks.

use std::time::Duration;

use glebe::page_size;
use glebe::reserve::{Block, Contiguity, Request, Reserve, ReserveError};
use glebe::units::Pages;

use super::keyed;
use crate::clock::{timed, Elapsed};
use crate::frames::longest_run;
use crate::report::Report;

/// Time between requests whose latency is measured.
pub(super) const EVERY: Duration = Duration::from_millis(10);

const WORD: usize = size_of::<u64>();

pub(super) struct Held {
    block: Block,
    pub(super) took: Elapsed,
    pub(super) longest_run: Option<Pages>,
    /// Pages recalled from tenants; exact only if no other thread asks.
    pub(super) recalled: u64,
    zeroed: bool,
    seed: u64,
}

/// Sleeps for `pause`, then requests a block. Nothing reads the reserve during the sleep, so that
/// the reserve's data are cold.
pub(super) fn ask(
    reserve: &Reserve,
    pause: Duration,
    pages: u64,
    zeroed: bool,
) -> Result<Held, ReserveError> {
    let request = Request::new(Pages::new(pages));
    let request = if zeroed { request.zeroed() } else { request };
    let before = reserve.stats().recalled;
    if !pause.is_zero() {
        std::thread::sleep(pause);
    }
    let (block, took) = timed(|| reserve.alloc(request));
    let block = block?;
    let recalled = reserve.stats().recalled - before;
    let seed = keyed::mix(block.extent().start() ^ (took.wall_us as u64) << 32);
    let longest_run = longest_run(block.as_ptr().addr(), block.pages());
    Ok(Held { block, took, longest_run, recalled, zeroed, seed })
}

impl Held {
    /// Counts recalled pages beyond the request.
    pub(super) fn over_recall(&self, report: &mut Report) {
        report.check("over_recall", self.recalled.saturating_sub(self.block.pages().get()));
    }

    pub(super) fn memset(&mut self) -> Result<Elapsed, ReserveError> {
        let bytes = self.block.bytes_mut()?;
        let ((), took) = timed(|| bytes.fill(0));
        std::hint::black_box(&bytes);
        Ok(took)
    }

    pub(super) fn mark(&mut self, report: &mut Report) {
        let claimed = self.block.contiguity() == Contiguity::Proved;
        let refuted = self.longest_run.is_some_and(|run| run != self.block.pages());
        report.check("not_contiguous", u64::from(claimed && refuted));
        let (zeroed, seed) = (self.zeroed, self.seed);
        let Ok(bytes) = self.block.bytes_mut() else { return report.check("failures", 1) };
        report.check("wrong_bytes", if zeroed { not_zero(bytes) } else { 0 });
        for (at, page) in (0..).zip(bytes.chunks_exact_mut(page_size().bytes().as_usize())) {
            page[..WORD].copy_from_slice(&keyed::mix(seed ^ at).to_ne_bytes());
        }
    }

    pub(super) fn check(self, report: &mut Report) {
        let Ok(bytes) = self.block.bytes() else { return report.check("failures", 1) };
        let pages = (0..).zip(bytes.chunks_exact(page_size().bytes().as_usize()));
        let stray =
            |(at, page): &(u64, &[u8])| page[..WORD] != keyed::mix(self.seed ^ at).to_ne_bytes();
        report.check("stray_writes", pages.filter(stray).count() as u64);
    }
}

/// Counts bytes that are not zero. Compares whole pages first, for speed.
fn not_zero(bytes: &[u8]) -> u64 {
    let zeros = vec![0; page_size().bytes().as_usize()];
    let pages = bytes.chunks(zeros.len()).filter(|page| **page != zeros[..page.len()]);
    pages.flatten().filter(|byte| **byte != 0).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_zero_are_counted() {
        let mut bytes = vec![0; 3 * page_size().bytes().as_usize() + 5];
        assert_eq!(not_zero(&bytes), 0);
        let last = bytes.len() - 1;
        (bytes[0], bytes[7], bytes[last]) = (1, 2, 3);
        assert_eq!(not_zero(&bytes), 3);
    }
}
