//! Measures how contiguous runs are had while memory is fragmented: from a reserve made earlier,
//! and on demand. Measures runs on demand again after the fragmenting program has ended, then a
//! default reserve, and a run of evacuated memory blocks.
//!
//! Before glebe tries to get a run on demand, [`crate::frames`] looks for the longest free run. The
//! try should succeed if that run has at least twice the required length. Units: microseconds to
//! get a run, milliseconds to give it back, MiB.

use glebe::contig::{Contig, Error, Source};
use glebe::page_size;
use glebe::reserve::Reserve;
use glebe::units::Bytes;

use super::fragment::Taker;
use super::reserved::run_len;
use super::{mib, name, GLEBE};
use crate::clock::timed;
use crate::frames::{longest_free_run, longest_run, page_cache};
use crate::memory::Way;
use crate::report::Report;
use crate::turns::{rounds, NO_END};
use crate::Outcome;

const FAILURES: &str = "required_failures";
const BLOCKS: &str = "blocks";

/// Skips memory blocks if the option `quick` is set, because their evacuation changes the whole
/// machine.
pub(super) fn measure(reserve: Outcome<Reserve>, report: &mut Report) -> Outcome {
    let run = run_len(report);
    // `seen` counts tries on demand while a free run of twice the length existed, and `had` their
    // successes.
    let (mut seen, mut had) = (0_u64, 0_u64);
    let fragmenter = Taker::new("fragment", report.plan(Bytes::mib(128), Bytes::new(u64::MAX)))?;
    report.note(&format!(
        "Runs were required while {} were held in single base pages, as many free between them.",
        fragmenter.held
    ));
    match reserve.and_then(|reserve| of_reserve(&reserve, run, report)) {
        Ok(failures) => report.check(FAILURES, failures),
        Err(why) => {
            report.outcome(&case(run), "glebe_reserve", "us", Err(&why));
            report.unmeasured(FAILURES, &why.to_string());
        }
    }
    ask("glebe_on_demand", run, (&mut seen, &mut had), report);
    for (who, way) in [("surplus_hugetlb", Way::Hugetlb), ("thp", Way::Thp)] {
        // Each try may make the kernel compact memory for seconds, so there are few tries.
        for _ in rounds(who, report.plan(1, 10), NO_END) {
            report.outcome(&case(run), who, "us", of_kernel(way, run));
        }
    }
    drop(fragmenter);
    ask("glebe_after_it_ended", run, (&mut seen, &mut had), report);
    report.note(&format!(
        "Of {seen} runs required on demand while a free run of twice the length was there, {had} \
         were had; where frames are hidden nobody can tell."
    ));
    report.ratio("required_on_demand", had as f64 / seen as f64);
    if report.options.quick {
        report.remark("evacuate_128m", BLOCKS, "us", "not in a quick run");
    } else {
        for _ in rounds("contig, memory blocks", 10, NO_END) {
            let of_blocks = || Contig::options().source(Source::Blocks).build(Bytes::mib(128));
            once("evacuate_128m", BLOCKS, of_blocks, report);
        }
    }
    let of_default = of_default(report.plan(Bytes::mib(64), Bytes::gib(1)), report);
    report.ratio("default_run_vs_longest", of_default.unwrap_or(f64::NAN));
    Ok(())
}

fn case(run: Bytes) -> String {
    format!("required_{}", name(run))
}

/// Allocates the run 20 times and checks its page frames. Returns the number of failures. Fails if
/// the reserve has no such run.
fn of_reserve(reserve: &Reserve, run: Bytes, report: &mut Report) -> Outcome<u64> {
    let pages = run.pages_up(page_size());
    if reserve.largest_run()? < pages {
        return Err(format!("the machine had no run of {run} beforehand").into());
    }
    let mut failures = 0;
    for _ in 0..20 {
        let (block, took) = timed(|| reserve.alloc(pages));
        // If the frames are hidden, the block counts as a run.
        let is_run = |addr| longest_run(addr, pages).is_none_or(|seen| seen == pages);
        match block.is_ok_and(|block| is_run(block.as_ptr().addr())) {
            true => report.add(&case(run), "glebe_reserve", "us", took.wall_us),
            false => failures += 1,
        }
    }
    Ok(failures)
}

fn ask(who: &str, run: Bytes, (seen, all_had): (&mut u64, &mut u64), report: &mut Report) {
    for _ in rounds(who, report.plan(1, 10), NO_END) {
        let twice = Bytes::new(2 * run.get());
        let is_seen = longest_free_run().is_ok_and(|longest| longest >= twice);
        let cache = page_cache();
        let had = || Contig::options().require_run(run).build(run);
        let is_had = once(&case(run), who, had, report);
        report.add("page_cache_lost", who, "MiB", mib(cache.saturating_sub(page_cache())));
        *seen += u64::from(is_seen);
        *all_had += u64::from(is_seen && is_had);
    }
}

/// Gets memory, gives it back and reports both times. Returns true if it got the memory.
fn once(
    case: &str,
    who: &str,
    had: impl FnOnce() -> Result<Contig, Error>,
    report: &mut Report,
) -> bool {
    let (contig, took) = timed(had);
    report.outcome(case, who, "us", contig.as_ref().map(|_| took.wall_us));
    let given_back = contig.map(|contig| timed(|| drop(contig)).1.wall_us / 1e3);
    let is_had = given_back.is_ok();
    report.outcome("given_back_ms", who, "ms", given_back.map_err(|_| "there was no run"));
    is_had
}

/// Returns the time in microseconds. Fails if there is no memory, or if its frames are not one run.
fn of_kernel(way: Way, run: Bytes) -> Outcome<f64> {
    let memory = way.obtain(run)?;
    match memory.longest_run() {
        Some(seen) if seen < run.pages_up(page_size()) => {
            Err(format!("longest run {}", seen.bytes(page_size())).into())
        }
        _ => Ok(memory.took.wall_us),
    }
}

/// Returns the longest run of a default reserve divided by the best possible: the smaller of `len`
/// and the longest free run. Returns 0 if no reserve was made, `None` if frames are hidden or no
/// run is free.
fn of_default(len: Bytes, report: &mut Report) -> Option<f64> {
    let best = longest_free_run().ok()?.min(len);
    let (reserve, took) = timed(|| Reserve::new(len));
    let case = format!("default_reserve_{}", name(len));
    report.outcome(&case, GLEBE, "us", reserve.as_ref().map(|_| took.wall_us));
    let Ok(reserve) = reserve else { return Some(0.0) };
    let contig = reserve.contig();
    let run = longest_run(contig.mapping().addr(), contig.len().pages_up(page_size()))?;
    let run = run.bytes(page_size());
    let text = format!("longest run {run}; free was one of {best} or more");
    report.remark(&case, GLEBE, "us", &text);
    (best > Bytes::ZERO).then(|| run.get() as f64 / best.get() as f64)
}
