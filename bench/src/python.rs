//! The benchmark `python`: the wheel beside other caches for Python, and a NumPy pipeline with
//! volatile results in a memory cgroup.
//!
//! Two programs in `bench/python` run with the interpreter that `make python` or `make test` sets
//! up in the target folder. Without the interpreter or the wheel, rows say so.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use glebe::{page_size, Bytes, Reserve};
use serde_json::Value;

use crate::pressure::{self, Group};
use crate::report::{Report, GLEBE};
use crate::turns::{by_round, median};
use crate::Outcome;

const SMALL: &str = include_str!("../python/small.py");
const PIPELINE: &str = include_str!("../python/pipeline.py");
const LMDB: &str = "lmdb";
const US: &str = "us";
const LIMIT_MIB: u64 = 384;
const VOLATILE: &str = "volatile";
/// Ways to keep results. The number of an LRU is its limit in MiB; the largest leaves too little
/// memory for the pipeline's peaks.
const KEEPERS: [&str; 6] = [VOLATILE, "lru-32", "lru-64", "lru-80", "lru-192", "dict"];
const CASES: [&str; 6] = ["put_4k", "get_4k", "get_into_4k", "put_1m", "get_1m", "get_into_1m"];

pub(crate) fn run(report: &mut Report) -> Outcome {
    match python() {
        Ok(python) => {
            small(&python, report)?;
            pipelines(report)?;
        }
        Err(why) => {
            for case in CASES {
                report.remark(case, GLEBE, US, &why);
                report.ratio(&format!("{case}_vs_lmdb"), f64::NAN);
            }
            report.remark("binding_call", GLEBE, "ns", &why);
            report.ratio("pipeline_vs_best_lru", f64::NAN);
            report.unmeasured("wrong_bytes", &why);
            report.unmeasured("kills", &why);
        }
    }
    report.note(
        "A get makes new bytes of a copy, by every peer; a get_into copies to a buffer of the \
         caller's, by lmdb from its view of the file. lmdb: no sync, a transaction a call; `one \
         transaction` has many calls in one, which no cache can wait for. All files are on \
         /dev/shm. binding_call is a get_into of a page in the processor's cache less the same \
         get from Rust. `dict` keeps all, and is killed.",
    );
    Ok(())
}

pub(crate) fn python() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let target = program.parent().and_then(Path::parent).unwrap_or(Path::new("target"));
    let python = target.join("python/bin/python3");
    let has_wheel = Command::new(&python).args(["-c", "import glebe, numpy"]).output();
    match has_wheel {
        Ok(output) if output.status.success() => Ok(python),
        _ => Err(format!("no wheel in {}: make python", python.display())),
    }
}

fn small(python: &Path, report: &mut Report) -> Outcome {
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let rounds = report.plan(1, 41).to_string();
    let output = Command::new(python).args(["-c", SMALL, &rounds]).arg(dir.path()).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let mut in_python = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let said: Value = serde_json::from_str(line)?;
        let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
        if let Some(wrong) = said["checks"]["wrong_bytes"].as_u64() {
            report.check("wrong_bytes", wrong);
        } else if let Some(us) = said["us"].as_f64() {
            match text("case").as_str() {
                "get_into_hot" => in_python.push(us * 1000.0),
                case => report.add(case, &text("who"), US, us),
            }
        } else {
            report.remark(&text("case"), &text("who"), US, &text("why"));
        }
    }
    for case in CASES {
        let ratio = by_round(report.of(case, LMDB, US), report.of(case, GLEBE, US));
        report.ratio(&format!("{case}_vs_lmdb"), ratio);
    }
    let in_rust = get_hot(in_python.len())?;
    report.add("binding_call", GLEBE, "ns", median(&in_python) - median(&in_rust));
    Ok(())
}

/// Returns a sample per round: nanoseconds per get of a page in the processor's cache.
fn get_hot(rounds: usize) -> Outcome<Vec<f64>> {
    const CALLS: u32 = 20_000;
    let reserve = Reserve::new(Bytes::mib(4))?;
    let pages = reserve.page_cache().namespace("bench")?;
    let mut page = vec![7; page_size().bytes().as_usize()];
    pages.put(1, 0, &page)?;
    let mut samples = Vec::new();
    for _ in 0..rounds {
        let begin = Instant::now();
        for _ in 0..CALLS {
            pages.get_run(1, 0, &mut page)?;
        }
        samples.push(begin.elapsed().as_nanos() as f64 / f64::from(CALLS));
    }
    Ok(samples)
}

fn pipelines(report: &mut Report) -> Outcome {
    const RATE: &str = "requests/s";
    let seconds = report.plan(1, 12);
    for _ in 0..report.plan(1, 3) {
        for who in KEEPERS {
            let group = match Group::make(Bytes::mib(LIMIT_MIB)) {
                Ok(group) => group,
                Err(why) => {
                    report.remark("pipeline", who, RATE, &why);
                    report.unmeasured("kills", &why);
                    continue;
                }
            };
            let (answer, kills) =
                pressure::ask(&group, "python-pipeline", &format!("{who} {seconds}"))?;
            let said: Value = serde_json::from_str(answer.as_deref().unwrap_or("{}"))?;
            match said["requests_per_s"].as_f64() {
                Some(rate) => report.add("pipeline", who, RATE, rate),
                None => report.remark("pipeline", who, RATE, &format!("killed: {kills}")),
            }
            report.check("wrong_bytes", said["wrong"].as_u64().unwrap_or(0));
            if who == VOLATILE {
                report.check("kills", kills);
            }
        }
    }
    let rate = |who: &str| median(report.of("pipeline", who, RATE));
    let lrus = KEEPERS.iter().filter(|who| who.starts_with("lru"));
    let best = lrus.map(|who| rate(who)).filter(|rate| rate.is_finite()).fold(0.0, f64::max);
    let ratio = rate(VOLATILE) / best;
    report.ratio("pipeline_vs_best_lru", ratio);
    Ok(())
}

/// Enters `group`, runs one pipeline, and writes its output, or `{}` if a signal ended it.
pub(crate) fn inside(group: &Path, job: &str, out: &mut dyn Write) -> Outcome {
    pressure::enter(group);
    let (who, seconds) = job.split_once(' ').ok_or("a keeper and seconds")?;
    let limit = LIMIT_MIB.to_string();
    let output = Command::new(python()?).args(["-c", PIPELINE, who, seconds, &limit]).output()?;
    if output.status.signal().is_some() {
        return Ok(writeln!(out, "{{}}")?);
    }
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(out.write_all(&output.stdout)?)
}
