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
use std::ops::Range;

use comfy_table::{presets, CellAlignment, Table};
use glebe::units::Bytes;
use serde::Serialize;

use crate::clock;
use crate::machine::Machine;
use crate::summary::Summary;

/// Version of the JSON's form.
pub const VERSION: u32 = 1;

/// Significant digits kept of a figure.
pub const DIGITS: i32 = 6;

/// The outcome of one run of one benchmark.
#[derive(Clone, Debug)]
pub struct Report {
    bench: String,
    date: String,
    command: String,
    quick: bool,
    machine: Machine,
    rows: Vec<Row>,
    ratios: BTreeMap<String, Option<f64>>,
    checks: BTreeMap<String, Option<u64>>,
    /// Why checks are not measured.
    reasons: BTreeMap<String, String>,
    notes: Vec<String>,
}

/// What was done, who did it, and the figures or the reason why there are none.
#[derive(Clone, Debug, Serialize)]
struct Row {
    case: String,
    who: String,
    unit: String,
    #[serde(flatten)]
    figures: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl Report {
    /// An empty report of benchmark `bench` as `command` ran it, dated now, of this machine.
    #[must_use]
    pub fn new(bench: &str, command: &str, quick: bool) -> Self {
        Self {
            bench: bench.into(),
            date: clock::utc_now(),
            command: command.into(),
            quick,
            machine: Machine::read(),
            rows: Vec::new(),
            ratios: BTreeMap::new(),
            checks: BTreeMap::new(),
            reasons: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    /// Adds the samples' summary; without a sample, a row that says so.
    pub fn row(&mut self, case: &str, who: &str, unit: &str, samples: &[f64]) {
        let Some(summary) = Summary::of(samples) else {
            return self.absent(case, who, unit, "no sample");
        };
        let figures = summary.map(|figure| rounded(figure).unwrap_or(figure));
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

    /// Adds a line under the table: what is simulated, left out, or unfair to either side.
    pub fn note(&mut self, text: &str) {
        self.notes.push(text.into());
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
        fig: Option<Summary>,
        note: Option<String>,
    ) {
        let (case, who, unit) = (case.into(), who.into(), unit.into());
        self.rows.push(Row { case, who, unit, figures: fig, note });
    }

    /// The JSON text: one row a line, one ratio a line.
    #[must_use]
    pub fn json(&self) -> String {
        let rows = lines(self.rows.iter().map(json_of));
        let pair = |name: &String, value: String| format!("{}: {value}", json_of(name));
        let ratios = lines(self.ratios.iter().map(|(name, value)| pair(name, json_of(value))));
        let checks = lines(self.checks.iter().map(|(name, count)| pair(name, json_of(count))));
        let head = [&self.bench, &self.date, &self.command].map(json_of);
        let [bench, date, command] = head;
        let (quick, machine) = (self.quick, json_of(&self.machine));
        format!(
            "{{\n  \"bench\": {bench},\n  \"version\": {VERSION},\n  \"date\": {date},\n  \
             \"command\": {command},\n  \"quick\": {quick},\n  \"machine\": {machine},\n  \
             \"rows\": [{rows}],\n  \"ratios\": {{{ratios}}},\n  \"checks\": {{{checks}}}\n}}\n"
        )
    }

    /// The table for people.
    #[must_use]
    pub fn text(&self) -> String {
        let m = &self.machine;
        let quick = if self.quick { " (quick: too few samples to compare)" } else { "" };
        let user = if m.privileged { "" } else { ", unprivileged" };
        let memory = Bytes::new(m.memory_bytes);
        let mut out = format!(
            "{} {}{quick}\nLinux {}, {} CPUs, {memory}, THP {}{user}\n\n{}\n",
            self.bench,
            self.date,
            m.kernel,
            m.cpus,
            m.thp,
            rows(&self.rows)
        );
        if !self.ratios.is_empty() {
            let ratios = self.ratios.iter().map(|(name, &value)| [name.clone(), figure(value)]);
            // Writing to a string does not fail.
            let head = "ratios (larger is better for glebe; growth and cost: smaller)";
            let _ = writeln!(out, "\n{head}\n{}", pairs(ratios));
        }
        if !self.checks.is_empty() {
            let checks =
                self.checks.iter().map(|(name, &count)| [name.clone(), self.said(name, count)]);
            let _ = writeln!(out, "\nchecks (must be 0)\n{}", pairs(checks));
        }
        for note in &self.notes {
            let _ = write!(out, "\n{note}");
        }
        if !self.notes.is_empty() {
            out.push('\n');
        }
        out
    }

    fn said(&self, check: &str, count: Option<u64>) -> String {
        match (count, self.reasons.get(check)) {
            (None, why) => format!("not measured: {}", why.map_or("no sample", String::as_str)),
            (Some(0), _) => "0".into(),
            (Some(count), _) => format!("{count}  WRONG"),
        }
    }
}

/// Strings, numbers and maps with string keys: there is nothing here that JSON cannot hold.
fn json_of<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// One a line, between commas.
fn lines(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.map(|line| format!("\n    {line}")).collect();
    if all.is_empty() {
        String::new()
    } else {
        all.join(",") + "\n  "
    }
}

/// A line a row, figures to the right; spread is the standard deviation.
fn rows(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.set_header(["case", "who", "unit", "median", "p99", "max", "spread", "runs", ""]);
    for Row { case, who, unit, figures, note } in rows {
        let mut cells = vec![case.clone(), who.clone(), unit.clone()];
        match figures {
            Some(f) => cells.extend([f.median, f.p99, f.max, f.stdev].map(|v| figure(Some(v)))),
            None => cells.extend([const { String::new() }; 4]),
        }
        cells.push(figures.map_or(String::new(), |f| f.runs.to_string()));
        cells.push(note.clone().unwrap_or_default());
        table.add_row(cells);
    }
    plain(table, 3..8)
}

/// Names and what is said of each, one a line.
fn pairs(all: impl Iterator<Item = [String; 2]>) -> String {
    let mut table = Table::new();
    for pair in all {
        table.add_row(pair);
    }
    plain(table, 0..0)
}

/// The table without rules, the `numbers` to the right.
fn plain(mut table: Table, numbers: Range<usize>) -> String {
    table.load_preset(presets::NOTHING);
    for (nth, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if numbers.contains(&nth) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
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
