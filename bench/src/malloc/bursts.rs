//! Measures bursts: four processes, two at a time, allocate memory in chunks, fill it and free it.
//! A limited group lacks memory for four bursts at a time.
//!
//! Two file locks admit two processes, because the kernel releases the locks of a killed process.
//! Unit: milliseconds of CPU time per burst, of all threads, including the time between bursts.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use glebe::page_size;
use glebe::units::Bytes;
use rustix::fs::{flock, FlockOperation};
use serde::{Deserialize, Serialize};

use super::peer::{Peer, Peers, EAGER, NEVER};
use super::usage::{Spent, Usage};
use super::worker::{self, together, Job, Worker};
use super::{grouped, killed};
use crate::pressure::Group;
use crate::report::{Report, GLEBE};
use crate::turns::{median, turns};
use crate::{clock, Outcome};

const LIMITED: &str = "bursts_limited";
const UNLIMITED: &str = "bursts_unlimited";
const MS: &str = "ms cpu/burst";
const FAULTS: &str = "faults/burst";
const PROCESSES: usize = 4;
/// Bytes of a burst, and the memory limit of the group: enough for two bursts at a time, but not
/// for four beside the processes' other memory.
const FULL: (Bytes, Bytes) = (Bytes::mib(128), Bytes::mib(400));
const QUICK: (Bytes, Bytes) = (Bytes::mib(64), Bytes::mib(256));
const CHUNK: Bytes = Bytes::new(512 << 10);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BurstPlan {
    nth: usize,
    tokens: [PathBuf; 2],
    millis: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Done {
    bursts: u64,
    wrong: u64,
    spent: Spent,
}

pub(super) fn measure(peers: &Peers, report: &mut Report) -> Outcome {
    let (count, (burst, limit)) = (report.plan(1, 9), report.plan(QUICK, FULL));
    let dir = tempfile::tempdir_in(report.options.scratch())?;
    let tokens = ["a", "b"].map(|name| dir.path().join(name));
    tokens.iter().try_for_each(|path| File::create(path).map(drop))?;
    let everybody: Vec<usize> = (0..peers.here.len()).collect();
    for (_, nth) in turns("malloc, bursts", count, &everybody) {
        let peer = &peers.here[nth];
        processes(UNLIMITED, peer, None, &tokens, report)?;
        let Some(group) = grouped(limit, (LIMITED, peer.who, MS), report) else { continue };
        processes(LIMITED, peer, Some(&group), &tokens, report)?;
        killed(peer, &group, report);
    }
    peers.name_absent(LIMITED, MS, report);
    ratios(report);
    report.note(&format!(
        "bursts: {PROCESSES} processes; two at a time fill {burst} in chunks of 512 KiB and free \
         them; in a group of {limit} in bursts_limited. burst_vs_never is of glebe with the limit \
         and never purging without: with it that is killed. A process that was killed has no \
         figures, and those left have more memory.",
    ));
    Ok(())
}

fn processes(
    case: &str,
    peer: &Peer,
    group: Option<&Group>,
    tokens: &[PathBuf; 2],
    report: &mut Report,
) -> Outcome {
    let (millis, (burst, _)) = (report.plan(1, 2000), report.plan(QUICK, FULL));
    let plan =
        |nth| Job::Bursts(BurstPlan { nth, tokens: tokens.clone(), millis, bytes: burst.get() });
    let workers = (0..PROCESSES).map(|nth| Worker::start(peer, group, &plan(nth)));
    let mut workers = workers.collect::<Outcome<Vec<_>>>()?;
    for worker in &mut workers {
        worker.answer::<()>()?;
    }
    let done: Vec<Done> = together(&mut workers)?;
    for worker in workers {
        worker.end()?;
    }
    report.check("wrong_bytes", done.iter().map(|done| done.wrong).sum());
    let bursts = done.iter().map(|done| done.bursts).sum::<u64>() as f64;
    if bursts > 0.0 {
        let cpu_s: f64 = done.iter().map(|done| done.spent.cpu_s).sum();
        let faults: u64 = done.iter().map(|done| done.spent.faults).sum();
        report.add(case, peer.who, MS, cpu_s * 1e3 / bursts);
        report.add(case, peer.who, FAULTS, faults as f64 / bursts);
    }
    let lost = PROCESSES - done.len();
    (0..lost).for_each(|_| report.outcome(case, peer.who, MS, Err("a process was killed")));
    Ok(())
}

fn ratios(report: &mut Report) {
    let of = |case, who| median(report.of(case, who, MS));
    let (ours, free) = (of(LIMITED, GLEBE), of(UNLIMITED, GLEBE));
    let all = [
        ("burst_vs_never", of(UNLIMITED, NEVER) / ours),
        ("burst_vs_eager", of(LIMITED, EAGER) / ours),
        ("burst_unlimited_vs_never", of(UNLIMITED, NEVER) / free),
    ];
    all.into_iter().for_each(|(name, ratio)| report.ratio(name, ratio));
}

pub(super) fn inside(plan: &BurstPlan, out: &mut dyn Write) -> Outcome {
    let tokens: Vec<File> = plan.tokens.iter().map(File::open).collect::<Result<_, _>>()?;
    worker::say(out, &())?;
    worker::next_step(&mut String::new())?;
    let (mut turn, mut wrong) = (plan.nth, 0);
    let mut next = || -> Outcome {
        let token = &tokens[turn % tokens.len()];
        flock(token, FlockOperation::LockExclusive)?;
        wrong += burst(plan.bytes, turn as u8 | 1);
        flock(token, FlockOperation::Unlock)?;
        turn += 1;
        Ok(())
    };
    // The first burst uses new memory and does not count.
    next()?;
    let (before, end) = (Usage::now()?, clock::wall() + Duration::from_millis(plan.millis));
    let mut bursts = 0;
    while bursts == 0 || clock::wall() < end {
        next()?;
        bursts += 1;
    }
    worker::say(out, &Done { bursts, wrong, spent: before.spent()? })
}

/// Returns the number of wrong bytes among the checked ones.
fn burst(bytes: u64, byte: u8) -> u64 {
    let size = CHUNK.as_usize();
    let chunks = (0..bytes / CHUNK.get()).map(|_| black_box(vec![byte; size]));
    let chunks: Vec<Vec<u8>> = chunks.collect();
    // Checks one byte per page, because memory is lost in whole pages.
    let page = page_size().bytes().as_usize();
    let seen = chunks.iter().flat_map(|chunk| chunk.iter().step_by(page));
    seen.map(|is| u64::from(*is != byte)).sum()
}
