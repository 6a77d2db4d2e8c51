//! What requests cost the rest of the machine: a background's own time alone, beside requests to
//! the kernel, and beside requests to the reserve.
//!
//! In each round the background runs once for every [`Arm`]; which arm begins changes from round
//! to round. The foreground asks for one size after the other, one request every [`EVERY`], the
//! same of the kernel as of the reserve, and what was had is given back at once. A tenant beside
//! puts pages at the rate of a fast disk, [`PUT_BACK`] after each request, so that there is always
//! something to recall. In an arm of its own blocks are written and read too, and the whole cache
//! is filled again at once: work of first class and of tenants, which a kernel without the reserve
//! has not. The reserve is there, full and untouched, in the other arms also.
//!
//! The background is alone twice a round: how far the two differ says what a difference is worth.
//! Units: seconds; CPU time is that of the command and of all it waited for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use glebe::error::OsError;
use glebe::reserve::{Request, Reserve};
use glebe::units::Pages;

use super::background::Background;
use super::fork::{kill_group, usage_if_ended, Usage};
use super::requests::{ask, Faults, Marking};
use super::tenant::Tenant;
use super::{Error, REQUEST_PAGES};
use crate::clock;
use crate::peers::{self, Peer};
use crate::progress::Progress;
use crate::report::Report;
use crate::summary::Summary;

/// Time between requests: each size some 32 times while a build of ten seconds runs.
const EVERY: Duration = Duration::from_millis(40);
/// Pages of cache that come anew after a request: 100 MiB a second.
const PUT_BACK: u64 = 1024;
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 1;
/// No round begins after this.
const AT_MOST: Duration = Duration::from_secs(210);
/// How long one run of the background may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// The kernel's cheapest way to the large sizes.
const KERNEL: Peer = Peer::Thp;
const KEPT: &str = "background_kept";

/// What happens beside the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Alone,
    AloneAgain,
    Kernel,
    Glebe,
    /// Blocks are used, and the cache is filled to the brim after each.
    GlebeRefilled,
}

impl Arm {
    const ALL: [Self; 5] =
        [Self::Alone, Self::Kernel, Self::AloneAgain, Self::Glebe, Self::GlebeRefilled];

    const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::AloneAgain => "alone_again",
            Self::Kernel => KERNEL.name(),
            Self::Glebe => "glebe",
            Self::GlebeRefilled => "glebe_refilled",
        }
    }
}

/// The runs of one arm.
#[derive(Debug, Default)]
struct Runs {
    user_s: Vec<f64>,
    system_s: Vec<f64>,
    cpu_s: Vec<f64>,
    elapsed_s: Vec<f64>,
    cpu_percent: Vec<f64>,
    requests: Vec<f64>,
    recalled: Vec<f64>,
    failed: u64,
}

/// The other side of a run.
struct Foreground<'a> {
    arm: Arm,
    reserve: &'a Reserve,
    tenant: &'a mut Tenant,
    sizes: Vec<u64>,
    faults: Faults,
    peer_failures: u64,
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
            report.absent("background", Arm::Alone.name(), "s", why);
            return Ok(());
        }
    };
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    let longest = reserve.contig().longest_run().get();
    let sizes = REQUEST_PAGES.into_iter().filter(|&p| p <= longest).collect();
    let (faults, arm) = (Faults::default(), Arm::Alone);
    let mut foreground = Foreground { arm, reserve, tenant, sizes, faults, peer_failures: 0 };
    let mut all: [Runs; Arm::ALL.len()] = Default::default();
    let mut progress = Progress::new("background", (rounds * Arm::ALL.len()) as u64);
    let end = clock::wall() + AT_MOST;
    for round in 0..rounds {
        if clock::wall() > end {
            report.note(&format!("background: a busy machine, {round} rounds instead of {rounds}"));
            break;
        }
        for nth in 0..Arm::ALL.len() {
            let index = (round + nth) % Arm::ALL.len();
            foreground.arm = Arm::ALL[index];
            let Some(run) = run(background, &mut foreground)? else {
                let why = format!("not over in {} s; give one that ends", PATIENCE.as_secs());
                report.absent("background", foreground.arm.name(), "s", &why);
                return Ok(());
            };
            all[index].add(&run);
            progress.update((round * Arm::ALL.len() + nth + 1) as u64);
        }
    }
    progress.finish();
    let faults = foreground.faults;
    report.check("failures", faults.failures);
    report.check("stray_writes", faults.stray_writes);
    report.check("over_recall", faults.over_recall);
    report.check("not_contiguous", faults.not_contiguous);
    tell(background, &all, foreground.peer_failures, report);
    Ok(())
}

/// One run of the background.
struct Run {
    usage: Usage,
    elapsed: Duration,
    requests: u64,
    recalled: u64,
}

/// Runs the background once with `foreground` beside it; `None` if it did not end in time.
fn run(background: &Background, foreground: &mut Foreground) -> Result<Option<Run>, Error> {
    let stop = AtomicBool::new(false);
    foreground.tenant.refill(foreground.reserve);
    let recalled = foreground.reserve.stats().recalled;
    let start = clock::wall();
    let child = background.spawn()?;
    let (ended, requests) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| foreground.ask_until(&stop));
        let ended = loop {
            match usage_if_ended(&child) {
                Ok(None) if clock::wall() - start > PATIENCE => {
                    kill_group(&child);
                    // Reaped, however it ended: it is no result.
                    while matches!(usage_if_ended(&child), Ok(None)) {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    break Ok(None);
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                other => break other,
            }
        };
        let elapsed = clock::wall() - start;
        stop.store(true, Ordering::Relaxed);
        (ended.map(|usage| usage.map(|usage| (usage, elapsed))), asking.join())
    });
    let requests = requests.map_err(|_| Error::Thread("the foreground panicked".into()))?;
    let ended: Result<_, OsError> = ended;
    let recalled = foreground.reserve.stats().recalled - recalled;
    Ok(ended?.map(|(usage, elapsed)| Run { usage, elapsed, requests, recalled }))
}

impl Foreground<'_> {
    /// Asks for one size after the other; how many requests that were.
    fn ask_until(&mut self, stop: &AtomicBool) -> u64 {
        let mut asked = 0;
        let mut due = clock::wall();
        if matches!(self.arm, Arm::Alone | Arm::AloneAgain) {
            return asked;
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
            match self.arm {
                Arm::Kernel => {
                    let sample = peers::measure(KERNEL, Pages::new(pages));
                    self.peer_failures += u64::from(sample.failed.is_some());
                }
                _ => self.ask(pages),
            }
        }
        asked
    }

    fn ask(&mut self, pages: u64) {
        match ask(self.reserve, Duration::ZERO, Request::new(Pages::new(pages)), false) {
            Ok(mut held) => {
                self.faults.add(held.over_recall());
                if self.arm == Arm::GlebeRefilled {
                    self.faults.add(held.mark(Marking::Pages));
                    self.faults.add(held.check(Marking::Pages));
                }
            }
            Err(_) => self.faults.failures += 1,
        }
        match self.arm {
            Arm::GlebeRefilled => self.tenant.refill(self.reserve),
            _ => self.tenant.put_new(PUT_BACK),
        }
    }
}

impl Runs {
    fn add(&mut self, run: &Run) {
        if !run.usage.succeeded {
            self.failed += 1;
            return;
        }
        let (cpu, elapsed) = (run.usage.user_s + run.usage.system_s, run.elapsed.as_secs_f64());
        self.user_s.push(run.usage.user_s);
        self.system_s.push(run.usage.system_s);
        self.cpu_s.push(cpu);
        self.elapsed_s.push(elapsed);
        self.cpu_percent.push(100.0 * cpu / elapsed);
        self.requests.push(run.requests as f64);
        self.recalled.push(run.recalled as f64);
    }
}

/// The rows, the table and the ratio.
fn tell(background: &Background, all: &[Runs], peer_failures: u64, report: &mut Report) {
    let mean = |samples: &[f64]| Summary::of(samples).map_or(f64::NAN, |s| s.mean);
    let of = |arm| Arm::ALL.iter().position(|&a| a == arm).map(|at| &all[at]);
    let mut text = format!(
        "{:14}  {:>8}  {:>8}  {:>9}  {:>8}  {:>8}  {:>8}  {:>10}\n",
        "beside", "user s", "system s", "elapsed s", "cpu %", "cpu s", "requests", "recalled"
    );
    for (arm, runs) in Arm::ALL.into_iter().zip(all) {
        let columns: [(&str, &[f64]); 7] = [
            ("s user", &runs.user_s),
            ("s system", &runs.system_s),
            ("s", &runs.elapsed_s),
            ("% cpu", &runs.cpu_percent),
            ("s cpu", &runs.cpu_s),
            ("requests", &runs.requests),
            ("pages recalled", &runs.recalled),
        ];
        text.push_str(&format!("{:14}", arm.name()));
        for ((unit, samples), width) in columns.into_iter().zip([8, 8, 9, 8, 8, 8, 10]) {
            report.row("background", arm.name(), unit, samples);
            text.push_str(&format!("  {:>width$.2}", mean(samples)));
        }
        if runs.failed > 0 {
            report.remark(&format!("{} runs failed and are left out", runs.failed));
        }
        text.push('\n');
    }
    let arms = [Arm::Alone, Arm::AloneAgain, Arm::Glebe, Arm::GlebeRefilled].map(of);
    let [Some(one), Some(two), Some(own), Some(refilled)] = arms else { return };
    let alone: Vec<f64> = one.cpu_s.iter().chain(&two.cpu_s).copied().collect();
    let each = one.cpu_s.iter().zip(&two.cpu_s).map(|(a, b)| 100.0 * (a - b).abs() / a.min(*b));
    report.row("background_a_a", "alone", "% apart", &each.collect::<Vec<_>>());
    let apart = 100.0 * (mean(&one.cpu_s) - mean(&two.cpu_s)).abs() / mean(&alone);
    let [rise, refilled] =
        [own, refilled].map(|runs| 100.0 * (mean(&runs.cpu_s) / mean(&alone) - 1.0));
    text.push_str(&format!(
        "CPU seconds beside glebe: {rise:+.1} %, with blocks used and all cache anew each time \
         {refilled:+.1} %; the two means alone are {apart:.1} % apart\n"
    ));
    report.ratio(KEPT, mean(&alone) / mean(&own.cpu_s));
    let runs = own.cpu_s.len();
    report.section(&format!("The background, mean of {runs}: {}", background.what()), &text);
    if peer_failures > 0 {
        report.note(&format!("{peer_failures} requests of {KERNEL} beside the background failed"));
    }
}

#[cfg(test)]
mod tests;
