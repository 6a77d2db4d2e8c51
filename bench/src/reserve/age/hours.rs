//! [`run`]: hours of first class and its tenant in one reserve, as fast as the machine can.
//!
//! Time is virtual: a queue of what happens next, and nobody sleeps. A request that fails is given
//! up and not asked again. Units: base pages, microseconds of virtual time; seconds where named so.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use glebe::contig::{Contig, Source};
use glebe::reserve::{self, Block, Placement, Request, Reserve};
use glebe::units::{Bytes, Pages};

use super::cache::Cache;
use super::held::Held;
use super::workload::{pages_max, Workload, SECOND_US};
use crate::reserve::Error;

/// Seconds of virtual time from one look at the longest run to the next.
pub(super) const LOOK_S: u64 = 10;
/// Pages from which on a block is timed apart.
const LARGE_PAGES: u64 = 512;

/// One run: what is done, in what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scenario {
    pub(super) len: Bytes,
    pub(super) placement: Placement,
    /// Whether blocks that will live long are asked for as such.
    pub(super) hinted: bool,
    /// Of the reserve, what first class would hold on average.
    pub(super) percent: u64,
    pub(super) seed: u64,
    /// Not looked at: the reserve ages from empty.
    pub(super) warm_up_s: u64,
    pub(super) looked_at_s: u64,
}

/// What is seen at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// The longest run that no block holds a page of.
    pub(super) largest: u64,
    pub(super) held: u64,
    /// Requests refused so far though enough pages were free.
    pub(super) failures: u64,
    /// Pages recalled so far.
    pub(super) recalled: u64,
}

/// What came of it, without the warm-up.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) looks: Vec<Look>,
    /// Looks at which the largest block would have failed though as many pages were free.
    pub(super) looks_fragmented: u64,
    pub(super) requests: u64,
    /// Requests refused though enough pages were free, and for want of pages.
    pub(super) failures_fragmented: u64,
    pub(super) failures_full: u64,
    pub(super) allocated_pages: u64,
    pub(super) recalled_pages: u64,
    pub(super) gets: u64,
    pub(super) hits: u64,
    pub(super) faults: Faults,
}

/// What must not be, the warm-up included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// Blocks that shared a page.
    pub(super) overlaps: u64,
    /// Requests refused though a free run was long enough, or by another error.
    pub(super) unexplained: u64,
    pub(super) wrong_pages: u64,
    /// Identities of the statistics that did not hold.
    pub(super) wrong_stats: u64,
}

/// Wall time of the requests, in nanoseconds; it differs from run to run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    sum_ns: f64,
    count: f64,
    large_sum_ns: f64,
    large_count: f64,
}

impl Times {
    fn add(&mut self, pages: u64, ns: f64) {
        self.sum_ns += ns;
        self.count += 1.0;
        if pages >= LARGE_PAGES {
            self.large_sum_ns += ns;
            self.large_count += 1.0;
        }
    }

    pub(super) fn mean_us(&self) -> f64 {
        self.sum_ns / self.count / 1e3
    }

    pub(super) fn large_mean_us(&self) -> f64 {
        self.large_sum_ns / self.large_count / 1e3
    }
}

/// A block and the time of its end, the earliest first.
struct Ends(u64, u64, Block);

impl PartialEq for Ends {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ends {}

impl PartialOrd for Ends {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ends {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// What the reserve and the cache have counted.
#[derive(Clone, Copy, Default)]
struct Totals {
    recalled: u64,
    gets: u64,
    hits: u64,
}

struct Aging<'a> {
    scenario: &'a Scenario,
    reserve: Reserve,
    cache: Cache,
    held: Held,
    blocks: BinaryHeap<Reverse<Ends>>,
    asked: u64,
    /// The totals when the warm-up ended.
    before: Totals,
    outcome: Outcome,
    times: Times,
}

/// Runs `scenario`.
pub(super) fn run(scenario: &Scenario) -> Result<(Outcome, Times), Error> {
    let reserve = Reserve::builder().placement(scenario.placement).build(memory(scenario.len)?)?;
    let total = reserve.len().get();
    let mut aging = Aging {
        scenario,
        cache: Cache::new(&reserve, scenario.seed)?,
        reserve,
        held: Held::new(total),
        blocks: BinaryHeap::new(),
        asked: 0,
        before: Totals::default(),
        outcome: Outcome::default(),
        times: Times::default(),
    };
    let mut arrivals = Workload::new(total, scenario.percent, scenario.seed).peekable();
    for second in 0..scenario.warm_up_s + scenario.looked_at_s {
        if second == scenario.warm_up_s {
            aging.before = aging.totals();
            let faults = aging.outcome.faults;
            aging.outcome = Outcome { faults, ..Outcome::default() };
            aging.times = Times::default();
        }
        let end_us = (second + 1) * SECOND_US;
        while let Some(one) = arrivals.next_if(|one| one.at_us < end_us) {
            aging.end_until(one.at_us);
            aging.ask(one.at_us + one.life_us, one.pages, one.long_lived);
        }
        aging.end_until(end_us);
        aging.cache.second()?;
        if second % LOOK_S == 0 {
            aging.look();
        }
    }
    Ok(aging.finish())
}

/// Memory that is soon had: contiguity is not what is looked at.
fn memory(len: Bytes) -> Result<Contig, Error> {
    let map = |source: Source| Contig::options().source(source).map(len);
    map(Source::Thp).or_else(|_| map(Source::Plain)).map_err(|source| Error::Map { len, source })
}

impl Aging<'_> {
    /// Ends the blocks whose time has come.
    fn end_until(&mut self, now_us: u64) {
        while self.blocks.peek().is_some_and(|Reverse(next)| next.0 <= now_us) {
            if let Some(Reverse(Ends(.., block))) = self.blocks.pop() {
                self.held.remove(block.extent());
            }
        }
    }

    fn ask(&mut self, end_us: u64, pages: u64, long_lived: bool) {
        // What the frames of this machine look like is not to matter.
        let request = Request::new(Pages::new(pages)).any();
        let hinted = long_lived && self.scenario.hinted;
        let request = if hinted { request.long_lived() } else { request };
        self.asked += 1;
        self.outcome.requests += 1;
        let begin = Instant::now();
        let block = self.reserve.alloc_with(request);
        let ns = begin.elapsed().as_nanos() as f64;
        match block {
            Ok(block) => {
                self.times.add(pages, ns);
                self.outcome.allocated_pages += pages;
                self.outcome.faults.overlaps += u64::from(!self.held.add(block.extent()));
                self.blocks.push(Reverse(Ends(end_us, self.asked, block)));
            }
            Err(reserve::Error::NoRun { .. }) if self.held.largest_gap() < pages => {
                let full = self.held.free() < pages;
                self.outcome.failures_full += u64::from(full);
                self.outcome.failures_fragmented += u64::from(!full);
            }
            Err(_) => self.outcome.faults.unexplained += 1,
        }
    }

    fn look(&mut self) {
        let largest = self.held.largest_gap();
        let wanted = pages_max(self.reserve.len().get());
        let fragmented = largest < wanted && self.held.free() >= wanted;
        self.outcome.looks_fragmented += u64::from(fragmented);
        let stats = self.reserve.stats();
        self.outcome.faults.wrong_stats += u64::from(stats.check().is_err());
        self.outcome.looks.push(Look {
            largest,
            held: self.reserve.len().get() - self.held.free(),
            failures: self.outcome.failures_fragmented,
            recalled: stats.recalled - self.before.recalled,
        });
    }

    fn totals(&self) -> Totals {
        let recalled = self.reserve.stats().recalled;
        Totals { recalled, gets: self.cache.gets, hits: self.cache.hits }
    }

    fn finish(mut self) -> (Outcome, Times) {
        let (before, after) = (self.before, self.totals());
        self.outcome.recalled_pages = after.recalled - before.recalled;
        self.outcome.gets = after.gets - before.gets;
        self.outcome.hits = after.hits - before.hits;
        self.outcome.faults.wrong_pages = self.cache.wrong_pages;
        (self.outcome, self.times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aged(placement: Placement, seed: u64) -> Outcome {
        let (hinted, len) = (true, Bytes::mib(32));
        let (percent, warm_up_s, looked_at_s) = (60, 100, 400);
        let scenario = Scenario { len, placement, hinted, percent, seed, warm_up_s, looked_at_s };
        let (outcome, times) = run(&scenario).expect("a small reserve");
        assert!(times.mean_us() > 0.0);
        assert_eq!(outcome.faults, Faults::default(), "{placement:?}");
        assert!(outcome.hits > 0 && outcome.hits < outcome.gets);
        assert!(outcome.recalled_pages > 0 && outcome.recalled_pages <= outcome.allocated_pages);
        // A tenant that the kernel interrupts may use another page: its figures are not exact.
        let looks = outcome.looks.iter().map(|look| Look { recalled: 0, ..*look }).collect();
        Outcome { looks, hits: 0, recalled_pages: 0, ..outcome }
    }

    #[test]
    fn a_seed_gives_the_same_hours_again() {
        for placement in [Placement::Lowest, Placement::BestFit, Placement::BySize] {
            let first = aged(placement, 1);
            assert_eq!(first, aged(placement, 1), "{placement:?}");
            assert_ne!(first, aged(placement, 2), "{placement:?}");
            assert_eq!(first.looks.len() as u64, 400 / LOOK_S);
        }
        aged(Placement::LeastToClear, 1);
    }
}
