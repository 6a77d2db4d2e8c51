//! [`Samples`]: what was measured, by case and contestant, in the order in which it came.

use crate::report::Report;
use crate::summary::Summary;

/// What one contestant did in one case.
#[derive(Debug)]
struct Series {
    case: String,
    who: &'static str,
    unit: &'static str,
    values: Vec<f64>,
    /// Where the memory came from, or why there are no figures.
    note: Option<String>,
}

/// All of a benchmark's samples.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Series>);

impl Samples {
    /// Adds a sample.
    pub(crate) fn add(&mut self, case: &str, who: &'static str, unit: &'static str, value: f64) {
        self.series(case, who, unit).values.push(value);
    }

    /// Says something of the row; the last word stands.
    pub(crate) fn note(&mut self, case: &str, who: &'static str, unit: &'static str, text: &str) {
        self.series(case, who, unit).note = Some(text.into());
    }

    fn series(&mut self, case: &str, who: &'static str, unit: &'static str) -> &mut Series {
        let same = |series: &Series| series.case == case && series.who == who;
        let at = self.0.iter().position(same).unwrap_or_else(|| {
            let (case, values) = (case.to_string(), Vec::new());
            self.0.push(Series { case, who, unit, values, note: None });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// The median of a row; not a number without one.
    pub(crate) fn median(&self, case: &str, who: &str) -> f64 {
        let found = self.0.iter().find(|series| series.case == case && series.who == who);
        let summary = found.and_then(|series| Summary::of(&series.values));
        summary.map_or(f64::NAN, |summary| summary.median)
    }

    /// Adds the rows of all cases, those of one case together.
    pub(crate) fn report(&self, report: &mut Report) {
        let mut cases: Vec<&str> = Vec::new();
        for series in &self.0 {
            if !cases.contains(&series.case.as_str()) {
                cases.push(&series.case);
            }
        }
        for case in cases {
            for series in self.0.iter().filter(|series| series.case == case) {
                let Series { who, unit, values, note, .. } = series;
                match (values.is_empty(), note) {
                    (true, note) => {
                        report.absent(case, who, unit, note.as_deref().unwrap_or("no sample"));
                    }
                    (false, note) => {
                        report.row(case, who, unit, values);
                        if let Some(note) = note {
                            report.remark(note);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_case_stand_together_and_those_without_figures_say_why() {
        let mut samples = Samples::default();
        for value in [3.0, 1.0, 2.0] {
            samples.add("one", "a", "ns", value);
            samples.add("two", "a", "ns", value * 2.0);
        }
        samples.note("one", "b", "ns", "no pages");
        samples.add("one", "c", "ns", 5.0);
        samples.note("one", "c", "ns", "of a pool");
        assert_eq!((samples.median("two", "a"), samples.median("one", "c")), (4.0, 5.0));
        assert!(samples.median("one", "b").is_nan() && samples.median("no", "a").is_nan());
        let mut report = Report::new("test", "", true);
        samples.report(&mut report);
        let text = report.text();
        let rows: Vec<&str> = text.lines().filter(|line| line.contains("  ns  ")).collect();
        assert_eq!(rows.len(), 4, "{text}");
        assert!(rows[1].contains("no pages") && rows[2].contains("of a pool"), "{text}");
        assert!(rows[3].starts_with("two"), "{text}");
    }
}
