//! [`Report`]: the outcome of one benchmark, as JSON for machines and a table for people.
//!
//! The JSON has a fixed form, version [`VERSION`]: `bench`, `version`, `date`, `command`, `quick`,
//! `machine`, `rows`, `ratios`, `checks`. Ratios are named so that larger is better for glebe,
//! unless their name says `growth` or `cost`; checks are counts that must be 0, and `null` where
//! nothing was looked at: that is no 0. A peer that is not on the machine is a row with a note
//! instead of figures. Caveats ([`Report::note`]) stand under
//! the table. Figures are kept to [`DIGITS`] significant digits; one that is not a finite number
//! is `null`. Unit of a row: its own field.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use glebe::error::OsError;
use serde::Serialize;

use crate::clock;
use crate::machine::Machine;
use crate::summary::Summary;
use crate::whole_file;

/// Version of the JSON's form.
pub const VERSION: u32 = 1;

/// Significant digits kept of a figure.
pub const DIGITS: i32 = 6;

/// The outcome of one run of one benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    bench: String,
    version: u32,
    date: String,
    command: String,
    quick: bool,
    machine: Machine,
    rows: Vec<Row>,
    ratios: BTreeMap<String, Option<f64>>,
    checks: BTreeMap<String, Option<u64>>,
    /// Why checks are not measured.
    #[serde(skip)]
    reasons: BTreeMap<String, String>,
    #[serde(skip)]
    sections: Vec<String>,
    #[serde(skip)]
    notes: Vec<String>,
}

/// What was done, who did it, and the figures or the reason why there are none.
#[derive(Clone, Debug, Serialize)]
struct Row {
    case: String,
    who: String,
    unit: String,
    #[serde(flatten)]
    figures: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    median: Option<f64>,
    p99: Option<f64>,
    max: Option<f64>,
    min: Option<f64>,
    mean: Option<f64>,
    stdev: Option<f64>,
    runs: u64,
}

impl Report {
    /// An empty report of benchmark `bench` as `command` ran it, dated now, of this machine.
    #[must_use]
    pub fn new(bench: &str, command: &str, quick: bool) -> Self {
        Self {
            bench: bench.into(),
            version: VERSION,
            date: clock::utc_now(),
            command: command.into(),
            quick,
            machine: Machine::read(),
            rows: Vec::new(),
            ratios: BTreeMap::new(),
            checks: BTreeMap::new(),
            reasons: BTreeMap::new(),
            sections: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds the samples' summary; without a sample, a row that says so.
    pub fn row(&mut self, case: &str, who: &str, unit: &str, samples: &[f64]) {
        match Summary::of(samples) {
            Some(summary) => self.summary(case, who, unit, &summary),
            None => self.absent(case, who, unit, "no sample"),
        }
    }

    /// Adds a row from figures already summarised.
    pub fn summary(&mut self, case: &str, who: &str, unit: &str, summary: &Summary) {
        let figures = Figures {
            median: rounded(summary.median),
            p99: rounded(summary.p99),
            max: rounded(summary.max),
            min: rounded(summary.min),
            mean: rounded(summary.mean),
            stdev: rounded(summary.stdev),
            runs: summary.runs,
        };
        self.push(case, who, unit, Some(figures), None);
    }

    /// Adds a row that says why there are no figures, and how to get them.
    pub fn absent(&mut self, case: &str, who: &str, unit: &str, why: &str) {
        self.push(case, who, unit, None, Some(why.into()));
    }

    /// Puts a remark on the row added last, such as how many of its requests failed.
    pub fn remark(&mut self, text: &str) {
        if let Some(row) = self.rows.last_mut() {
            row.note = Some(text.into());
        }
    }

    /// Sets a ratio; the last value of a name stands.
    pub fn ratio(&mut self, name: &str, value: f64) {
        self.ratios.insert(name.into(), rounded(value));
    }

    /// Adds `count` to a check, which thereby exists: 0 says that it was looked at.
    pub fn check(&mut self, name: &str, count: u64) {
        let total = self.checks.entry(name.into()).or_insert(None);
        *total = Some(total.unwrap_or(0).saturating_add(count));
    }

    /// Names a check that could not be made, and why; what was counted for it before stands.
    pub fn unmeasured(&mut self, name: &str, why: &str) {
        self.checks.entry(name.into()).or_insert(None);
        self.reasons.insert(name.into(), why.into());
    }

    /// What of `cases`, `ratios` and `checks` the report does not name. A row that says why there
    /// are no figures names its case, as an empty ratio or a check that was not made do theirs.
    #[must_use]
    pub fn missing<'a>(
        &self,
        cases: &[&'a str],
        ratios: &[&'a str],
        checks: &[&'a str],
    ) -> Vec<&'a str> {
        let case = |name: &&&str| !self.rows.iter().any(|row| row.case == **name);
        let ratio = |name: &&&str| !self.ratios.contains_key(**name);
        let check = |name: &&&str| !self.checks.contains_key(**name);
        let cases = cases.iter().filter(case);
        let ratios = ratios.iter().filter(ratio);
        cases.chain(ratios).chain(checks.iter().filter(check)).copied().collect()
    }

    /// Adds a line under the table: what is simulated, left out, or unfair to either side.
    pub fn note(&mut self, text: &str) {
        self.notes.push(text.into());
    }

    /// Adds a table that shows rows of this report in another arrangement, for people only.
    pub fn section(&mut self, title: &str, table: &str) {
        self.sections.push(format!("{title}\n{table}"));
    }

    /// Whether every check that was made is 0.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.checks.values().flatten().all(|&count| count == 0)
    }

    fn push(
        &mut self,
        case: &str,
        who: &str,
        unit: &str,
        fig: Option<Figures>,
        note: Option<String>,
    ) {
        let (case, who, unit) = (case.into(), who.into(), unit.into());
        self.rows.push(Row { case, who, unit, figures: fig, note });
    }

    /// The JSON text, a newline at its end.
    #[must_use]
    pub fn json(&self) -> String {
        // Strings, numbers and maps with string keys: there is nothing here that JSON cannot hold.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Writes the JSON to `path`, whole or not at all: see [`whole_file::write`].
    ///
    /// # Errors
    /// What the file system refuses; then no file is left behind and an old one is as it was.
    pub fn write(&self, path: &Path) -> Result<(), OsError> {
        whole_file::write(path, self.json().as_bytes())
    }

    /// The table for people.
    #[must_use]
    pub fn text(&self) -> String {
        let m = &self.machine;
        let memory = glebe::units::Bytes::new(m.memory_bytes);
        let mut out = format!(
            "{} {}{}\nLinux {}, {} CPUs, {memory}, THP {}{}\n\n",
            self.bench,
            self.date,
            if self.quick { " (quick: too few samples to compare)" } else { "" },
            m.kernel,
            m.cpus,
            m.thp,
            if m.privileged { "" } else { ", unprivileged" },
        );
        out.push_str(&table(&self.rows));
        for section in &self.sections {
            let _ = writeln!(out, "\n{}", section.trim_end());
        }
        if !self.ratios.is_empty() {
            out.push_str("\nratios (larger is better for glebe; growth and cost: smaller)\n");
            let width = self.ratios.keys().map(String::len).max().unwrap_or(0);
            for (name, &value) in &self.ratios {
                let _ = writeln!(out, "  {name:<width$}  {:>10}", figure(value));
            }
        }
        if !self.checks.is_empty() {
            out.push_str("\nchecks (must be 0)\n");
            let width = self.checks.keys().map(String::len).max().unwrap_or(0);
            for (name, &count) in &self.checks {
                let _ = match (count, self.reasons.get(name)) {
                    (None, why) => {
                        let why = why.map_or("no sample", String::as_str);
                        writeln!(out, "  {name:<width$}  not measured: {why}")
                    }
                    (Some(count), _) => {
                        let wrong = if count == 0 { "" } else { "  WRONG" };
                        writeln!(out, "  {name:<width$}  {count:>10}{wrong}")
                    }
                };
            }
        }
        for note in &self.notes {
            let _ = write!(out, "\n{note}");
        }
        if !self.notes.is_empty() {
            out.push('\n');
        }
        out
    }
}

/// One line a row, figures to the right; spread is the standard deviation.
fn table(rows: &[Row]) -> String {
    const HEAD: [&str; 8] = ["case", "who", "unit", "median", "p99", "max", "spread", "runs"];
    const TEXT_COLUMNS: usize = 3;
    let cells = |row: &Row| -> Vec<String> {
        let mut line = vec![row.case.clone(), row.who.clone(), row.unit.clone()];
        if let Some(f) = row.figures {
            line.extend([f.median, f.p99, f.max, f.stdev].map(figure));
            line.push(f.runs.to_string());
        }
        line
    };
    let head: Vec<String> = HEAD.iter().map(ToString::to_string).collect();
    let lines: Vec<_> = rows.iter().map(cells).collect();
    let mut widths = [0; HEAD.len()];
    for line in std::iter::once(&head).chain(&lines) {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut out = String::new();
    let notes = std::iter::once(None).chain(rows.iter().map(|row| row.note.as_deref()));
    for (line, note) in std::iter::once(&head).chain(&lines).zip(notes) {
        let mut text = String::new();
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            let _ = match column < TEXT_COLUMNS {
                true => write!(text, "{cell:<width$}  "),
                false => write!(text, "{cell:>width$}  "),
            };
        }
        text.push_str(note.unwrap_or(""));
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

/// A figure for people: four significant digits, thousands whole.
fn figure(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(0.0) => "0".into(),
        Some(v) => {
            let decimals = (3 - v.abs().log10().floor() as i32).clamp(0, 6) as usize;
            format!("{v:.decimals$}")
        }
    }
}

/// To [`DIGITS`] significant digits; `None` for what is not finite.
fn rounded(value: f64) -> Option<f64> {
    let text = format!("{value:.*e}", DIGITS as usize - 1);
    text.parse().ok().filter(|v: &f64| v.is_finite())
}

#[cfg(test)]
mod tests;
