//! Measures a program that touches more data than may be in memory: in a region with a budget, with
//! the kernel's swap on zram under an equal limit, and in a mapped file under that limit.
//!
//! Each run is a child in its own cgroup. The child writes all pages, touches pages to warm up, and
//! then makes the same number of touches while measured. Every touch checks a stamp; at the end
//! every byte is compared. Units: thousand operations per second of CPU time, the kernel's
//! included, and of wall time; misses per operation.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use glebe::page_size;
use glebe::units::{Bytes, Pages};
use rustix::fs::{fadvise, Advice};
use serde::{Deserialize, Serialize};

use super::kernel::KernelSwap;
use super::touched::{map, pool_limit, stamp, stamped, Corpus, Touched, Wrong};
use super::trace::{lru_misses, Pattern};
use super::{KERNEL, REGION};
use crate::clock::{process_cpu, wall};
use crate::pressure::{ask, enter, nameless, Group};
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::turns::{rounds, worst, NO_END};
use crate::Outcome;

const SLACK: Bytes = Bytes::new(512 << 10);
/// Minimum number of runs with the kernel's swap that survive the OOM killer. With fewer, a full
/// benchmark gives no ratio.
const SURVIVORS: usize = 5;
const FILE_SHARE: usize = 16;
const CPU: &str = "kops/CPU-s";
const WALL: &str = "kops/s";
const MISSES: &str = "misses/op";
const LRU: &str = "exact LRU";
/// Suffixes of a kind's cases: reads only, and with writes.
const SUFFIXES: [&str; 2] = ["reads", "writes"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Side {
    Region,
    Kernel,
    File,
}

const SIDES: [Side; 3] = [Side::Region, Side::Kernel, Side::File];

impl Side {
    fn who(self) -> &'static str {
        match self {
            Self::Region => REGION,
            Self::Kernel => KERNEL,
            Self::File => "mmap of a file",
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SwapJob {
    side: Side,
    pattern: Pattern,
    budget_pages: u64,
    data_pages: u64,
    writes_percent: u64,
    /// Measured touches; the same number warms up.
    touches: usize,
    corpus: PathBuf,
    scratch: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Done {
    cpu_s: f64,
    wall_s: f64,
    /// Misses in the measured touches: the region's, and those of an exact LRU.
    misses: u64,
    lru_misses: u64,
    wrong: Wrong,
}

/// A kind of run: name, data per byte of the budget, order of touches.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) times: u64,
    pub(super) pattern: Pattern,
}

pub(super) fn measure(kind: &Kind, corpus: &Path, report: &mut Report) -> Outcome {
    let (budget_pages, touches, count) = report.plan((1024, 2_000, 1), (8192, 300_000, 7));
    let data_pages = budget_pages * kind.times;
    let data = Pages::new(data_pages).bytes(page_size());
    let swap = KernelSwap::new(data + data);
    let job = SwapJob {
        side: Side::Region,
        pattern: kind.pattern,
        budget_pages,
        data_pages,
        writes_percent: 0,
        touches,
        corpus: corpus.to_owned(),
        scratch: report.options.scratch(),
    };
    for round in rounds(kind.name, count, NO_END) {
        for (suffix, writes_percent) in SUFFIXES.into_iter().zip([0, 30]) {
            for nth in 0..SIDES.len() {
                let side = SIDES[(nth + round as usize) % SIDES.len()];
                let case = format!("{}_{suffix}", kind.name);
                // Touches a file less often, because a miss waits for the device.
                let touches = if side == Side::File { touches / FILE_SHARE } else { touches };
                match &swap {
                    Err(why) if side == Side::Kernel => {
                        report.remark(&case, side.who(), CPU, &why.to_string());
                    }
                    _ => one(
                        &case,
                        &SwapJob { side, writes_percent, touches, ..job.clone() },
                        report,
                    )?,
                }
            }
        }
    }
    ratios(kind.name, report);
    Ok(())
}

fn one(case: &str, job: &SwapJob, report: &mut Report) -> Outcome {
    let who = job.side.who();
    let bytes = |pages| Pages::new(pages).bytes(page_size());
    // The compressed copies of a region count in the group, those of the kernel's swap do not.
    let copies = match job.side {
        Side::Region => pool_limit(bytes(job.data_pages)),
        _ => Bytes::ZERO,
    };
    let group = Group::make(bytes(job.budget_pages) + copies + SLACK);
    let group = group.inspect_err(|why| report.remark(case, who, CPU, why));
    let Ok(group) = group else { return Ok(()) };
    if job.side == Side::Kernel {
        group.allow_swap()?;
    }
    let (answer, kills) = ask(&group, "swap-run", &serde_json::to_string(job)?)?;
    report.add("oom_kills", who, "kills", kills as f64);
    let Some(text) = answer else {
        report.outcome(case, who, CPU, Err("killed for want of memory"));
        return Ok(());
    };
    let done: Done = serde_json::from_str(&text)?;
    let operations = job.touches as f64 / 1e3;
    report.add(case, who, CPU, operations / done.cpu_s);
    report.add(case, who, WALL, operations / done.wall_s);
    super::judged(done.wrong, report);
    if job.side == Side::Region {
        let each = |misses: u64| misses as f64 / job.touches as f64;
        report.add(case, who, MISSES, each(done.misses));
        report.add(case, LRU, MISSES, each(done.lru_misses));
    }
    Ok(())
}

fn ratios(name: &str, report: &mut Report) {
    let least = report.plan(1, SURVIVORS);
    let mut speeds = Vec::new();
    for suffix in SUFFIXES {
        let case = format!("{name}_{suffix}");
        let kernels = report.of(&case, KERNEL, CPU).len();
        let ratio = match kernels >= least {
            true => report.median(&case, REGION) / report.median(&case, KERNEL),
            false => f64::NAN,
        };
        report.ratio(&format!("{name}_vs_zram_swap_{suffix}"), ratio);
        speeds.push(ratio);
    }
    report.ratio(&format!("{name}_vs_zram_swap"), worst(&speeds));
}

/// Adds the worst ratio of an exact LRU's misses to the region's misses. Leaves sequential touches
/// out, because an LRU always misses in them.
pub(super) fn sum_up<'a>(kinds: impl Iterator<Item = &'a Kind>, report: &mut Report) {
    let mut ratios = Vec::new();
    for kind in kinds.filter(|kind| kind.pattern == Pattern::Zipf) {
        for case in SUFFIXES.map(|suffix| format!("{}_{suffix}", kind.name)) {
            let median = |who| report.figure((&case, who, MISSES), |summary| summary.median);
            ratios.push(median(LRU) / median(REGION));
        }
    }
    report.ratio("misses_vs_lru", worst(&ratios));
    report.note(&format!(
        "runs: under the same limit, with {SLACK} for the program, of which the kernel's side may \
         have pages too; a region's has room for its copies, the kernel's are in no group. A \
         ratio is of medians, the worse of reads and of 30 % writes. Misses: the oracle's over the \
         region's, pages that were read ahead counted too."
    ));
}

fn on_disk(scratch: &Path, len: Bytes, corpus: &Corpus<'_>) -> Outcome<File> {
    let file = nameless(scratch, len)?;
    let mut out = BufWriter::new(&file);
    let mut pages = 0..len.pages_down(page_size()).get();
    pages.try_for_each(|page| out.write_all(&stamped(corpus, page, 0)))?;
    out.flush()?;
    drop(out);
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(file)
}

/// Does the job in the child, in the group `dir`.
pub(crate) fn inside(dir: &Path, job: &str) -> Outcome<String> {
    let job: SwapJob = serde_json::from_str(job)?;
    // Memory allocated before `enter` does not count in the group.
    let corpus = map(&job.corpus)?;
    let corpus = Corpus(&corpus);
    let touches = job.pattern.touches(job.data_pages, 2 * job.touches);
    let (warm, measured) = touches.split_at(job.touches);
    let lru_misses = match job.side {
        Side::Region => {
            let before = (0..job.data_pages as u32).chain(warm.iter().copied());
            lru_misses(job.budget_pages, before, measured)
        }
        _ => 0,
    };
    let mut versions = vec![0_u32; job.data_pages as usize];
    versions.fill(1); // makes all pages present
    versions.fill(0);
    let len = Pages::new(job.data_pages).bytes(page_size());
    let file = match job.side {
        Side::File => Some(on_disk(&job.scratch, len, &corpus)?),
        _ => None,
    };
    enter(dir);
    let budget = Pages::new(job.budget_pages).bytes(page_size());
    let mut memory = match (job.side, &file) {
        (Side::File, Some(file)) => Touched::file(job.data_pages, file)?,
        (Side::Region, _) => Touched::region(job.data_pages, budget)?,
        _ => Touched::plain(job.data_pages)?,
    };
    if file.is_none() {
        memory.fill(&corpus);
    }
    let (mut random, mut wrong) = (Random::new(11), Wrong::default());
    let mut go = |touches: &[u32]| {
        for &page in touches {
            let (nth, version) = (u64::from(page), &mut versions[page as usize]);
            wrong.look(memory.stamp(nth), stamp(nth, *version));
            if random.below(100) < job.writes_percent {
                *version += 1;
                memory.set_stamp(nth, stamp(nth, *version));
            }
        }
    };
    go(warm);
    let loaded = || memory.as_region().map_or(0, |region| region.stats().loaded);
    let (misses, cpu, start) = (loaded(), process_cpu(), wall());
    go(measured);
    let (cpu, wall) = (process_cpu() - cpu, wall() - start);
    let misses = loaded() - misses;
    wrong.add(memory.judge(&corpus, |page| versions[page as usize]));
    let (cpu_s, wall_s) = (cpu.as_secs_f64(), wall.as_secs_f64());
    Ok(serde_json::to_string(&Done { cpu_s, wall_s, misses, lru_misses, wrong })?)
}
