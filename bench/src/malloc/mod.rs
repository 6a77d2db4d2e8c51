//! The benchmark `malloc`: glebe-malloc beside the allocators that programs use, each preloaded.
//!
//! A part is one question, asked of all peers by turns: the ebizzy-like loop, memory given back,
//! bursts, sizes, start-up, real programs, a public suite. What is measured runs in children of
//! this program ([`worker`]), whose own allocator is what was preloaded, or is a program of others
//! ([`ran`]). A child that the kernel kills is counted: glebe's in the check `oom_kills`, those of
//! others in their rows.

mod bursts;
mod ebizzy;
mod engine;
mod give_back;
mod peer;
mod programs;
mod ran;
mod redis;
mod sizes;
mod startup;
mod suite;
mod trim;
mod usage;
mod worker;

use glebe::units::Bytes;
pub(crate) use ran::start;
pub(crate) use worker::inside;

use crate::pressure::Group;
use crate::report::{Report, GLEBE};
use crate::Outcome;
use peer::{Peer, Peers};

type Measure = fn(&Peers, &mut Report) -> Outcome;

/// The parts, in the order in which they run.
const PARTS: [(&str, Measure); 7] = [
    ("ebizzy", ebizzy::measure),
    ("give-back", give_back::measure),
    ("bursts", bursts::measure),
    ("sizes", sizes::measure),
    ("start-up", startup::measure),
    ("programs", programs::measure),
    ("suite", suite::measure),
];

const OOM_KILLS: &str = "oom_kills";

/// Runs the parts that were asked for, or all.
pub(crate) fn run(report: &mut Report) -> Outcome {
    let only = report.options.only.clone();
    let known = PARTS.map(|(name, _)| name);
    if let Some(unknown) = only.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("--only {unknown}: no part; there are {}", known.join(", ")).into());
    }
    let peers = Peers::find(report.options.lib.as_deref());
    for (name, measure) in PARTS {
        if only.is_empty() || only.iter().any(|part| part == name) {
            measure(&peers, report)?;
        }
    }
    engine::sum_up(report);
    report.unmeasured(OOM_KILLS, "no memory cgroup, or no glebe-malloc");
    report.unmeasured("wrong_bytes", "no part that looks at bytes was run");
    Ok(())
}

/// A group that may hold `limit`; a row that says why there is none.
fn grouped(
    limit: Bytes,
    (case, who, unit): (&str, &str, &'static str),
    report: &mut Report,
) -> Option<Group> {
    Group::make(limit).inspect_err(|why| report.remark(case, who, unit, why)).ok()
}

/// Counts those of glebe's that the kernel killed in a group.
fn killed(peer: &Peer, group: &Group, report: &mut Report) {
    if peer.who == GLEBE {
        report.check(OOM_KILLS, group.kills());
    }
}
