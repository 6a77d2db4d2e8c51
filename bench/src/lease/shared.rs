//! Runs `bench/python/shared.py`: a shared cache in the daemon's idle memory beside other caches.

use std::process::Command;

use serde_json::Value;

use super::served::Served;
use crate::python::python;
use crate::report::{Report, GLEBE};
use crate::turns::by_round;
use crate::Outcome;

const SHARED: &str = include_str!("../../python/shared.py");
const PEERS: [&str; 3] = ["lmdb", "diskcache", "memcached"];
const US: &str = "us";
const CASE: &str = "shared_get_4k";

pub(super) fn run(served: &Served, report: &mut Report) -> Outcome {
    match python() {
        Ok(python) => {
            let dir = tempfile::tempdir_in("/dev/shm")?;
            let mut command = Command::new(python);
            command.args(["-c", SHARED, &report.plan(1, 41).to_string()]);
            let output = command.args([dir.path(), &served.path]).output()?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
            }
            String::from_utf8(output.stdout)?.lines().try_for_each(|line| said(line, report))?;
        }
        Err(why) => {
            not_run(report, &why);
            return Ok(());
        }
    }
    for peer in PEERS {
        let ratio = by_round(report.of(CASE, peer, US), report.of(CASE, GLEBE, US));
        report.ratio(&format!("{CASE}_vs_{peer}"), ratio);
    }
    Ok(())
}

pub(super) fn not_run(report: &mut Report, why: &str) {
    report.remark(CASE, GLEBE, US, why);
    PEERS.iter().for_each(|peer| report.ratio(&format!("{CASE}_vs_{peer}"), f64::NAN));
}

fn said(line: &str, report: &mut Report) -> Outcome {
    let said: Value = serde_json::from_str(line)?;
    let text = |name: &str| said[name].as_str().unwrap_or_default();
    if let Some(wrong) = said["checks"]["wrong_bytes"].as_u64() {
        report.check("wrong_bytes", wrong);
    } else if let Some(us) = said["us"].as_f64() {
        report.add(text("case"), text("who"), US, us);
    } else if let Some(percent) = said["percent"].as_f64() {
        report.add(text("case"), text("who"), "%", percent);
    } else {
        report.remark(text("case"), text("who"), US, text("why"));
    }
    Ok(())
}
