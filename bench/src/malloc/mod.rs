//! The benchmark `malloc`: glebe-malloc and other preloaded allocators beside the C library's.
//!
//! Each of the `PARTS` measures its allocators (peers) in turn. The measured code is a child with
//! the peer's allocator ([`worker`]) or another program. The check `oom_kills` counts processes
//! with glebe that the kernel killed; a kill with another peer is in that peer's row.

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
use crate::report::Report;
use crate::Outcome;
use peer::{Peer, Peers};

type Measure = fn(&Peers, &mut Report) -> Outcome;

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

pub(crate) fn run(report: &mut Report) -> Outcome {
    let only = report.options.only.clone();
    let known = || PARTS.iter().map(|(name, _)| *name);
    let is_known = |word: &String| known().any(|name| is_of(word, name));
    if let Some(unknown) = only.iter().find(|word| !is_known(word)) {
        let known: Vec<&str> = known().collect();
        let known = known.join(", ");
        return Err(format!("--only {unknown}: no part or case; parts are {known}").into());
    }
    let peers = Peers::find(report.options.lib.as_deref());
    for (name, measure) in PARTS {
        if only.is_empty() || only.iter().any(|word| is_of(word, name)) {
            measure(&peers, report)?;
        }
    }
    engine::sum_up(report);
    report.unmeasured(OOM_KILLS, "no memory cgroup, or no glebe-malloc");
    report.unmeasured("wrong_bytes", "no part that looks at bytes was run");
    Ok(())
}

/// Returns true if `word` is `part`, or a case of `part` that `--only` may name.
fn is_of(word: &str, part: &str) -> bool {
    let cases: Vec<String> = match part {
        "ebizzy" => ebizzy::cases().collect(),
        "programs" => programs::cases().map(|(case, _)| case).collect(),
        "suite" => suite::cases().map(|(case, _)| case).collect(),
        _ => Vec::new(),
    };
    word == part || cases.iter().any(|case| case == word)
}

fn is_wanted(case: &str, part: &str, report: &Report) -> bool {
    let only = &report.options.only;
    only.is_empty() || only.iter().any(|word| word == part || word == case)
}

fn grouped(
    limit: Bytes,
    (case, who, unit): (&str, &str, &'static str),
    report: &mut Report,
) -> Option<Group> {
    Group::make(limit).inspect_err(|why| report.remark(case, who, unit, why)).ok()
}

fn killed(peer: &Peer, group: &Group, report: &mut Report) {
    if peer.is_glebe() {
        report.check(OOM_KILLS, group.kills());
    }
}
