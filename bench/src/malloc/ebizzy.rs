//! Measures a loop like ebizzy's, the program of the first measurements of volatile ranges. For
//! each record a thread allocates a chunk, copies one of the process's chunks into it, looks a key
//! up in the copy by binary search, and frees the copy.
//!
//! Chunk and key are random, as intended, or always the first, as in the original program, whose
//! random numbers were all 0. Units: records per second of CPU time of all threads, and of wall
//! time.

use std::fmt::Write as _;
use std::hint::black_box;
use std::io::Write;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Duration;

use glebe::units::Bytes;
use serde::{Deserialize, Serialize};

use super::peer::{Peer, Peers, EAGER};
use super::usage::{peak, Spent, Usage};
use super::worker::{self, together, Job, Worker};
use super::{grouped, is_wanted, killed};
use crate::pressure::Group;
use crate::report::{Report, GLEBE};
use crate::reserve::keyed::Random;
use crate::turns::{by_round, median, turns};
use crate::{clock, Outcome};

const PER_CPU: &str = "record/cpu-s";
const PER_WALL: &str = "record/s";
const FAULTS: &str = "fault/record";
const PEAK: &str = "MiB peak";
const CHUNK: Bytes = Bytes::new(512 << 10);
const KEYS: u64 = CHUNK.get() / size_of::<u64>() as u64;
/// Records per thread before measuring, because the first record uses new memory.
const WARM_UP: u64 = 16;
/// Processes, and threads of each process.
const SHAPES: [(usize, usize); 6] = [(1, 1), (1, 2), (1, 4), (1, 16), (4, 1), (4, 4)];
const LIMITED: (usize, usize) = (4, 4);
/// Bytes that the limited group may hold beside the processes' own chunks.
const SLACK: Bytes = Bytes::mib(76);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Picks {
    Random,
    First,
}

impl Picks {
    const ALL: [Self; 2] = [Self::Random, Self::First];

    fn case(self, (processes, threads): (usize, usize)) -> String {
        match self {
            Self::Random => format!("ebizzy_{processes}_{threads}"),
            Self::First => format!("ebizzy_stock_{processes}_{threads}"),
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct EbizzyPlan {
    chunks: usize,
    threads: usize,
    millis: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Done {
    records: u64,
    wrong: u64,
    wall_s: f64,
    spent: Spent,
    peak_bytes: u64,
}

pub(super) fn cases() -> impl Iterator<Item = String> {
    SHAPES.iter().map(|shape| Picks::Random.case(*shape))
}

pub(super) fn measure(peers: &Peers, report: &mut Report) -> Outcome {
    // Many short processes give better figures than few long ones, because speed varies by a tenth
    // with the place of a process's memory.
    let count = report.plan(1, 15);
    let (chunks, millis) = report.plan((16, 10), (512, 250));
    let everybody: Vec<usize> = (0..peers.here.len()).collect();
    for shape in SHAPES {
        if !is_wanted(&Picks::Random.case(shape), "ebizzy", report) {
            continue;
        }
        let plan = EbizzyPlan { chunks, threads: shape.1, millis };
        let title = format!("malloc, ebizzy {} x {}", shape.0, shape.1);
        for (_, nth) in turns(&title, count, &everybody) {
            processes(&peers.here[nth], shape, plan, None, report)?;
        }
    }
    if is_wanted("", "ebizzy", report) {
        limited(peers, chunks, millis, report)?;
    }
    peers.name_absent(&Picks::Random.case((1, 1)), PER_CPU, report);
    SHAPES.iter().for_each(|shape| ratios(peers, *shape, report));
    report.note(&table(peers, report));
    report.note(
        "ebizzy_P_T: P processes of T threads, each process with its own chunks of 512 KiB; chunks \
         and keys at random. ebizzy_stock_P_T picks the first chunk and key always, as the stock \
         program did: its random numbers were all 0. Ratios are of records for each second of \
         CPU time. Ratios with _stock are of the stock way to pick.",
    );
    Ok(())
}

fn processes(
    peer: &Peer,
    shape: (usize, usize),
    plan: EbizzyPlan,
    group: Option<&Group>,
    report: &mut Report,
) -> Outcome {
    let job = Job::Ebizzy(plan);
    let workers = (0..shape.0).map(|_| Worker::start(peer, group, &job));
    let mut workers = workers.collect::<Outcome<Vec<_>>>()?;
    // Waits until the chunks exist, because making them must not count.
    for worker in &mut workers {
        worker.answer::<()>()?;
    }
    for picks in Picks::ALL {
        let done: Vec<Done> = together(&mut workers)?;
        let suffix = if group.is_some() { "_limited" } else { "" };
        tell((picks, shape, suffix), peer.who, &done, report);
    }
    for worker in workers {
        worker.end()?;
    }
    Ok(())
}

fn tell(
    (picks, shape, suffix): (Picks, (usize, usize), &str),
    who: &str,
    done: &[Done],
    report: &mut Report,
) {
    report.check("wrong_bytes", done.iter().map(|done| done.wrong).sum());
    let case = &format!("{}{suffix}", picks.case(shape));
    if done.len() < shape.0 {
        let text = format!("{} of {} processes killed", shape.0 - done.len(), shape.0);
        return report.outcome(case, who, PER_CPU, Err(text));
    }
    let sum = |figure: fn(&Done) -> f64| done.iter().map(figure).sum::<f64>();
    let records = sum(|done| done.records as f64);
    report.add(case, who, PER_CPU, records / sum(|done| done.spent.cpu_s));
    report.add("faults_per_record", who, FAULTS, sum(|done| done.spent.faults as f64) / records);
    match picks {
        Picks::First => {
            let per_wall = sum(|done| done.records as f64 / done.wall_s);
            report.add(case, who, PER_WALL, per_wall);
        }
        Picks::Random => {
            let peak = sum(|done| done.peak_bytes as f64);
            report.add(case, who, PEAK, peak / Bytes::mib(1).get() as f64);
        }
    }
}

/// Runs processes in a group whose memory limit is their chunks and [`SLACK`].
fn limited(peers: &Peers, chunks: usize, millis: u64, report: &mut Report) -> Outcome {
    let count = report.plan(1, 9);
    let chunks_len = Bytes::new(CHUNK.get() * (LIMITED.0 * chunks) as u64);
    let plan = EbizzyPlan { chunks, threads: LIMITED.1, millis };
    let case = format!("{}_limited", Picks::Random.case(LIMITED));
    let everybody: Vec<usize> = (0..peers.here.len()).collect();
    for (_, nth) in turns("malloc, ebizzy with little memory", count, &everybody) {
        let peer = &peers.here[nth];
        let limit = chunks_len + SLACK;
        let Some(group) = grouped(limit, (&case, peer.who, PER_CPU), report) else { continue };
        processes(peer, LIMITED, plan, Some(&group), report)?;
        killed(peer, &group, report);
    }
    Ok(())
}

fn ratios(peers: &Peers, shape: (usize, usize), report: &mut Report) {
    for (picks, suffix) in [(Picks::Random, ""), (Picks::First, "_stock")] {
        let case = picks.case(shape);
        let of = |who| report.of(&case, who, PER_CPU);
        let eager = by_round(of(GLEBE), of(EAGER));
        let best = peers.versus_best(&case, PER_CPU, report);
        let (processes, threads) = shape;
        report.ratio(&format!("vs_eager_jemalloc_{processes}_{threads}{suffix}"), eager);
        report.ratio(&format!("vs_best_{processes}_{threads}{suffix}"), best);
    }
}

/// Formats records per second like the volatile ranges patch: a row per shape, a column per peer,
/// with the ratio to the eager peer.
fn table(peers: &Peers, report: &Report) -> String {
    let mut text = String::from("ebizzy, stock picks, records/s (times the eager peer's)\n P.T  ");
    for peer in &peers.here {
        let _ = write!(text, "{:>18}", peer.who);
    }
    for shape in SHAPES {
        let case = Picks::First.case(shape);
        let of = |who| median(report.of(&case, who, PER_WALL));
        let _ = write!(text, "\n{:>2}.{:<3}", shape.0, shape.1);
        for peer in &peers.here {
            let times = format!("({:.2}x)", of(peer.who) / of(EAGER));
            let _ = write!(text, "{:>9.0} {times:>8}", of(peer.who));
        }
    }
    text
}

pub(super) fn inside(plan: EbizzyPlan, out: &mut dyn Write) -> Outcome {
    let chunk = || (0..KEYS).collect::<Vec<u64>>();
    let chunks: Vec<Vec<u64>> = (0..plan.chunks).map(|_| chunk()).collect();
    worker::say(out, &())?;
    for picks in Picks::ALL {
        if worker::next_step(&mut String::new())? {
            worker::say(out, &run(&chunks, plan, picks)?)?;
        }
    }
    Ok(())
}

fn run(chunks: &[Vec<u64>], plan: EbizzyPlan, picks: Picks) -> Outcome<Done> {
    let (time, barrier) = (Duration::from_millis(plan.millis), &Barrier::new(plan.threads));
    let begin = &Mutex::new((Duration::ZERO, Usage::default()));
    let work = move |seed: usize| {
        let mut random = Random::new((seed as u64) << 32);
        let mut wrong = 0;
        let mut records = 0_u64;
        (0..WARM_UP).for_each(|_| wrong += u64::from(!record(chunks, picks, &mut random)));
        if barrier.wait().is_leader() {
            let now = (clock::wall(), Usage::now()?);
            *begin.lock().unwrap_or_else(PoisonError::into_inner) = now;
        }
        barrier.wait();
        let end = clock::wall() + time;
        while clock::wall() < end {
            wrong += u64::from(!record(chunks, picks, &mut random));
            records += 1;
        }
        Ok((records, wrong))
    };
    let done: Outcome<Vec<(u64, u64)>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..plan.threads).map(|n| scope.spawn(move || work(n))).collect();
        running.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    let done = done?;
    let (start, usage) = *begin.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Done {
        records: done.iter().map(|(records, _)| records).sum(),
        wrong: done.iter().map(|(_, wrong)| wrong).sum(),
        wall_s: (clock::wall() - start).as_secs_f64(),
        spent: usage.spent()?,
        peak_bytes: peak()?,
    })
}

/// Serves one record. Returns true if the key was at its place.
#[inline(never)]
fn record(chunks: &[Vec<u64>], picks: Picks, random: &mut Random) -> bool {
    let (nth, key) = match picks {
        Picks::Random => (random.below(chunks.len() as u64) as usize, random.below(KEYS)),
        Picks::First => (0, 0),
    };
    let copy = black_box(chunks[nth].clone());
    copy.binary_search(&key) == Ok(key as usize)
}
