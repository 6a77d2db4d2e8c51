//! Compares glebe with its engine mimalloc: the cost of the page layer in time and memory.

use super::peer::MIMALLOC;
use super::ran::PEAK;
use super::{programs, suite};
use crate::report::{Report, GLEBE};
use crate::turns::median;

pub(super) fn sum_up(report: &mut Report) {
    let (mut small, mut peak) = (f64::INFINITY, f64::INFINITY);
    for (case, unit) in programs::cases().chain(suite::cases()) {
        let versus = |unit: &str| {
            median(report.of(&case, MIMALLOC, unit)) / median(report.of(&case, GLEBE, unit))
        };
        let (time, memory) = (versus(unit), versus(PEAK));
        if time.is_nan() {
            continue;
        }
        report.ratio(&format!("{case}_vs_engine"), time);
        report.ratio(&format!("{case}_peak_vs_engine"), memory);
        (small, peak) = (small.min(time), peak.min(memory));
    }
    let known = |ratio: f64| if ratio.is_finite() { ratio } else { f64::NAN };
    report.ratio("small_vs_engine", known(small));
    report.ratio("peak_vs_engine", known(peak));
    report.note(
        "X_vs_engine: mimalloc's CPU time over glebe's, X_peak_vs_engine the same of the most \
         memory resident; ratios of medians. small_vs_engine and peak_vs_engine are those of the \
         worst program of all that were run.",
    );
}
