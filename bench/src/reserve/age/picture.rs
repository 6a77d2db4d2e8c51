//! What happens over time at the highest load, a line for each contestant: the longest free run,
//! failures, recalls.

use glebe::units::Bytes;

use super::hours::{Look, LOOK_S};
use super::Runs;
use crate::summary::Summary;
use crate::svg::{self, Line, LinePlot};

/// Looks that are drawn as one point.
const LOOKS_A_POINT: usize = 30;
const MINUTE_S: f64 = 60.0;
const MINUTES_A_POINT: f64 = LOOK_S as f64 * LOOKS_A_POINT as f64 / MINUTE_S;

/// What the looks of one point come to in one run.
type Value = fn(&[Look]) -> Option<f64>;

/// Draws them; each point is the median of the runs of all seeds.
pub(super) fn draw(all: &[Runs], len: Bytes) -> String {
    let percent = all.iter().map(|one| one.percent).max().unwrap_or(0);
    let drawn: Vec<&Runs> = all.iter().filter(|one| one.percent == percent).collect();
    let plot = |title: String, subtitle: String, y_title: &str, value: Value| LinePlot {
        title,
        subtitle,
        x_title: "minutes of service".into(),
        y_title: y_title.into(),
        series: drawn.iter().map(|runs| line(runs, value)).collect(),
    };
    let longest = plot(
        format!("The longest free run of a {len} reserve in use"),
        format!(
            "By how places are chosen. First class would hold {percent} % of the reserve on \
             average; medians of {MINUTES_A_POINT} minutes and of all seeds."
        ),
        "pages",
        |looks| {
            let pages: Vec<f64> = looks.iter().map(|look| look.largest as f64).collect();
            Summary::of(&pages).map(|s| s.median)
        },
    );
    let failures = plot(
        "Requests refused though enough pages were free".into(),
        "Since the first look; a request that is refused is given up.".into(),
        "requests",
        |looks| looks.last().map(|look| look.failures as f64),
    );
    let recalled = plot(
        "Lent pages that blocks took".into(),
        "Who refuses blocks takes fewer.".into(),
        "pages a minute",
        |looks| {
            let pages = looks.last()?.recalled - looks.first()?.recalled;
            Some(pages as f64 * MINUTE_S / (LOOK_S as f64 * (looks.len() as f64 - 1.0)))
        },
    );
    svg::lines(&[longest, failures, recalled])
}

fn line(runs: &Runs, value: Value) -> Line {
    let points = runs.runs.iter().map(|(run, _)| run.looks.len() / LOOKS_A_POINT).max();
    let point = |at: usize| {
        let of_run = |looks: &[Look]| looks.chunks_exact(LOOKS_A_POINT).nth(at).and_then(value);
        let samples: Vec<f64> =
            runs.runs.iter().filter_map(|(run, _)| of_run(&run.looks)).collect();
        Some(((at + 1) as f64 * MINUTES_A_POINT, Summary::of(&samples)?.median))
    };
    let points = (0..points.unwrap_or(0)).filter_map(point).collect();
    Line { name: runs.contestant.name.into(), points }
}
