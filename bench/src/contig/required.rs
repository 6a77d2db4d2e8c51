//! Long runs when they are needed: mapped out of a pool that stands, and required of it after the
//! machine's memory was fragmented.
//!
//! The pool (`glebe::contig::StandingPool`) is chosen for its runs out of more pages while the
//! machine still has them, and kept; it is mapped already, so that a run is a matter of bookkeeping
//! (`mapped`), unless it shall have a mapping of its own (`map`). Beside it a window is mapped onto
//! resident huge pages of a file, which is what a program can do by itself. Each run that is given
//! is checked against page frames read here. Unit: microseconds, base pages.

use glebe::contig::{Contig, StandingPool};
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};

use super::fragment::Fragmenter;
use super::samples::Samples;
use super::{memory, name, on_demand, proof, Error};
use crate::clock::Stopwatch;
use crate::interrupt;
use crate::peers::{longest_run, Peer, StandingPool as HugePageFile};
use crate::report::Report;

/// The run that is required.
const RUN: Bytes = Bytes::mib(64);
const RUN_QUICK: Bytes = Bytes::mib(8);
/// Sizes that are mapped out of a pool.
const SIZES: [Bytes; 2] = [Bytes::mib(2), Bytes::mib(128)];

struct Effort {
    pool: Bytes,
    /// How much the pool is chosen out of, where the machine has it.
    search: Bytes,
    run: Bytes,
    tries: u64,
    on_demand: on_demand::Effort,
    maps: u64,
    fragmented: Bytes,
}

const EFFORT: Effort = Effort {
    pool: Bytes::gib(2),
    search: Bytes::gib(8),
    run: RUN,
    tries: 20,
    on_demand: on_demand::Effort { run: RUN, tries: 10, reserve: Bytes::gib(1), evacuations: 10 },
    maps: 1000,
    fragmented: Bytes::new(u64::MAX),
};
const EFFORT_QUICK: Effort = Effort {
    pool: Bytes::mib(192),
    search: Bytes::mib(192),
    run: RUN_QUICK,
    tries: 20,
    on_demand: on_demand::Effort {
        run: RUN_QUICK,
        tries: 1,
        reserve: Bytes::mib(64),
        evacuations: 0,
    },
    maps: 50,
    fragmented: Bytes::mib(128),
};

/// Measures and reports.
pub(super) fn measure(quick: bool, largest: Bytes, report: &mut Report) -> Result<(), Error> {
    let effort = if quick { EFFORT_QUICK } else { EFFORT };
    let mut samples = Samples::default();
    let most = largest.min(memory::largest()?);
    let len = effort.pool.min(most);
    let contig = Contig::options().prefer_run(effort.run).map(len);
    prove(contig, report)?;
    kernel_run(len, report);
    let options = Contig::options().prefer_run(effort.run).search(effort.search.min(most));
    let pool = StandingPool::new(options, len);
    match &pool {
        Ok(pool) => {
            windows(Some(pool), &effort, &mut samples);
            mapped(pool, &effort, &mut samples);
            longest(pool, report)?;
        }
        Err(why) => {
            windows(None, &effort, &mut samples);
            let case = format!("required_{}", name(effort.run));
            for case in ["mapped_longest", &case] {
                samples.note(case, "glebe", "us", &why.to_string());
            }
            report.ratio("longest_run_vs_optimum", f64::NAN);
            report.unmeasured("required_failures", &why.to_string());
        }
    }
    let fragmenter = Fragmenter::start(effort.fragmented)?;
    report.note(&format!(
        "Runs were required while {} were held in single base pages, as many free between them.",
        fragmenter.held
    ));
    if let Ok(pool) = &pool {
        tries(pool, &effort, report, &mut samples)?;
    }
    on_demand::measure(fragmenter, &effort.on_demand, report, &mut samples);
    samples.report(report);
    Ok(())
}

/// What the library says of a mapping, and of its frames when it looks again.
fn prove(contig: Result<Contig, glebe::contig::Error>, report: &mut Report) -> Result<(), Error> {
    const CHECK: &str = "verify_disagreements";
    match contig {
        // Pages that nothing holds move between two readings: no disagreement.
        Ok(contig) if contig.pinned() => match proof::compare(&contig)? {
            Some(disagreements) => report.check(CHECK, disagreements),
            None => report.unmeasured(CHECK, "page frames are hidden; root sees them"),
        },
        Ok(contig) => {
            report.unmeasured(CHECK, &format!("{}: nothing holds its pages", contig.source()));
        }
        Err(why) => report.unmeasured(CHECK, &why.to_string()),
    }
    Ok(())
}

/// The longest run of the pool beside the best that its frames would make.
fn longest(pool: &StandingPool, report: &mut Report) -> Result<(), Error> {
    // All of it is free, and the lowest position is given first.
    let start = pool.take(page_size().bytes())?.addr();
    let pages = pool.len().pages_up(page_size());
    match proof::of_frames(start, pages) {
        Some((longest, optimum)) => {
            let mib = |pages: Pages| pages.bytes(page_size()).get() as f64 / (1 << 20) as f64;
            report.row("longest_run", "glebe", "MiB", &[mib(longest)]);
            report.remark(&format!("of {}", pool.len()));
            report.row("longest_run", "optimum", "MiB", &[mib(optimum)]);
            report.remark("of the same page frames");
            let ratio = longest.get() as f64 / optimum.get() as f64;
            report.ratio("longest_run_vs_optimum", ratio);
        }
        None => report.ratio("longest_run_vs_optimum", f64::NAN),
    }
    Ok(())
}

/// The longest run that the kernel gives unasked.
fn kernel_run(len: Bytes, report: &mut Report) {
    let pages = len.pages_up(page_size());
    match Peer::SurplusHugetlb.alloc(pages).map(|block| block.longest_run()) {
        Ok(Some(run)) => {
            let mib = run.bytes(page_size()).get() as f64 / (1 << 20) as f64;
            report.row("longest_run", "hugetlb", "MiB", &[mib]);
        }
        Ok(None) => report.absent("longest_run", "hugetlb", "MiB", "page frames are hidden"),
        Err(why) => report.absent("longest_run", "hugetlb", "MiB", &why.to_string()),
    }
}

/// Runs in a mapping of their own: the pool's, and windows onto resident huge pages of a file.
fn windows(pool: Option<&StandingPool>, effort: &Effort, samples: &mut Samples) {
    let file = HugePageFile::new(SIZES[SIZES.len() - 1].pages_up(page_size()));
    for _ in 0..effort.maps {
        for size in SIZES {
            interrupt::check();
            let case = format!("map_{}", name(size));
            if let Some(pool) = pool {
                let watch = Stopwatch::start();
                let window = pool.map(size);
                let took = watch.elapsed();
                match window {
                    Ok(_) => samples.add(&case, "glebe", "us", took.wall_us),
                    Err(why) => samples.note(&case, "glebe", "us", &why.to_string()),
                }
            }
            let who = HugePageFile::NAME;
            let sample = file.as_ref().map(|file| file.measure(size.pages_up(page_size())));
            match sample {
                Ok(sample) if sample.failed.is_none() => {
                    samples.add(&case, who, "us", sample.wall_us);
                }
                Ok(sample) => samples.note(&case, who, "us", &sample.failed.unwrap_or_default()),
                Err(why) => samples.note(&case, who, "us", &why.to_string()),
            }
        }
    }
}

/// Runs of the mapping that is there.
fn mapped(pool: &StandingPool, effort: &Effort, samples: &mut Samples) {
    let longest = pool.largest_free_run().unwrap_or_default().bytes(page_size());
    let mut sizes: Vec<Bytes> = SIZES.into_iter().filter(|&size| size < longest).collect();
    sizes.push(longest);
    for _ in 0..effort.maps {
        for &size in &sizes {
            interrupt::check();
            let case = match size == longest {
                true => "mapped_longest".to_string(),
                false => format!("mapped_{}", name(size)),
            };
            let watch = Stopwatch::start();
            let piece = pool.take(size);
            let took = watch.elapsed();
            match piece {
                Ok(piece) => {
                    samples.add(&case, "glebe", "us", took.wall_us);
                    samples.note(&case, "glebe", "us", &piece.len().to_string());
                }
                Err(why) => samples.note(&case, "glebe", "us", &why.to_string()),
            }
        }
    }
}

/// The required run, from the pool, while what else is free lies in single pages.
fn tries(
    pool: &StandingPool,
    effort: &Effort,
    report: &mut Report,
    samples: &mut Samples,
) -> Result<(), Error> {
    let case = format!("required_{}", name(effort.run));
    if pool.largest_free_run()? < effort.run.pages_up(page_size()) {
        let why = format!("the machine had no run of {} beforehand", effort.run);
        samples.note(&case, "glebe_pool", "us", &why);
        report.unmeasured("required_failures", &why);
        return Ok(());
    }
    let mut failures = 0;
    for _ in 0..effort.tries {
        match required(pool, effort.run) {
            Some(took_us) => samples.add(&case, "glebe_pool", "us", took_us),
            None => failures += 1,
        }
    }
    report.check("required_failures", failures);
    Ok(())
}

/// A run of the pool that page frames show to be one; how long it took.
fn required(pool: &StandingPool, run: Bytes) -> Option<f64> {
    interrupt::check();
    let pages = run.pages_up(page_size());
    let watch = Stopwatch::start();
    let piece = pool.take(run).ok()?;
    let took = watch.elapsed().wall_us;
    let seen = longest_run(piece.addr(), pages);
    // Where frames are hidden the pool's word stands.
    seen.is_none_or(|seen| seen == pages).then_some(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_the_pool_is_one_or_none_is_said_to_be() {
        let pool = match StandingPool::new(Contig::options(), Bytes::mib(8)) {
            Ok(pool) => pool,
            Err(why) => return println!("skipped: {why}"),
        };
        let run = pool.largest_free_run().unwrap().bytes(page_size());
        assert!(required(&pool, run).is_some());
        assert!(required(&pool, Bytes::gib(1)).is_none());
    }
}
