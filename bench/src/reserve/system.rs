//! What requests cost the rest of the machine: a background's own time alone, beside requests to
//! the kernel, and beside requests to the reserve.
//!
//! In each round the background runs once for every [`Arm`]; which arm begins changes from round
//! to round. The foreground asks for one size after the other, one request every [`EVERY`], the
//! same of the kernel as of the reserve, and what was had is given back at once. A tenant beside
//! puts pages at the rate of a fast disk, [`PUT_BACK`] after each request, so that there is always
//! something to recall. The reserve is there, full and untouched, in the other arms also.
//!
//! The background is alone twice a round: how far the two differ says what a difference is worth.
//! Units: seconds; CPU time is that of the command and of all it waited for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use glebe::reserve::{Request, Reserve};
use glebe::units::Pages;

use super::background::Background;
use super::requests::{ask, Faults};
use super::tenant::Tenant;
use super::usage::{kill_group, usage_if_ended, Usage};
use super::{Error, GLEBE, REQUEST_PAGES};
use crate::clock;
use crate::peers::{self, Peer};
use crate::report::Report;
use crate::samples::{rounds, Samples};

/// Time between requests: each size some 32 times while a build of ten seconds runs.
const EVERY: Duration = Duration::from_millis(40);
/// Pages of cache that come anew after a request: 100 MiB a second.
const PUT_BACK: u64 = 1024;
/// No round begins after this.
const AT_MOST: Duration = Duration::from_secs(210);
/// How long one run of the background may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// The kernel's cheapest way to the large sizes.
const KERNEL: Peer = Peer::Thp;
const KEPT: &str = "background_kept";
const CASE: &str = "background";
const CPU: &str = "s cpu";

/// What happens beside the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Alone,
    AloneAgain,
    Kernel,
    Glebe,
}

impl Arm {
    const ALL: [Self; 4] = [Self::Alone, Self::Kernel, Self::AloneAgain, Self::Glebe];

    const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::AloneAgain => "alone_again",
            Self::Kernel => KERNEL.name(),
            Self::Glebe => GLEBE,
        }
    }
}

/// The other side of a run.
struct Foreground<'a> {
    reserve: &'a Reserve,
    tenant: &'a mut Tenant,
    sizes: Vec<u64>,
    faults: Faults,
    /// Whether the background took too long once: then it is not run again.
    is_late: bool,
}

/// Measures and reports; the reserve is full of pages of `tenant`.
pub(super) fn measure(
    background: &Result<Arc<Background>, String>,
    reserve: &Reserve,
    tenant: &mut Tenant,
    quick: bool,
    report: &mut Report,
) -> Result<(), Error> {
    report.ratio(KEPT, f64::NAN); // there in any case
    let background = match background {
        Ok(background) => background,
        Err(why) => {
            report.absent(CASE, Arm::Alone.name(), "s", why);
            return Ok(());
        }
    };
    let longest = reserve.contig().longest_run().get();
    let sizes = REQUEST_PAGES.into_iter().filter(|&p| p <= longest).collect();
    let mut foreground =
        Foreground { reserve, tenant, sizes, faults: Faults::default(), is_late: false };
    let mut table = Samples::default();
    rounds(CASE, (if quick { 1 } else { 5 }, AT_MOST), |round| {
        let mut arms = Arm::ALL;
        arms.rotate_left(round as usize % Arm::ALL.len());
        arms.into_iter().try_for_each(|arm| run(background, arm, &mut foreground, &mut table))
    })?;
    foreground.faults.report(report);
    table.report(report);
    let cpu = |arm: Arm| table.of(CASE, arm.name(), CPU);
    let pairs = cpu(Arm::Alone).iter().zip(cpu(Arm::AloneAgain));
    let apart = pairs.map(|(a, b)| 100.0 * (a - b).abs() / a.min(*b));
    report.row("background_a_a", Arm::Alone.name(), "% apart", &apart.collect::<Vec<_>>());
    let mean = |arm: Arm| table.figure((CASE, arm.name(), CPU), |summary| summary.mean);
    let alone = (mean(Arm::Alone) + mean(Arm::AloneAgain)) / 2.0;
    report.ratio(KEPT, alone / mean(Arm::Glebe));
    report.note(&format!(
        "background: {}; one request in {} ms beside; what of it fails counts for the kernel as \
         for the reserve. The ratio is of the means of CPU seconds, alone and beside glebe.",
        background.what(),
        EVERY.as_millis(),
    ));
    Ok(())
}

/// Runs the background once with the foreground beside it.
fn run(
    background: &Background,
    arm: Arm,
    foreground: &mut Foreground<'_>,
    table: &mut Samples,
) -> Result<(), Error> {
    if foreground.is_late {
        return Ok(());
    }
    let stop = AtomicBool::new(false);
    foreground.tenant.refill(foreground.reserve);
    let recalled = foreground.reserve.stats().recalled;
    let start = clock::wall();
    let child = background.spawn()?;
    let mut is_late = false;
    let (ended, asked) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| foreground.ask_until(arm, &stop));
        let ended = loop {
            match usage_if_ended(&child) {
                Ok(None) if !is_late && clock::wall() - start > PATIENCE => {
                    is_late = true;
                    kill_group(&child);
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                // However it ended after that: it is no result.
                Ok(ended) if is_late => break Ok(ended.map(|u| Usage { succeeded: false, ..u })),
                other => break other,
            }
        };
        let elapsed = clock::wall() - start;
        stop.store(true, Ordering::Relaxed);
        (ended.map(|usage| (usage, elapsed)), asking.join())
    });
    let (asked, failed) = asked.map_err(|_| Error::Thread("the foreground panicked".into()))?;
    foreground.is_late = is_late;
    let recalled = foreground.reserve.stats().recalled - recalled;
    let (Some(usage), elapsed) = ended? else { return Ok(()) };
    let cpu = usage.user_s + usage.system_s;
    let figures = [
        ("s user", usage.user_s),
        ("s system", usage.system_s),
        ("s", elapsed.as_secs_f64()),
        (CPU, cpu),
        ("requests", asked as f64),
        ("requests refused", failed as f64),
        ("pages recalled", recalled as f64),
    ];
    for (unit, figure) in figures {
        let why = || format!("it failed, or was not over in {} s", PATIENCE.as_secs());
        let figure = if usage.succeeded { Ok(figure) } else { Err(why()) };
        table.outcome(CASE, arm.name(), unit, figure);
    }
    Ok(())
}

impl Foreground<'_> {
    /// Asks for one size after the other; how many requests that were, and how many were refused.
    fn ask_until(&mut self, arm: Arm, stop: &AtomicBool) -> (u64, u64) {
        let (mut asked, mut failed) = (0, 0);
        let mut due = clock::wall();
        if matches!(arm, Arm::Alone | Arm::AloneAgain) {
            return (asked, failed);
        }
        for &pages in self.sizes.clone().iter().cycle() {
            due = (due + EVERY).max(clock::wall());
            while clock::wall() < due {
                std::thread::sleep(due.saturating_sub(clock::wall()));
            }
            if stop.load(Ordering::Relaxed) {
                break;
            }
            asked += 1;
            failed += u64::from(match arm {
                Arm::Kernel => peers::measure(KERNEL, Pages::new(pages)).failed.is_some(),
                _ => !self.ask(pages),
            });
        }
        (asked, failed)
    }

    /// Whether there was a block.
    fn ask(&mut self, pages: u64) -> bool {
        let asked = ask(self.reserve, Duration::ZERO, Request::new(Pages::new(pages)), false);
        let is_had = asked.is_ok();
        self.faults.failures += u64::from(!is_had);
        if let Ok(held) = asked {
            self.faults.add(held.over_recall());
        }
        self.tenant.put_new(PUT_BACK);
        is_had
    }
}

#[cfg(test)]
mod tests {
    //! With commands that are over at once, on a small reserve.

    use super::*;
    use crate::reserve::map;
    use glebe::units::Bytes;

    fn report(command: Result<&str, &str>) -> serde_json::Value {
        let reserve = map(Bytes::mib(8), Reserve::options()).unwrap();
        let mut tenant = Tenant::new(reserve.page_cache().namespace("system").unwrap());
        tenant.fill(&reserve);
        let background = match command {
            Ok(command) => Background::new(Some(command), None, true).map(Arc::new),
            Err(why) => Err(why.to_owned()),
        };
        let mut report = Report::new("reserve", "", true);
        measure(&background, &reserve, &mut tenant, true, &mut report).unwrap();
        assert!(report.passed(), "{}", report.text());
        serde_json::from_str(&report.json()).unwrap()
    }

    fn row<'a>(report: &'a serde_json::Value, who: &str, unit: &str) -> &'a serde_json::Value {
        let rows = report["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["who"] == who && row["unit"] == unit);
        row.unwrap_or_else(|| panic!("no row of {who} in {unit}: {report:#}"))
    }

    #[test]
    fn each_arm_is_run_and_those_alone_ask_nothing() {
        let turns = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let report = report(Ok(turns));
        for arm in Arm::ALL {
            assert!(row(&report, arm.name(), CPU)["min"].as_f64().unwrap() > 0.01, "{report:#}");
            let asked = row(&report, arm.name(), "requests")["min"].as_f64().unwrap();
            let is_alone = matches!(arm, Arm::Alone | Arm::AloneAgain);
            assert_eq!(asked == 0.0, is_alone, "{report:#}");
        }
        assert!(report["ratios"][KEPT].as_f64().unwrap() > 0.0, "{report:#}");
    }

    #[test]
    fn a_background_that_fails_or_is_not_there_gives_no_figure() {
        let failed = report(Ok("exit 1"));
        assert!(row(&failed, GLEBE, "s")["note"].as_str().unwrap().starts_with("it failed"));
        let absent = report(Err("no cargo"));
        assert_eq!(row(&absent, "alone", "s")["note"], "no cargo");
        for report in [failed, absent] {
            assert!(report["ratios"][KEPT].is_null(), "{report:#}");
        }
    }
}
