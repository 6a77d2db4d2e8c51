//! The table of latencies: for each size of request and contestant how long it took, how often it
//! failed and how long the runs were.

use std::fmt::{self, Write as _};

use glebe::units::Pages;

use crate::summary::Summary;

/// What one contestant did with one size.
#[derive(Clone, Debug)]
pub struct Line {
    /// Pages asked for.
    pub pages: u64,
    /// Who.
    pub who: &'static str,
    /// Wall time of requests that gave memory, in microseconds.
    pub wall_us: Vec<f64>,
    /// Requests that did not.
    pub failures: u64,
    /// The shortest of the blocks' longest runs; `None` where frames are hidden.
    pub longest_run: Option<Pages>,
    /// Why it was not asked, why it failed, or how it was asked.
    pub note: Option<String>,
}

impl Line {
    pub(super) fn new(pages: u64, who: &'static str) -> Self {
        Self { pages, who, wall_us: Vec::new(), failures: 0, longest_run: None, note: None }
    }
}

/// Writes the lines in groups of one size.
pub(super) fn write(lines: &[Line], f: &mut impl fmt::Write) -> fmt::Result {
    writeln!(
        f,
        "{:>6}  {:16}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>8}  {:>9}",
        "pages", "who", "min us", "p50 us", "avg us", "p99 us", "max us", "failures", "worst run"
    )?;
    let mut last = None;
    for line in lines {
        let pages = if last == Some(line.pages) { String::new() } else { line.pages.to_string() };
        last = Some(line.pages);
        let mut text = format!("{pages:>6}  {:16}", line.who);
        match Summary::of(&line.wall_us) {
            Some(s) => {
                let run = line.longest_run.map_or("hidden".into(), |run| run.get().to_string());
                for us in [s.min, s.median, s.mean, s.p99, s.max] {
                    write!(text, "  {us:>9.2}")?;
                }
                write!(text, "  {:>8}  {run:>9}", line.failures)?;
            }
            None => {
                (0..5).try_for_each(|_| write!(text, "  {:>9}", "-"))?;
                write!(text, "  {:>8}", line.failures)?;
            }
        }
        if let Some(note) = &line.note {
            write!(text, "  {note}")?;
        }
        writeln!(f, "{}", text.trim_end())?;
    }
    Ok(())
}
