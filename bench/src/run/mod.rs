//! The benchmark `run`: programs that want huge pages, started with `glebe run --contig` and with
//! pages of the kernel's pool.
//!
//! PostgreSQL and OpenJDK are what the machine has; nothing in them is changed. The server is
//! another process. Before each start it has zeroed its pages ahead. The benchmark needs root.
//! Units: ms, transactions a second, CPU seconds.

mod aged;
mod ends;
mod java;
mod lending;
mod origin;
mod postgres;
mod process;
mod session;
mod stage;
mod started;

use glebe::units::{Bytes, PageSize};

use java::{pages_of, work, Java};
use lending::Lending;
use origin::{Origin, ALL, STANDING};
use postgres::Cluster;
use stage::Stage;
use started::{fell_back, Started};

use crate::report::{Report, GLEBE};
use crate::turns::{by_round, turns, worst};
use crate::{memory, Outcome};

const PAGE: PageSize = PageSize::new(2 << 20).unwrap();
const CHECKS: [&str; 2] = ["fell_back", "failed_starts"];
const POSTGRES: &str = "postgres_start";
/// Names of rows without pages of the pool.
const OFF: &str = "huge_pages=off";
const THP: &str = "THP";
/// Both ways to have huge pages, in the steady state.
const STEADY: [Origin; 2] = [Origin::Glebe, Origin::Standing];
const PGBENCH: [(&str, &[&str]); 2] = [("pgbench_select", &["-S"]), ("pgbench_tpcb", &[])];
const HEAPS: [(&str, Bytes); 3] = [
    ("java_start_512m", Bytes::mib(512)),
    ("java_start_1g", Bytes::gib(1)),
    ("java_start_4g", Bytes::gib(4)),
];
const WORK: &str = "java_work";
const ROUNDS: u64 = 15;

const NOTES: [&str; 6] = [
    "`*_start`: from the start of the command until PostgreSQL (shared_buffers=1GB, with --quick \
     128MB) has answered a query over a Unix socket, or until Java (-XX:+AlwaysPreTouch, -Xms like \
     -Xmx) has printed a line. `glebe` is `glebe run --contig --required`, with an empty pool and \
     a server that has zeroed its pages; before, not in the time.",
    "`standing pool`: nr_hugepages was raised and the pages touched before, not in the time. \
     Meanwhile nobody else can use these pages, while the server's pages serve as a cache. \
     `raised pool`: the time includes the raise. `THP`: -XX:+UseTransparentHugePages.",
    "`fell_back` counts programs that ran without leased huge pages, and peers without pages of \
     the pool.",
    "`pgbench_*`: two clients; nothing is synced to the disk. `tps` is wall time; `tx/cpu_s` \
     counts the CPU time of the server's processes, which `pgbench_vs_standing` compares: the \
     worse of the two. `java_work`: CPU time of all threads for a fixed amount of allocation and \
     look-ups.",
    "`aged_*`: a program holds every other page of most memory, and page cache fills the rest, \
     again before each try. The server had its memory before. `aged_*_started` is the share of \
     tries that succeeded, as `mean`.",
    "`*_after_exit` and `*_after_kill` begin when the program's parent has seen its end. `seen_*` \
     end when the server counts no page as held, `back_*` when it has replaced and zeroed all of \
     them, `lent_*` when another program has as many pages, mapped, out of those zeroed ahead.",
];

pub(crate) fn run(report: &mut Report) -> Outcome {
    match Stage::new() {
        Ok(stage) => {
            of_postgres(&stage, report)?;
            of_java(&stage, report)?;
        }
        Err(why) => {
            no_postgres(&why.to_string(), report);
            no_java(&why.to_string(), report);
        }
    }
    CHECKS.iter().for_each(|check| report.unmeasured(check, "nothing was started"));
    ratios(report);
    NOTES.iter().for_each(|note| report.note(note));
    Ok(())
}

/// Returns the place in [`HEAPS`] of the heap that works, and whose ends are timed.
fn usual(report: &Report) -> usize {
    report.plan(0, 1)
}

fn ratios(report: &mut Report) {
    let start = |report: &Report, case: &str, peer: &str| {
        by_round(report.of(case, peer, "ms"), report.of(case, GLEBE, "ms"))
    };
    for (name, case) in [("postgres_start", POSTGRES), ("java_start", HEAPS[usual(report)].0)] {
        report.ratio(&format!("{name}_vs_standing"), start(report, case, STANDING));
        report.ratio(&format!("{name}_vs_raised"), start(report, case, Origin::Raised.name(OFF)));
    }
    for (case, _) in HEAPS {
        report.ratio(&format!("{case}_vs_standing"), start(report, case, STANDING));
    }
    let rate = |case| {
        let of = |who| report.of(case, who, "tx/cpu_s");
        by_round(of(GLEBE), of(STANDING))
    };
    let rates = PGBENCH.map(|(case, _)| rate(case));
    report.ratio("pgbench_vs_standing", worst(&rates));
    let of = |who| report.of(WORK, who, "cpu_s");
    let ratio = by_round(of(STANDING), of(GLEBE));
    report.ratio("java_work_vs_standing", ratio);
}

fn no_postgres(why: &str, report: &mut Report) {
    report.remark(POSTGRES, GLEBE, "ms", why);
    PGBENCH.iter().for_each(|(case, _)| report.remark(case, GLEBE, "tx/cpu_s", why));
    report.remark(aged::POSTGRES[0], GLEBE, "ms", why);
}

fn no_java(why: &str, report: &mut Report) {
    HEAPS.iter().for_each(|(case, _)| report.remark(case, GLEBE, "ms", why));
    no_usual_java(why, report);
}

/// Remarks on the cases of the usual heap only.
fn no_usual_java(why: &str, report: &mut Report) {
    report.remark(WORK, GLEBE, "cpu_s", why);
    report.remark(aged::JAVA[0], GLEBE, "ms", why);
    ends::CASES.iter().for_each(|case| report.remark(case, GLEBE, "ms", why));
}

fn of_postgres(stage: &Stage, report: &mut Report) -> Outcome {
    let shared_buffers = report.plan("128MB", "1GB");
    let had = Cluster::new(stage, shared_buffers).and_then(|cluster| {
        let lending = Lending::start(stage, "postgres-leases", cluster.pages)?;
        Ok((cluster, lending))
    });
    let (cluster, lending) = match had {
        Ok(had) => had,
        Err(why) => {
            no_postgres(&why.to_string(), report);
            return Ok(());
        }
    };
    for (_, origin) in turns("run, PostgreSQL", report.plan(2, ROUNDS), &ALL) {
        one_start(POSTGRES, origin, &cluster, &lending, report)?;
    }
    pgbench(&cluster, &lending, report)?;
    aged::measure(aged::POSTGRES, report, |origin, report| {
        one_start(aged::POSTGRES[0], origin, &cluster, &lending, report)
    })
}

/// Starts PostgreSQL once, and stops it. Returns true if that succeeded.
fn one_start(
    case: &str,
    origin: Origin,
    cluster: &Cluster<'_>,
    lending: &Lending,
    report: &mut Report,
) -> Outcome<bool> {
    let had = Started::new(origin, cluster.pages, lending, || cluster.start(origin, lending));
    let ms = match had {
        Ok(Started { program, ms, .. }) => {
            let held = Bytes::new(cluster.pages * PAGE.bytes().get());
            // The server touches a part of its memory only.
            let wanted = (PAGE.bytes(), held);
            report.check("fell_back", fell_back(origin, lending, program.id(), wanted)?.into());
            program.stop()?;
            Ok(ms)
        }
        Err(why) => Err(why),
    };
    Ok(noted(case, origin.name(OFF), origin, ms, report))
}

/// Adds a start to the report. Returns true if it succeeded.
fn noted(case: &str, who: &str, origin: Origin, ms: Outcome<f64>, report: &mut Report) -> bool {
    let is_had = ms.is_ok();
    report.outcome(case, who, "ms", ms);
    report.check("failed_starts", (origin == Origin::Glebe && !is_had).into());
    is_had
}

fn pgbench(cluster: &Cluster<'_>, lending: &Lending, report: &mut Report) -> Outcome {
    let start =
        |origin| Started::new(origin, cluster.pages, lending, || cluster.start(origin, lending));
    start(Origin::Without)?.program.fill(report.plan(2, 20))?;
    let seconds = report.plan(1, 3);
    for (_, origin) in turns("run, pgbench", report.plan(1, ROUNDS), &STEADY) {
        let server = match start(origin) {
            Ok(server) => server,
            Err(why) => {
                let ms = Err(why);
                noted(POSTGRES, origin.name(OFF), origin, ms, report);
                continue;
            }
        };
        // The server's zeroing would slow down the program, and so would its first transactions.
        lending.wait_for_all_zeroed()?;
        server.program.rate(PGBENCH[0].1, 1)?;
        for (case, words) in PGBENCH {
            let rate = server.program.rate(words, seconds)?;
            report.add(case, origin.name(OFF), "tx/cpu_s", rate.cpu);
            report.add(case, origin.name(OFF), "tps", rate.wall);
        }
    }
    Ok(())
}

fn of_java(stage: &Stage, report: &mut Report) -> Outcome {
    let java = match Java::new(stage) {
        Ok(java) => java,
        Err(why) => {
            no_java(&why.to_string(), report);
            return Ok(());
        }
    };
    for (nth, (case, heap)) in HEAPS.into_iter().enumerate() {
        // The server's pages, a half of them zeroed, and the pool's pages.
        let all = Bytes::new(3 * pages_of(heap) * PAGE.bytes().get());
        let lending = match report.options.quick && nth > usual(report) {
            true => Err("not with --quick".into()),
            false => memory::fits(all).and_then(|()| Lending::start(stage, case, pages_of(heap))),
        };
        let lending = match lending {
            Ok(lending) => lending,
            Err(why) => {
                report.remark(case, GLEBE, "ms", &why.to_string());
                if nth == usual(report) {
                    no_usual_java(&why.to_string(), report);
                }
                continue;
            }
        };
        for (_, origin) in turns(case, report.plan(1, ROUNDS), &ALL) {
            java_once(&java, stage, &lending, (case, heap), origin, report)?;
        }
        if nth == usual(report) {
            ends::measure(&java, stage, &lending, heap, report)?;
            aged::measure(aged::JAVA, report, |origin, report| {
                java_once(&java, stage, &lending, (aged::JAVA[0], heap), origin, report)
            })?;
        }
    }
    Ok(())
}

/// Starts Java once. With the usual heap, the program works too. Returns true if it started.
fn java_once(
    java: &Java,
    stage: &Stage,
    lending: &Lending,
    (case, heap): (&str, Bytes),
    origin: Origin,
    report: &mut Report,
) -> Outcome<bool> {
    let start = || java.start(stage, origin, lending, heap);
    let ms = match Started::new(origin, pages_of(heap), lending, start) {
        Ok(Started { mut program, ms, .. }) => {
            let is_back = fell_back(origin, lending, program.id(), (heap, heap))?;
            report.check("fell_back", is_back.into());
            if case == HEAPS[usual(report)].0 && STEADY.contains(&origin) {
                let seconds = work(&mut program, report.plan(2, 10))?;
                report.add(WORK, origin.name(THP), "cpu_s", seconds);
            }
            Ok(ms)
        }
        Err(why) => Err(why),
    };
    Ok(noted(case, origin.name(THP), origin, ms, report))
}
