//! The time to get a block while a tenant's thread sleeps in the middle of a put.
//!
//! A round: the cache is full; a writer begins a put and falls asleep halfway ([`trap`]). While it
//! sleeps blocks of one page and of the largest size are asked for, one every [`EVERY`], and then,
//! not timed, whatever is left of the reserve, so that the writer's page is surely in one of the
//! blocks. Then it is woken. Its put must be rejected, and every byte of every block must be as its
//! holder wrote it. A request that ended when the writer no longer slept is no sample but a fault.
//! Units: microseconds, base pages.

mod trap;

use std::time::Duration;

use glebe::reserve::{Pool, Put, Request, Reserve};
use glebe::units::Pages;

use super::requests::{ask, Faults, Held, Marking, EVERY};
use super::samples::{case, GLEBE, RECALL};
use super::tenant::Tenant;
use super::{Error, REQUEST_PAGES};
use crate::clock;
use crate::progress::Progress;
use crate::report::Report;
use trap::{Trap, Woken};

const LARGEST: u64 = REQUEST_PAGES[REQUEST_PAGES.len() - 1];
const OBJECT: u64 = 1;
const LOOKED_AT: u64 = 64;

/// Pages of a run that small blocks may lie in.
const BETWEEN: u64 = 1024;

/// How much is asked for.
#[derive(Clone, Copy)]
struct Plan {
    rounds: u64,
    /// Blocks of one page for each large one.
    small_per_large: u64,
    /// Pages of a large block.
    large: u64,
    /// On a busy machine rounds end sooner.
    at_most: Duration,
    every: Duration,
}

const PLAN: Plan = Plan {
    rounds: 15,
    small_per_large: 10,
    large: LARGEST,
    at_most: Duration::from_secs(120),
    every: EVERY,
};
const PLAN_QUICK: Plan =
    Plan { rounds: 2, small_per_large: 4, at_most: Duration::from_secs(5), ..PLAN };

/// Of the blocks of one size.
#[derive(Debug, Default)]
struct Series {
    wall_us: Vec<f64>,
    /// Pages that tenants lost.
    lent: u64,
}

/// What the rounds took and gave.
#[derive(Debug, Default)]
struct Outcome {
    rounds: u64,
    small: Series,
    large: Series,
    faults: Faults,
    /// Puts that slept to the end of their round, and whose page was taken from them.
    overtaken: u64,
    /// Requests during which the writer woke by itself, and rounds in which it never slept, or
    /// its page was not taken.
    not_asleep: u64,
}

/// Measures and reports; the reserve is full of cache before and after.
pub(super) fn measure(
    reserve: &Reserve,
    tenant: &mut Tenant,
    quick: bool,
    report: &mut Report,
) -> Result<(), Error> {
    let plan = if quick { PLAN_QUICK } else { PLAN };
    let [small, large] = [1, plan.large].map(|pages| case(RECALL, pages) + "_writer_asleep");
    if let Some(why) = reserve.why_counted() {
        // Counted writers are avoided or waited for.
        for case in [&small, &large] {
            report.absent(case, GLEBE, "us", why);
        }
        return Ok(());
    }
    let outcome = run(reserve, tenant, plan)?;
    outcome.small.report(&small, report);
    let longest = reserve.contig().longest_run().get();
    if plan.large_in(reserve) > 0 {
        outcome.large.report(&large, report);
    } else {
        let why = format!("the longest run is {longest} pages; get larger huge pages");
        report.absent(&large, GLEBE, "us", &why);
    }
    report.row("writer_slept", GLEBE, "puts", &[outcome.overtaken as f64]);
    report.remark("each slept while all blocks of a round were taken, its own page among them");
    if outcome.rounds < plan.rounds {
        let (made, wanted) = (outcome.rounds, plan.rounds);
        report.note(&format!("writer_asleep: a busy machine, {made} rounds instead of {wanted}"));
    }
    report.check("writer_not_asleep", outcome.not_asleep);
    report.check("failures", outcome.faults.failures);
    report.check("stray_writes", outcome.faults.stray_writes);
    report.check("over_recall", outcome.faults.over_recall);
    report.check("not_contiguous", outcome.faults.not_contiguous);
    Ok(())
}

fn run(reserve: &Reserve, tenant: &mut Tenant, plan: Plan) -> Result<Outcome, Error> {
    let pool = reserve.page_cache().pool("asleep")?;
    let mut trap = Trap::new()?;
    let mut outcome = Outcome::default();
    let mut progress = Progress::new("writer asleep", plan.rounds);
    let end = clock::wall() + plan.at_most;
    while outcome.rounds < plan.rounds && (outcome.rounds == 0 || clock::wall() < end) {
        // To the last page: a block of one page takes a free one before a lent one.
        tenant.refill_to(reserve, 0);
        trap.arm()?;
        let held = outcome.round(reserve, tenant, &pool, &trap, plan)?;
        for held in held {
            outcome.faults.add(held.check(Marking::Whole));
        }
        outcome.rounds += 1;
        progress.update(outcome.rounds);
    }
    tenant.refill(reserve);
    progress.finish();
    Ok(outcome)
}

impl Plan {
    /// Large blocks in a round; one less than would fit, for small ones lie between them.
    fn large_in(&self, reserve: &Reserve) -> u64 {
        let runs = reserve.contig().runs().iter();
        let fit: u64 = runs.map(|run| run.pages.len().saturating_sub(BETWEEN) / self.large).sum();
        fit.saturating_sub(1).max(fit.min(1))
    }
}

impl Series {
    fn report(&self, case: &str, report: &mut Report) {
        report.row(case, GLEBE, "us", &self.wall_us);
        if !self.wall_us.is_empty() {
            let each = self.lent as f64 / self.wall_us.len() as f64;
            report.remark(&format!("{each:.1} pages lent and called back each time"));
        }
    }
}

impl Outcome {
    /// All blocks of one round, with the writer gone on.
    fn round(
        &mut self,
        reserve: &Reserve,
        tenant: &mut Tenant,
        pool: &Pool,
        trap: &Trap,
        plan: Plan,
    ) -> Result<Vec<Held>, Error> {
        let before = reserve.stats().rejected_recalled;
        let index = self.rounds;
        let mut blocks = Vec::new();
        std::thread::scope(|scope| {
            let _woken = Woken(trap);
            let writer = scope.spawn(move || pool.put(OBJECT, index, trap.source()));
            while !trap.is_asleep() && !writer.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            for _ in 0..plan.large_in(reserve).max(1) {
                for _ in 0..plan.small_per_large {
                    blocks.extend(self.timed(reserve, tenant, trap, (1, plan.every)));
                }
                if plan.large_in(reserve) > 0 {
                    blocks.extend(self.timed(reserve, tenant, trap, (plan.large, plan.every)));
                }
            }
            self.take_the_rest(reserve, plan.large, &mut blocks);
            let slept = trap.wake();
            let put = writer.join().map_err(|_| Error::Thread("the writer panicked".into()))??;
            let taken = reserve.stats().rejected_recalled > before;
            let overtaken = slept && taken && matches!(put, Put::Rejected(_));
            self.overtaken += u64::from(overtaken);
            self.not_asleep += u64::from(!overtaken);
            Ok::<_, Error>(())
        })?;
        Ok(blocks)
    }

    fn timed(
        &mut self,
        reserve: &Reserve,
        tenant: &mut Tenant,
        trap: &Trap,
        (pages, every): (u64, Duration),
    ) -> Option<Held> {
        let due = clock::wall() + every;
        tenant.look(LOOKED_AT, reserve.len().get());
        let pause = due.saturating_sub(clock::wall());
        let held = ask(reserve, pause, Request::new(Pages::new(pages)), false);
        let asleep = trap.is_asleep();
        let Ok(mut held) = held else {
            self.faults.failures += 1;
            return None;
        };
        if asleep {
            let series = if pages == 1 { &mut self.small } else { &mut self.large };
            series.wall_us.push(held.elapsed.wall_us);
            series.lent += held.recalled;
        } else {
            self.not_asleep += 1;
        }
        self.faults.add(held.over_recall());
        // Every byte: the writer has half a page yet to write.
        self.faults.add(held.mark(Marking::Whole));
        tenant.put_new(LOOKED_AT);
        Some(held)
    }

    /// Blocks of ever fewer pages until none is left.
    fn take_the_rest(&mut self, reserve: &Reserve, largest: u64, blocks: &mut Vec<Held>) {
        let mut pages = largest;
        while pages > 0 {
            let request = Request::new(Pages::new(pages)).any();
            let Ok(mut held) = ask(reserve, Duration::ZERO, request, false) else {
                pages /= 2;
                continue;
            };
            self.faults.add(held.mark(Marking::Whole));
            blocks.push(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use glebe::units::Bytes;

    use super::super::map;
    use super::*;

    #[test]
    fn every_writer_sleeps_and_loses_its_page_and_writes_no_stray_byte() {
        let reserve = map(Bytes::mib(8), Reserve::builder()).unwrap();
        if let Some(why) = reserve.why_counted() {
            println!("skipped: {why}");
            return;
        }
        let mut tenant = Tenant::new(reserve.page_cache().pool("cache").unwrap());
        tenant.fill(&reserve);
        // None where runs are shorter.
        let large = reserve.len().get() / 4;
        let plan = Plan { rounds: 4, large, every: Duration::from_millis(1), ..PLAN };
        let outcome = run(&reserve, &mut tenant, plan).unwrap();
        assert_eq!((outcome.overtaken, outcome.not_asleep), (4, 0), "{outcome:?}");
        assert_eq!(outcome.faults, Faults::default());
        let large = plan.large_in(&reserve);
        assert_eq!(outcome.large.wall_us.len() as u64, 4 * large);
        assert_eq!(outcome.small.wall_us.len() as u64, 4 * large.max(1) * plan.small_per_large);
        assert_eq!((tenant.wrong_pages, tenant.failures), (0, 0));
        reserve.stats().check().unwrap();
    }
}
