//! Allocates, writes and frees blocks of one size, one after another. Speed drops where an
//! allocator stops keeping freed blocks.
//!
//! Unit: gigabytes written per second of CPU time of all threads.

use std::hint::black_box;
use std::io::Write;
use std::time::Duration;

use glebe::units::Bytes;
use serde::{Deserialize, Serialize};

use super::peer::Peers;
use super::usage::{Spent, Usage};
use super::worker::{self, Job, Worker};
use crate::report::Report;
use crate::turns::{turns, worst};
use crate::{clock, Outcome};

const UNIT: &str = "GB/cpu-s";
/// Sizes on both sides of the limits from which glibc and jemalloc give freed blocks back at once.
const SIZES: [(&str, Bytes); 11] = [
    ("512k", Bytes::new(512 << 10)),
    ("1m", Bytes::mib(1)),
    ("2m", Bytes::mib(2)),
    ("4m", Bytes::mib(4)),
    ("7m", Bytes::mib(7)),
    ("9m", Bytes::mib(9)),
    ("16m", Bytes::mib(16)),
    ("33m", Bytes::mib(33)),
    ("48m", Bytes::mib(48)),
    ("64m", Bytes::mib(64)),
    ("128m", Bytes::mib(128)),
];
const FEW: [&str; 4] = ["512k", "9m", "33m", "128m"];
const WARM_UP: u64 = 2;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct SizePlan {
    size: usize,
    millis: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Done {
    blocks: u64,
    spent: Spent,
}

pub(super) fn measure(peers: &Peers, report: &mut Report) -> Outcome {
    let count = report.plan(1, 9);
    let quick = report.options.quick;
    // Long samples even out changes of a processor's clock frequency.
    let millis = report.plan(20, 200);
    let sizes = SIZES.iter().filter(|(name, _)| !quick || FEW.contains(name));
    let sizes: Vec<_> = sizes.collect();
    let cases: Vec<_> = sizes
        .iter()
        .flat_map(|(name, size)| (0..peers.here.len()).map(move |nth| (*name, *size, nth)))
        .collect();
    for (_, (name, size, nth)) in turns("malloc, sizes", count, &cases) {
        let plan = SizePlan { size: size.as_usize(), millis };
        let peer = &peers.here[nth];
        let mut worker = Worker::start(peer, None, &Job::Sizes(plan))?;
        let done: Option<Done> = worker.answer()?;
        let Done { blocks, spent } = done.ok_or("a worker was killed without a limit")?;
        let bytes = (blocks * size.get()) as f64;
        report.add(&format!("size_{name}"), peer.who, UNIT, bytes / 1e9 / spent.cpu_s);
        let faults = spent.faults as f64 / blocks as f64;
        report.add(&format!("size_{name}"), peer.who, "faults/block", faults);
        worker.end()?;
    }
    peers.name_absent("size_512k", UNIT, report);
    let mut ratios = Vec::new();
    for (name, _) in &sizes {
        let ratio = peers.versus_best(&format!("size_{name}"), UNIT, report);
        report.ratio(&format!("size_{name}_vs_best"), ratio);
        ratios.push(ratio);
    }
    report.ratio("size_cliff", worst(&ratios));
    report.note(
        "size_N: a block of N is allocated, each byte written, and freed, again and again, in a \
         process of its own; size_cliff is glebe's worst figure over the best peer's at that size.",
    );
    Ok(())
}

pub(super) fn inside(plan: SizePlan, out: &mut dyn Write) -> Outcome {
    let block = |nth: u64| drop(black_box(vec![nth as u8 | 1; plan.size]));
    (0..WARM_UP).for_each(block);
    let (before, end) = (Usage::now()?, clock::wall() + Duration::from_millis(plan.millis));
    let mut blocks = 0;
    while clock::wall() < end {
        block(blocks);
        blocks += 1;
    }
    worker::say(out, &Done { blocks, spent: before.spent()? })
}
