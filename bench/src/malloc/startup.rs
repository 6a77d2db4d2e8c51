//! Measures the time that `true` takes from start to end, with each allocator preloaded. The ratio
//! `startup_cost_ms_over_mimalloc` is glebe's median minus mimalloc's. Unit: milliseconds.

use std::process::{Command, Stdio};

use super::peer::{Peers, MIMALLOC};
use crate::report::{Report, GLEBE};
use crate::turns::turns;
use crate::{clock, Outcome};

const CASE: &str = "startup_ms";
const UNIT: &str = "ms";

pub(super) fn measure(peers: &Peers, report: &mut Report) -> Outcome {
    let count = report.plan(20, 500);
    for (_, nth) in turns("malloc, start-up", count, &(0..peers.here.len()).collect::<Vec<_>>()) {
        let peer = &peers.here[nth];
        let mut command = Command::new("true");
        peer.set(command.stdin(Stdio::null()));
        let start = clock::wall();
        let status = command.status()?;
        let took = clock::wall() - start;
        if !status.success() {
            return Err(format!("true, with {}: {status}", peer.who).into());
        }
        report.add(CASE, peer.who, UNIT, took.as_secs_f64() * 1e3);
    }
    peers.name_absent(CASE, UNIT, report);
    let added = report.median(CASE, GLEBE) - report.median(CASE, MIMALLOC);
    report.ratio("startup_cost_ms_over_mimalloc", added);
    report.note(
        "startup_ms: `true` started, and its end waited for; startup_cost_ms_over_mimalloc is the \
         median with glebe less the median with mimalloc, in milliseconds, smaller is better.",
    );
    Ok(())
}
