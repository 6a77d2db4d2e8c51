//! Zeroed blocks of a reserve that keeps zeros in stock, beside unspecified blocks of the same.
//!
//! A request comes when the stock is full again, as far as the count of pages made zero says; one
//! that came sooner is counted and left out. Both kinds come in turn, under a load: the zeroed
//! block is held while the other is asked for, which therefore finds lent pages.
//! Units: microseconds, base pages.

use std::time::Duration;

use glebe::reserve::{Request, Reserve};
use glebe::units::{Bytes, Pages};

use super::requests::{ask, Faults, Held, Marking, EVERY};
use super::tenant::Tenant;
use super::{affordable, map, Error, REQUEST_PAGES};
use crate::clock;
use crate::progress::Progress;
use crate::report::Report;
use crate::summary::Summary;

const RESERVE: Bytes = Bytes::mib(512);
const LARGEST: u64 = REQUEST_PAGES[REQUEST_PAGES.len() - 1];
/// Pages of a granule, beyond the block: it may begin and end within one.
const SLACK: u64 = 1024;
const ROUNDS: u64 = 100;
const ROUNDS_QUICK: u64 = 6;
/// On a busy machine rounds end sooner.
const AT_MOST: Duration = Duration::from_secs(60);
const AT_MOST_QUICK: Duration = Duration::from_secs(5);
/// How long the stock may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Measures and reports.
pub(super) fn measure(quick: bool, report: &mut Report) -> Result<(), Error> {
    let name = format!("zeroed_ahead_{LARGEST}");
    let ratio = format!("{name}_vs_unspecified");
    report.ratio(&ratio, f64::NAN); // there in any case
    let reserve =
        map(affordable(RESERVE, 4)?, Reserve::builder().zero_ahead(Pages::new(LARGEST + SLACK)))?;
    // Two are held at once.
    let fit: u64 = reserve.contig().runs().iter().map(|run| run.pages.len() / LARGEST).sum();
    if fit < 2 || reserve.len().get() < 3 * LARGEST {
        let why = format!(
            "{} pages with room for {fit} runs of {LARGEST} are too few; free memory, or be root",
            reserve.len().get()
        );
        report.absent(&name, "glebe", "us", &why);
        return Ok(());
    }
    let mut tenant = Tenant::new(reserve.page_cache().pool("ahead")?);
    let mut faults = Faults::default();
    let (mut ahead, mut unspecified, mut early) = (Vec::new(), Vec::new(), 0_u64);
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    let mut progress = Progress::new("zeroed ahead", rounds);
    // What nobody has used is zero: the stock is full at first.
    let mut in_stock = true;
    let end = clock::wall() + if quick { AT_MOST_QUICK } else { AT_MOST };
    for round in 0..rounds {
        if clock::wall() > end {
            report.note(&format!("{name}: a busy machine, {round} rounds instead of {rounds}"));
            break;
        }
        tenant.refill_to(&reserve, LARGEST + 2 * SLACK);
        in_stock = in_stock || stock(&reserve);
        let both = ask_both(&reserve, &mut faults);
        if let Some(held) = &both[0] {
            if in_stock {
                ahead.push(held.elapsed.wall_us);
            } else {
                early += 1;
            }
        }
        unspecified.extend(both[1].iter().map(|held| held.elapsed.wall_us));
        for mut held in both.into_iter().flatten() {
            faults.add(held.over_recall());
            faults.add(held.mark(Marking::Pages));
            faults.add(held.check(Marking::Pages));
        }
        in_stock = false;
        progress.update(round + 1);
    }
    progress.finish();
    report.row(&name, "glebe", "us", &ahead);
    if early > 0 {
        report.remark(&format!("{early} more, left out, before the stock was full again"));
    }
    report.row(&format!("recall_beside_ahead_{LARGEST}"), "glebe", "us", &unspecified);
    if let (Some(ahead), Some(other)) = (Summary::of(&ahead), Summary::of(&unspecified)) {
        report.ratio(&ratio, other.median / ahead.median);
    }
    report.check("failures", faults.failures + tenant.failures);
    report.check("stray_writes", faults.stray_writes);
    report.check("over_recall", faults.over_recall);
    report.check("not_contiguous", faults.not_contiguous);
    report.check("wrong_bytes", faults.not_zero);
    Ok(())
}

/// A zeroed block and an unspecified one, both held.
fn ask_both(reserve: &Reserve, faults: &mut Faults) -> [Option<Held>; 2] {
    [true, false].map(|zeroed| {
        let request = Request::new(Pages::new(LARGEST));
        let request = if zeroed { request.zeroed() } else { request };
        let held = ask(reserve, EVERY, request, zeroed);
        faults.failures += u64::from(held.is_err());
        held.ok()
    })
}

/// Waits until no page has been made zero for a while; whether that came in time.
fn stock(reserve: &Reserve) -> bool {
    const QUIET: Duration = Duration::from_millis(60);
    let end = clock::wall() + PATIENCE;
    let mut last = (reserve.stats().zeroed_ahead, clock::wall());
    while clock::wall() < end {
        std::thread::sleep(Duration::from_millis(5));
        let (made, now) = (reserve.stats().zeroed_ahead, clock::wall());
        if made != last.0 {
            last = (made, now);
        } else if now - last.1 > QUIET {
            return true;
        }
    }
    false
}
