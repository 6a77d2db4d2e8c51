//! [`Report`]: options, samples and figures of one run, as JSON and as a table.
//!
//! Larger ratios are better for glebe, unless named `growth` or `cost`. Checks must be 0; a check
//! that was not made is `null`. A row without samples has a note. JSON figures have [`DIGITS`]
//! significant digits; a ratio that is not finite is `null`.

use std::collections::BTreeMap;
use std::env;
use std::fmt::{Display, Write as _};
use std::path::PathBuf;
use std::time::SystemTime;

use comfy_table::{presets, CellAlignment, Table};
use serde::Serialize;
use serde_json::{json, Value};

use crate::machine::Machine;
use crate::summary::Summary;
use crate::turns;

pub(crate) const GLEBE: &str = "glebe";
const DIGITS: usize = 6;

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Options {
    /// Few samples: too few to compare
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the JSON here too
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Where scratch files go; zpool: where a kernel source tree is looked for first
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// reserve: a shell command that ends, as background load instead of a build
    #[arg(long, value_name = "CMD")]
    pub(crate) background: Option<String>,
    /// zpool: store the files of this directory, whatever is there
    #[arg(long, value_name = "DIR")]
    pub(crate) tree: Option<PathBuf>,
    /// malloc: this libglebe_malloc.so, not the one beside the program
    #[arg(long, value_name = "PATH")]
    pub(crate) lib: Option<PathBuf>,
    /// malloc, swap: only this part, or this case of a malloc part; may be repeated
    #[arg(long, value_name = "PART")]
    pub(crate) only: Vec<String>,
}

impl Options {
    pub(crate) fn scratch(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(env::temp_dir)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) options: Options,
    bench: &'static str,
    date: String,
    machine: Machine,
    all: Vec<Series>,
    ratios: BTreeMap<String, f64>,
    /// The number of errors, or why the check was not made.
    checks: BTreeMap<String, Result<u64, String>>,
    notes: Vec<String>,
}

#[derive(Debug)]
struct Series {
    case: String,
    who: String,
    unit: &'static str,
    values: Vec<f64>,
    failed: u64,
    /// Remark on the samples, such as the memory's source, or why samples are missing.
    remark: Option<String>,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    case: &'a str,
    who: &'a str,
    unit: &'a str,
    #[serde(flatten)]
    figures: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl Report {
    pub(crate) fn new(bench: &'static str, options: Options) -> Self {
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let machine = Machine::read();
        Self { options, bench, date, machine, ..Self::default() }
    }

    pub(crate) fn plan<T>(&self, quick: T, full: T) -> T {
        match self.options.quick {
            true => quick,
            false => full,
        }
    }

    pub(crate) fn add(&mut self, case: &str, who: &str, unit: &'static str, value: f64) {
        self.series(case, who, unit).values.push(value);
    }

    pub(crate) fn row(&mut self, case: &str, who: &str, unit: &'static str, samples: &[f64]) {
        self.series(case, who, unit).values.extend_from_slice(samples);
    }

    pub(crate) fn outcome<E: Display>(
        &mut self,
        case: &str,
        who: &str,
        unit: &'static str,
        value: Result<f64, E>,
    ) {
        let series = self.series(case, who, unit);
        match value {
            Ok(value) => series.values.push(value),
            Err(why) => {
                series.failed += 1;
                series.remark = Some(why.to_string());
            }
        }
    }

    pub(crate) fn remark(&mut self, case: &str, who: &str, unit: &'static str, text: &str) {
        self.series(case, who, unit).remark = Some(text.into());
    }

    fn series(&mut self, case: &str, who: &str, unit: &'static str) -> &mut Series {
        let same = |s: &Series| s.case == case && s.who == who && s.unit == unit;
        let at = self.all.iter().position(same).unwrap_or_else(|| {
            let (case, who, values) = (case.to_owned(), who.to_owned(), Vec::new());
            self.all.push(Series { case, who, unit, values, failed: 0, remark: None });
            self.all.len() - 1
        });
        &mut self.all[at]
    }

    pub(crate) fn of(&self, case: &str, who: &str, unit: &str) -> &[f64] {
        let same = |s: &&Series| s.case == case && s.who == who && s.unit == unit;
        self.all.iter().find(same).map_or(&[], |series| &series.values)
    }

    pub(crate) fn figure(
        &self,
        (case, who, unit): (&str, &str, &str),
        figure: fn(&Summary) -> f64,
    ) -> f64 {
        Summary::of(self.of(case, who, unit)).as_ref().map_or(f64::NAN, figure)
    }

    /// Returns the median in the row's first reported unit, or NaN if there is none.
    pub(crate) fn median(&self, case: &str, who: &str) -> f64 {
        let found = self.all.iter().find(|series| series.case == case && series.who == who);
        found.map_or(f64::NAN, |series| turns::median(&series.values))
    }

    pub(crate) fn ratio(&mut self, name: &str, value: f64) {
        self.ratios.insert(name.into(), value);
    }

    /// Adds `count` errors to a check. A count of 0 says that the check was made.
    pub(crate) fn check(&mut self, name: &str, count: u64) {
        let total = self.checks.get(name).and_then(|made| made.as_ref().ok()).unwrap_or(&0);
        self.checks.insert(name.into(), Ok(total.saturating_add(count)));
    }

    /// Records why a check was not made, unless it already has an entry.
    pub(crate) fn unmeasured(&mut self, name: &str, why: &str) {
        self.checks.entry(name.into()).or_insert(Err(why.into()));
    }

    pub(crate) fn note(&mut self, text: &str) {
        self.notes.push(text.into());
    }

    pub(crate) fn passed(&self) -> bool {
        self.checks.values().flatten().all(|&count| count == 0)
    }

    fn rows<'a>(&'a self) -> Vec<Row<'a>> {
        let mut rows: Vec<_> = self.all.iter().collect();
        rows.sort_by_key(|row| self.all.iter().position(|first| first.case == row.case));
        let row = |series: &'a Series| {
            let figures = Summary::of(&series.values).map(|f| f.map(rounded));
            let note = match (&series.remark, series.failed) {
                (None, _) if figures.is_none() => Some("no sample".to_owned()),
                (Some(why), failed @ 1..) if figures.is_some() => {
                    Some(format!("{failed} failed: {why}"))
                }
                (remark, _) => remark.clone(),
            };
            let Series { case, who, unit, .. } = series;
            Row { case, who, unit, figures, note }
        };
        rows.into_iter().map(row).collect()
    }

    pub(crate) fn json(&self) -> String {
        let ratios = self.ratios.iter().map(|(name, &value)| (name, rounded(value)));
        let checks = self.checks.iter().map(|(name, count)| (name, count.as_ref().ok()));
        let all = json!({
            "bench": self.bench,
            "version": 1,
            "date": self.date,
            "command": env::args().collect::<Vec<_>>().join(" "),
            "quick": self.options.quick,
            "machine": self.machine,
            "rows": self.rows(),
            "ratios": ratios.collect::<BTreeMap<_, _>>(),
            "checks": checks.collect::<BTreeMap<_, _>>(),
        });
        let lines = |all: Vec<String>| format!("\n    {}\n  ", all.join(",\n    "));
        let pair = |(name, value): (&String, &Value)| format!("{name:?}: {value}");
        let member = |(name, value): (&String, &Value)| match value {
            Value::Array(rows) => {
                format!("{name:?}: [{}]", lines(rows.iter().map(Value::to_string).collect()))
            }
            Value::Object(all) if name != "machine" => {
                format!("{name:?}: {{{}}}", lines(all.iter().map(pair).collect()))
            }
            _ => pair((name, value)),
        };
        let members: Vec<_> = all.as_object().into_iter().flatten().map(member).collect();
        format!("{{\n  {}\n}}\n", members.join(",\n  "))
    }

    pub(crate) fn text(&self) -> String {
        let quick = self.plan(" (quick: too few samples to compare)", "");
        let mut out = format!("{} {}{quick}\n{}\n\n", self.bench, self.date, json!(self.machine));
        out += &table_of(&self.rows());
        out += "\nratios (larger is better for glebe; growth and cost: smaller)\n";
        for (name, &value) in &self.ratios {
            let _ = writeln!(out, "{name:48}  {}", figure(value));
        }
        out += "\nchecks (must be 0)\n";
        for (name, count) in &self.checks {
            let _ = match count {
                Ok(0) => writeln!(out, "{name:24}  0"),
                Ok(count) => writeln!(out, "{name:24}  {count}  WRONG"),
                Err(why) => writeln!(out, "{name:24}  not measured: {why}"),
            };
        }
        format!("{out}\n{}\n", self.notes.join("\n"))
    }
}

fn table_of(rows: &[Row<'_>]) -> String {
    let mut table = Table::new();
    table.set_header(["case", "who", "unit", "median", "p99", "max", "spread", "runs", ""]);
    for Row { case, who, unit, figures, note } in rows {
        let figures = figures.map_or([const { String::new() }; 5], |f| {
            let [median, p99, max, spread] = [f.median, f.p99, f.max, f.stdev].map(figure);
            [median, p99, max, spread, f.runs.to_string()]
        });
        let words = [case, who, unit].map(|&word| word.to_owned());
        table.add_row(words.into_iter().chain(figures).chain([note.clone().unwrap_or_default()]));
    }
    table.load_preset(presets::NOTHING);
    for (nth, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if (3..8).contains(&nth) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt() + "\n"
}

/// Formats four significant digits, with at most six decimals and all digits before the point; `-`
/// if not finite.
fn figure(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        v if v.is_finite() => {
            let decimals = (3 - v.abs().log10().floor() as i32).clamp(0, 6) as usize;
            format!("{v:.decimals$}")
        }
        _ => "-".into(),
    }
}

fn rounded(value: f64) -> f64 {
    format!("{value:.*e}", DIGITS - 1).parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(report: &Report) -> Value {
        serde_json::from_str(&report.json()).unwrap()
    }

    #[test]
    fn json_has_the_fixed_form_and_rows_of_a_case_stand_together() {
        let mut report = Report::new("reserve", Options { quick: true, ..Options::default() });
        for us in [3.0, 1.0, 2.0] {
            report.add("recall_1", "glebe", "us", us);
            report.add("recall_2", "glebe", "us", 2.0 * us);
        }
        report.remark("recall_1", "dpdk", "us", "not installed: apt-get install dpdk-dev");
        report.outcome("recall_2", "glebe", "us", Err("no pages"));
        report.row("recall_1", "thp", "us", &[]);
        report.ratio("max_32000_vs_best_kernel", 131.000_000_4);
        report.ratio("p99_1_vs_best_kernel", 1.0 / 0.0);
        report.check("wrong_bytes", 0);
        let json = parsed(&report);
        assert_eq!((&json["bench"], &json["version"]), (&json!("reserve"), &json!(1)));
        assert!(json["machine"]["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{json}");
        let expected = json!([
            {"case": "recall_1", "who": "glebe", "unit": "us", "median": 2.0, "p99": 3.0,
             "max": 3.0, "min": 1.0, "mean": 2.0, "stdev": 1.0, "runs": 3},
            {"case": "recall_1", "who": "dpdk", "unit": "us",
             "note": "not installed: apt-get install dpdk-dev"},
            {"case": "recall_1", "who": "thp", "unit": "us", "note": "no sample"},
            {"case": "recall_2", "who": "glebe", "unit": "us", "median": 4.0, "p99": 6.0,
             "max": 6.0, "min": 2.0, "mean": 4.0, "stdev": 2.0, "runs": 3,
             "note": "1 failed: no pages"}
        ]);
        assert_eq!(json["rows"], expected);
        let ratios = json!({"max_32000_vs_best_kernel": 131.0, "p99_1_vs_best_kernel": null});
        assert_eq!((&json["ratios"], &json["checks"]), (&ratios, &json!({"wrong_bytes": 0})));
        let lines = report.json().lines().filter(|line| line.contains("recall_")).count();
        assert_eq!(lines, 4, "one row a line: {json}");
        assert!(report.median("recall_1", "thp").is_nan());
        let max = report.figure(("recall_2", "glebe", "us"), |summary| summary.max);
        assert_eq!((report.median("recall_2", "glebe"), max), (4.0, 6.0));
    }

    #[test]
    fn checks_add_up_and_decide_and_one_that_was_not_made_is_no_zero() {
        let mut report = Report::default();
        report.unmeasured("oom_kills", "no memory cgroup");
        report.check("wrong_bytes", 0);
        assert_eq!(parsed(&report)["checks"], json!({"wrong_bytes": 0, "oom_kills": null}));
        assert!(report.passed() && report.text().contains("not measured: no memory cgroup\n"));
        report.check("oom_kills", 2);
        report.check("oom_kills", 1);
        report.unmeasured("oom_kills", "no memory cgroup");
        assert!(!report.passed() && report.text().contains("oom_kills                 3  WRONG\n"));
    }

    #[test]
    fn figures_keep_their_digits() {
        assert_eq!(rounded(1_234_567.8), 1_234_570.0);
        assert_eq!(rounded(0.000_012_345_678), 0.000_012_345_7);
        assert_eq!(rounded(f64::NEG_INFINITY), f64::NEG_INFINITY);
        let shown = [0.0, 0.012_345, 1.234_56, 27.04, 123_456.7, f64::NAN].map(figure);
        assert_eq!(shown, ["0", "0.01235", "1.235", "27.04", "123457", "-"]);
    }
}
