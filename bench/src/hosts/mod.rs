//! The benchmark `hosts`: idle memory of several hosts as segments of a Mooncake store.
//!
//! The hosts are network namespaces with a relay between them. The programs in `bench/python/hosts`
//! run with an interpreter that has Mooncake's package (`make mooncake`), beside the program
//! `glebe`. The benchmark needs root.

mod recall;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::child::Child;
use crate::report::{Report, GLEBE};
use crate::turns::by_round;
use crate::Outcome;

pub(crate) use recall::recall;

const FILES: [(&str, &str); 6] = [
    ("main.py", include_str!("../../python/hosts/main.py")),
    ("net.py", include_str!("../../python/hosts/net.py")),
    ("stack.py", include_str!("../../python/hosts/stack.py")),
    ("store.py", include_str!("../../python/hosts/store.py")),
    ("shape.py", include_str!("../../python/hosts/shape.py")),
    ("growth.py", include_str!("../../python/hosts/growth.py")),
];
const STOCK: &str = "shared memory";
/// Units that the programs name.
const UNITS: [&str; 7] = ["us", "ms", "MB/s", "share", "GiB", "GiB-hours", "count"];
const CHECKS: [&str; 2] = ["wrong_values", "misses_after_a_host_died"];
const RATIOS: [(&str, &str, &str); 2] =
    [("put_vs_stock", "put_1m", "us"), ("get_vs_stock", "get_1m", "us")];
const NOTES: [&str; 5] = [
    "Three network namespaces. A relay in user space limits each link to 4 Gbit/s, delays each \
     packet by 0.1 ms, and shares the processors with the rest; `link_*` say what is left. The \
     relay, the masters and the client that recalls have short time slices (Linux 6.12), since \
     they would run on machines of their own. \
     Packets have up to 60,000 bytes. Each host has a daemon that lends one segment of 256 MiB. \
     The masters let a reader use an address for 2 s, and forget a silent host after 5 s.",
    "`shared memory`: the same number of segments in ordinary shared memory, all pages touched, \
     of another master. Both stores get the same puts and gets in turn.",
    "`recall_256m`: from a program's request for 256 MiB until the lender has unmounted the \
     segment and given its memory back. `recall_256m_leased`: until the program has the memory, \
     zeroed and mapped. `recall_256m_reads`: while two hosts read. `recall_256m_hung`: the \
     process that has the segment mapped is stopped.",
    "`hit_ratio`: blocks of 256 KiB, in the shape of the conversation trace of Mooncake (FAST \
     '25). A missed block is put. A recall takes a host's segment for 1 s, and the segment \
     rests 2.2 s; with the default of `--rest-max`, a segment that is recalled so often would \
     rest for minutes.",
    "`recall_64m_N_hosts`, `master_idle_N`, `master_remount_N`: N hosts lend 64 MiB each. The \
     master's processor time in a second, and what a recall and the next mount add to it, while \
     each host is recalled every 4 s.",
];

pub(crate) fn run(report: &mut Report) -> Outcome {
    match python() {
        Ok(python) => measure(&python, report)?,
        Err(why) => {
            report.remark("recall_256m", GLEBE, "ms", &why);
            CHECKS.iter().for_each(|check| report.unmeasured(check, &why));
        }
    }
    for (name, case, unit) in RATIOS {
        let ratio = by_round(report.of(case, STOCK, unit), report.of(case, GLEBE, unit));
        report.ratio(name, ratio);
    }
    let share = |who| report.median("hit_ratio", who);
    let ratio = share(GLEBE) / share(STOCK);
    report.ratio("hit_ratio_vs_stock", ratio);
    NOTES.iter().for_each(|note| report.note(note));
    Ok(())
}

/// Returns the interpreter with Mooncake's package, or why the benchmark cannot run.
fn python() -> Result<PathBuf, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("network namespaces and a relay between them need root".into());
    }
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    if !program.with_file_name("glebe").exists() {
        return Err(format!("no program glebe beside {}", program.display()));
    }
    let target = program.parent().and_then(Path::parent).unwrap_or(Path::new("target"));
    let python = target.join("mooncake/bin/python3");
    match Command::new(&python).args(["-c", "import mooncake.store"]).output() {
        Ok(output) if output.status.success() => Ok(python),
        _ => Err(format!("no Mooncake for {}: make mooncake", python.display())),
    }
}

fn measure(python: &Path, report: &mut Report) -> Outcome {
    let scratch = glebe_testing::Scratch::new("bench-hosts");
    for (name, text) in FILES {
        std::fs::write(scratch.path().join(name), text)?;
    }
    let mut command = Command::new(python);
    command.arg(scratch.path().join("main.py")).arg(std::env::current_exe()?);
    command.arg(report.plan("1", "0"));
    let mut child = Child::of(&mut command)?;
    while let Some(line) = child.line()? {
        said(&line, report)?;
    }
    child.answer()?.ok_or("the programs were killed")?;
    Ok(())
}

fn said(line: &str, report: &mut Report) -> Outcome {
    let said: Value = serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))?;
    if let Some(checks) = said["checks"].as_object() {
        for (name, count) in checks {
            report.check(name, count.as_u64().ok_or_else(|| format!("{line}: no count"))?);
        }
        return Ok(());
    }
    let text = |name: &str| said[name].as_str().unwrap_or_default();
    let unit = UNITS.into_iter().find(|unit| said[unit].is_number());
    let unit = unit.ok_or_else(|| format!("{line}: no figure"))?;
    report.add(text("case"), text("who"), unit, said[unit].as_f64().unwrap_or(f64::NAN));
    Ok(())
}
