//! [`Samples`]: what was measured, by case and contestant, in the order in which it came.

use std::fmt::Display;

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

    /// Adds a sample, or says of the row why there was none.
    pub(crate) fn outcome<E: Display>(
        &mut self,
        case: &str,
        who: &'static str,
        unit: &'static str,
        value: Result<f64, E>,
    ) {
        match value {
            Ok(value) => self.add(case, who, unit, value),
            Err(why) => self.note(case, who, unit, &format!("not every time: {why}")),
        }
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
        for (nth, first) in self.0.iter().enumerate() {
            let case = first.case.as_str();
            if self.0[..nth].iter().any(|before| before.case == case) {
                continue;
            }
            for series in self.0.iter().filter(|series| series.case == case) {
                let Series { who, unit, values, note, .. } = series;
                if values.is_empty() {
                    report.absent(case, who, unit, note.as_deref().unwrap_or("no sample"));
                    continue;
                }
                report.row(case, who, unit, values);
                if let Some(note) = note {
                    report.remark(note);
                }
            }
        }
    }
}

/// Each of `all` once a round, with the number of the round; another one comes first each time, so
/// that none is always first after a change of the machine.
pub(crate) fn in_turn<T: Copy>(rounds: usize, all: &[T]) -> impl Iterator<Item = (u64, T)> + '_ {
    (0..rounds).flat_map(move |round| {
        (0..all.len()).map(move |turn| (round as u64, all[(turn + round) % all.len()]))
    })
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
        samples.outcome("one", "b", "ns", Err("no pages"));
        samples.outcome("one", "c", "ns", Ok::<_, &str>(5.0));
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

    #[test]
    fn everybody_is_first_once() {
        let all: Vec<_> = in_turn(2, &['a', 'b']).collect();
        assert_eq!(all, [(0, 'a'), (0, 'b'), (1, 'b'), (1, 'a')]);
    }
}
