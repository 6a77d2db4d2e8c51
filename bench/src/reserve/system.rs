//! Measures what requests cost the machine: the time of a background command alone, beside requests
//! to the kernel, and beside requests to the reserve.
//!
//! The foreground asks for all sizes in turn, at most one request in [`EVERY`], and frees at once.
//! A tenant puts pages after each request to the reserve, so that there are always pages to recall.
//! Each round runs the background alone twice, which shows the noise. CPU time includes all
//! processes that the command waited for.

use std::time::Duration;

use glebe::page_size;
use glebe::reserve::Reserve;
use glebe::units::Pages;

use super::background::{of_children, Background};
use super::requests::ask;
use super::tenant::Tenant;
use super::{GLEBE, REQUEST_PAGES, THP};
use crate::report::Report;
use crate::turns::rounds;
use crate::{clock, interrupt, Outcome};

/// Requests become due at this interval. During a build of ten seconds, each size is asked for
/// about 30 times.
const EVERY: Duration = Duration::from_millis(40);
/// Pages put after a request: up to 100 MiB per second with 4 KiB pages.
const PUT_BACK: u64 = 1024;
const AT_MOST: Duration = Duration::from_secs(210);
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(2);
const KEPT: &str = "background_kept";
pub(super) const CASE: &str = "background";
const CPU: &str = "s cpu";
const ALONE: [&str; 2] = ["alone", "alone_again"];
/// The background load runs four times: without requests, with requests to the kernel, without
/// again, with requests to glebe.
const ARMS: [&str; 4] = [ALONE[0], THP.0, ALONE[1], GLEBE];

/// `reserve` is full of pages of `tenant`.
pub(super) fn measure(
    background: Option<&Background>,
    reserve: &Reserve,
    tenant: &mut Tenant,
    report: &mut Report,
) -> Outcome {
    report.ratio(KEPT, f64::NAN); // so that the JSON always has the name
    let Some(background) = background else { return Ok(()) };
    'all: for round in rounds(CASE, report.plan(1, 5), AT_MOST) {
        for nth in 0..ARMS.len() {
            let who = ARMS[(nth + round as usize) % ARMS.len()];
            tenant.refill(reserve);
            if let Err(why) = beside(background, who, reserve, tenant, report) {
                report.outcome(CASE, who, CPU, Err(why));
                break 'all;
            }
        }
    }
    let [first, again] = ALONE.map(|who| report.of(CASE, who, CPU));
    let pairs = first.iter().zip(again);
    let apart: Vec<f64> = pairs.map(|(a, b)| 100.0 * (a - b).abs() / a.min(*b)).collect();
    report.row("background_a_a", ALONE[0], "% apart", &apart);
    let mean = |who: &str| report.figure((CASE, who, CPU), |summary| summary.mean);
    report.ratio(KEPT, (mean(ALONE[0]) + mean(ALONE[1])) / 2.0 / mean(GLEBE));
    report.note(&format!(
        "background: {}; one request in {} ms beside; what of it fails counts for the kernel as \
         for the reserve. The ratio is of the means of CPU seconds, alone and beside glebe.",
        background.what,
        EVERY.as_millis(),
    ));
    Ok(())
}

/// Runs the background once, beside requests to `who`, or none if `who` is in [`ALONE`]. Fails if
/// the background fails or takes too long.
fn beside(
    background: &Background,
    who: &str,
    reserve: &Reserve,
    tenant: &mut Tenant,
    report: &mut Report,
) -> Outcome {
    let longest = reserve.contig().longest_run().get();
    let mut sizes = REQUEST_PAGES.into_iter().filter(|&pages| pages <= longest).cycle();
    let (mut asked, mut refused) = (0_u64, 0_u64);
    let (cpu, start) = (of_children()?, clock::wall());
    let mut running = background.start()?;
    let mut due = start + EVERY;
    let status = loop {
        interrupt::check();
        let now = clock::wall();
        if let Some(status) = running.ended()? {
            break status;
        }
        if now - start > PATIENCE {
            return Err(format!("it was not over in {} s", PATIENCE.as_secs()).into());
        }
        if now < due || ALONE.contains(&who) {
            std::thread::sleep(LOOK_EVERY);
            continue;
        }
        due = (due + EVERY).max(now);
        let Some(pages) = sizes.next() else { continue };
        asked += 1;
        refused += u64::from(!is_had(who, pages, reserve, tenant, report));
    };
    let elapsed = clock::wall() - start;
    if !status.success() {
        return Err(format!("it failed: {status}").into());
    }
    report.add(CASE, who, "s", elapsed.as_secs_f64());
    report.add(CASE, who, CPU, of_children()? - cpu);
    report.add(CASE, who, "requests", asked as f64);
    report.add(CASE, who, "requests refused", refused as f64);
    Ok(())
}

/// Returns true if `who` gave the pages, which are given back at once.
fn is_had(
    who: &str,
    pages: u64,
    reserve: &Reserve,
    tenant: &mut Tenant,
    report: &mut Report,
) -> bool {
    if who == THP.0 {
        return THP.1.obtain(Pages::new(pages).bytes(page_size())).is_ok();
    }
    let had = ask(reserve, Duration::ZERO, pages, false).map(|held| held.over_recall(report));
    report.check("failures", u64::from(had.is_err()));
    tenant.put_new(PUT_BACK);
    had.is_ok()
}

#[cfg(test)]
mod tests {
    //! Tests with commands that end quickly, on a small reserve.

    use super::*;
    use crate::report::Options;
    use crate::reserve::map;
    use crate::turns::median;
    use glebe::units::Bytes;

    fn measured(command: &str) -> Report {
        let reserve = map(Bytes::mib(8)).unwrap();
        let mut tenant = Tenant::new(&reserve).unwrap();
        let background = Some(command.to_owned());
        let options = Options { quick: true, background, ..Options::default() };
        let background = Background::new(&options).unwrap();
        let mut report = Report::new("reserve", options);
        measure(Some(&background), &reserve, &mut tenant, &mut report).unwrap();
        assert!(report.passed(), "{}", report.text());
        report
    }

    #[test]
    fn each_arm_is_run_and_those_alone_ask_nothing() {
        let report = measured("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done");
        for who in ARMS {
            assert!(median(report.of(CASE, who, CPU)) > 0.01, "{}", report.text());
            let asked = median(report.of(CASE, who, "requests"));
            assert_eq!(asked == 0.0, ALONE.contains(&who), "{}", report.text());
        }
        assert!(!report.json().contains("\"background_kept\": null"));
    }

    #[test]
    fn a_background_that_fails_gives_no_figure() {
        let report = measured("exit 1");
        assert!(report.of(CASE, GLEBE, CPU).is_empty() && report.text().contains("it failed"));
        assert!(report.json().contains("\"background_kept\": null"));
    }
}
