//! Measures allocators when one program needs memory that another program has freed.
//!
//! Program A fills 400 MiB (80 MiB in a quick run) with objects of one size and frees them, twice;
//! in some cases it rests; then it fills again (reuse). A frees and rests again; program B fills
//! the same amount in the same memory cgroup, which cannot hold both, and ends; A fills again.
//! Last, A frees all but a quarter and trims, which shows how much it holds unused. B always has
//! the C library's allocator, so that only A's varies. Units: milliseconds of CPU time of all
//! threads, page faults, percent.

use std::hint::black_box;
use std::io::Write;
use std::time::Duration;

use glebe::units::Bytes;
use serde::{Deserialize, Serialize};

use super::peer::{Peer, Peers, Trim, GLIBC, NEVER};
use super::usage::{resident, Spent, Usage};
use super::worker::{self, Job, Worker};
use super::{grouped, killed};
use crate::pressure::Group;
use crate::report::{Report, GLEBE};
use crate::turns::{median, rounds, worst, NO_END};
use crate::{interrupt, Outcome};

const MS: &str = "ms cpu";
const FAULTS: &str = "faults";
const PERCENT: &str = "percent";
const SIZES: [(&str, usize); 3] = [("256", 256), ("16k", 16 << 10), ("512k", 512 << 10)];
const IDLE_MS: [u64; 2] = [0, 300];
/// Program A keeps the last `1 / KEPT` of its objects.
const KEPT: usize = 4;
/// Each round measures glebe, but only every fifth its peers.
const OTHERS_EVERY: u64 = 5;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct GiveBackPlan {
    size: usize,
    count: usize,
    trim: Trim,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Step {
    spent: Spent,
    wrong: u64,
    resident_bytes: u64,
}

/// One run of the programs A and B. A step that a killed program did not reach is `None`.
#[derive(Debug, Default)]
struct Run {
    freed: Option<Step>,
    reused: Option<Step>,
    other: Option<Step>,
    /// A's last check that its objects are intact.
    last: Option<Step>,
    reused_after: Option<Step>,
    held_percent: Option<f64>,
}

pub(super) fn measure(peers: &Peers, report: &mut Report) -> Outcome {
    let count = report.plan(1, 20);
    let (len, limit) =
        report.plan((Bytes::mib(80), Bytes::mib(120)), (Bytes::mib(400), Bytes::mib(600)));
    let cases = cases(report);
    for round in rounds("malloc, give back", count, NO_END) {
        for &(size, idle_ms) in &cases {
            for peer in &peers.here {
                if round % OTHERS_EVERY == 0 || peer.who == GLEBE {
                    one(peers, peer, size, idle_ms, (len, limit), report)?;
                }
            }
        }
    }
    peers.name_absent("reuse_256_idle_0", MS, report);
    ratios(&cases, report);
    report.note(&format!(
        "give back: A fills {len} with objects (256 bytes, 16 KiB, 512 KiB) twice, frees, \
         rests, fills (reuse), frees, rests, B fills as much in the same group of {limit}, \
         ends, and A fills (reuse_after_b): CPU time and faults of A. With less memory than \
         the full run's 400 MiB times are shorter. trim_held_percent: what A holds after it \
         kept a quarter of its objects and trimmed, beyond these and their table. jemalloc \
         never is also told to reuse long free runs for short blocks, which makes its reuse \
         faster.",
    ));
    Ok(())
}

/// Returns pairs of a size and a rest in milliseconds. A quick run rests with the first size only.
fn cases(report: &Report) -> Vec<((&'static str, usize), u64)> {
    let all = SIZES.iter().flat_map(|size| IDLE_MS.map(|idle| (*size, idle)));
    let quick = report.options.quick;
    all.filter(|(size, idle)| !quick || *idle == 0 || *size == SIZES[0]).collect()
}

fn one(
    peers: &Peers,
    peer: &Peer,
    (name, size): (&str, usize),
    idle_ms: u64,
    (len, limit): (Bytes, Bytes),
    report: &mut Report,
) -> Outcome {
    let tail = format!("{name}_idle_{idle_ms}");
    let case = format!("reuse_{tail}");
    let Some(group) = grouped(limit, (&case, peer.who, MS), report) else { return Ok(()) };
    let plan = GiveBackPlan { size, count: len.as_usize() / size, trim: peer.trim };
    let other = peers.get(GLIBC).ok_or("the C library's allocator is always here")?;
    let run = play(peer, other, &group, plan, idle_ms)?;
    let Run { freed, reused, other, reused_after, last, held_percent } = run;
    for step in [freed, reused, other, reused_after, last].into_iter().flatten() {
        report.check("wrong_bytes", step.wrong);
    }
    let (a_killed, one_killed) = ("A was killed", "A or B was killed");
    let mut cpu = |case: &str, step: Option<Step>, why: &str| {
        report.outcome(case, peer.who, MS, step.map(|s| s.spent.cpu_s * 1e3).ok_or(why));
    };
    cpu(&format!("free_{tail}"), freed, a_killed);
    cpu(&case, reused, a_killed);
    cpu(&format!("fill_of_b_{tail}"), other, "B was killed");
    let after = reused_after.filter(|_| other.is_some());
    let after_case = format!("reuse_after_b_{tail}");
    cpu(&after_case, after, one_killed);
    cpu("reuse_after_b_ms", after, one_killed);
    for (case, step) in [(&case, reused), (&after_case, after)] {
        let faults = step.map(|step| step.spent.faults as f64);
        faults.into_iter().for_each(|faults| report.add(case, peer.who, FAULTS, faults));
    }
    for case in [&format!("trim_held_percent_{name}"), "trim_held_percent"] {
        report.outcome(case, peer.who, PERCENT, held_percent.ok_or(a_killed));
    }
    killed(peer, &group, report);
    Ok(())
}

fn play(
    peer: &Peer,
    other: &Peer,
    group: &Group,
    plan: GiveBackPlan,
    idle_ms: u64,
) -> Outcome<Run> {
    let mut run = Run::default();
    let mut a = Worker::start(peer, Some(group), &Job::GiveBack(plan))?;
    let at_start: Option<Step> = a.step("look")?;
    // Fills twice, because the second fill may still touch new memory, which is no cost of reuse.
    for step in ["fill", "free", "fill"] {
        if a.step::<Step>(step)?.is_none() {
            return Ok(run);
        }
    }
    run.freed = a.step("free")?;
    rest(idle_ms);
    run.reused = a.step("fill")?;
    a.step::<Step>("free")?;
    rest(idle_ms);
    let mut b = Worker::start(other, Some(group), &Job::GiveBack(plan))?;
    run.other = b.step("fill")?;
    b.end()?;
    run.reused_after = a.step("fill")?;
    a.step::<Step>("keep")?;
    let trimmed: Option<Step> = a.step("trim")?;
    let table = plan.count * size_of::<Box<[u8]>>();
    let used = (plan.count / KEPT * plan.size + table) as f64;
    run.held_percent = at_start.zip(trimmed).map(|(before, after)| {
        let held = after.resident_bytes.saturating_sub(before.resident_bytes);
        (held as f64 / used - 1.0) * 100.0
    });
    run.last = a.step("look")?;
    a.end()?;
    Ok(run)
}

fn rest(idle_ms: u64) {
    for _ in 0..idle_ms / 10 {
        interrupt::check();
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn ratios(cases: &[((&str, usize), u64)], report: &mut Report) {
    let mut all = Vec::new();
    for ((name, _), idle) in cases {
        let case = format!("reuse_{name}_idle_{idle}");
        let of = |who| median(report.of(&case, who, MS));
        all.push(of(NEVER) / of(GLEBE));
        report.ratio(&format!("reuse_vs_never_{name}_idle_{idle}"), of(NEVER) / of(GLEBE));
    }
    report.ratio("reuse_vs_never", worst(&all));
}

pub(super) fn inside(plan: GiveBackPlan, out: &mut dyn Write) -> Outcome {
    let mut objects: Vec<Box<[u8]>> = Vec::with_capacity(plan.count);
    let mut step = String::with_capacity(16);
    while worker::next_step(&mut step)? {
        let wrong = objects.iter().enumerate().map(|(nth, object)| wrong(nth, object)).sum();
        let before = Usage::now()?;
        match step.as_str() {
            "look" => {}
            "fill" => objects.extend((objects.len()..plan.count).map(|nth| object(nth, plan.size))),
            "free" => objects.clear(),
            // The indexes of the kept objects change, so `renumber` below rewrites their bytes.
            "keep" => drop(objects.drain(..plan.count - plan.count / KEPT)),
            "trim" => plan.trim.call()?,
            other => return Err(format!("{other}: no step of A or B").into()),
        }
        let spent = before.spent()?;
        worker::say(out, &Step { spent, wrong, resident_bytes: resident()? })?;
        if step == "keep" {
            renumber(&mut objects);
        }
    }
    Ok(())
}

fn byte(nth: usize) -> u8 {
    (nth % 255) as u8 + 1
}

fn object(nth: usize, size: usize) -> Box<[u8]> {
    black_box(vec![byte(nth); size].into_boxed_slice())
}

fn wrong(nth: usize, object: &[u8]) -> u64 {
    let (byte, right) = (byte(nth), [byte(nth); 256]);
    let differ = object.chunks(right.len()).filter(|piece| **piece != right[..piece.len()]);
    differ.flatten().map(|is| u64::from(*is != byte)).sum()
}

fn renumber(objects: &mut [Box<[u8]>]) {
    objects.iter_mut().enumerate().for_each(|(nth, object)| object.fill(byte(nth)));
}
