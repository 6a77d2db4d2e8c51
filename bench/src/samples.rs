//! [`Samples`]: what was measured, by case and contestant, in the order in which it came; and
//! contestants that take turns ([`rounds`], [`in_turn`]), so that whatever else the machine does
//! falls on all of them.

use std::fmt::Display;
use std::time::Duration;

use crate::clock;
use crate::progress::Progress;
use crate::report::Report;
use crate::summary::Summary;

/// What one contestant did in one case, in one unit.
#[derive(Debug)]
struct Series {
    case: String,
    who: String,
    unit: &'static str,
    values: Vec<f64>,
    /// Tries that gave no value.
    failed: u64,
    /// Where the memory came from, or why there are no figures.
    note: Option<String>,
}

/// All of a benchmark's samples.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Series>);

impl Samples {
    /// Adds a sample.
    pub(crate) fn add(&mut self, case: &str, who: &str, unit: &'static str, value: f64) {
        self.series(case, who, unit).values.push(value);
    }

    /// Adds a sample, or counts a try that gave none and says why.
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
                series.note = Some(why.to_string());
            }
        }
    }

    /// Says something of the row; the last word stands.
    pub(crate) fn note(&mut self, case: &str, who: &str, unit: &'static str, text: &str) {
        self.series(case, who, unit).note = Some(text.into());
    }

    fn series(&mut self, case: &str, who: &str, unit: &'static str) -> &mut Series {
        let same = |s: &Series| s.case == case && s.who == who && s.unit == unit;
        let at = self.0.iter().position(same).unwrap_or_else(|| {
            let (case, who, values) = (case.to_owned(), who.to_owned(), Vec::new());
            self.0.push(Series { case, who, unit, values, failed: 0, note: None });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// The samples of one row.
    pub(crate) fn of(&self, case: &str, who: &str, unit: &str) -> &[f64] {
        let same = |s: &&Series| s.case == case && s.who == who && s.unit == unit;
        self.0.iter().find(same).map_or(&[], |series| &series.values)
    }

    /// One figure of a row; not a number without one.
    pub(crate) fn figure(
        &self,
        (case, who, unit): (&str, &str, &str),
        figure: fn(&Summary) -> f64,
    ) -> f64 {
        Summary::of(self.of(case, who, unit)).as_ref().map_or(f64::NAN, figure)
    }

    /// The median of a contestant in a case, in the first unit; not a number without one.
    pub(crate) fn median(&self, case: &str, who: &str) -> f64 {
        let found = self.0.iter().find(|series| series.case == case && series.who == who);
        found.map_or(f64::NAN, |series| median(&series.values))
    }

    /// Adds the rows of all cases, those of one case together.
    pub(crate) fn report(&self, report: &mut Report) {
        for (nth, first) in self.0.iter().enumerate() {
            let case = first.case.as_str();
            if self.0[..nth].iter().any(|before| before.case == case) {
                continue;
            }
            for Series { who, unit, values, failed, note, .. } in
                self.0.iter().filter(|series| series.case == case)
            {
                if values.is_empty() {
                    report.absent(case, who, unit, note.as_deref().unwrap_or("no sample"));
                    continue;
                }
                report.row(case, who, unit, values);
                match (failed, note) {
                    (_, None) => {}
                    (0, Some(note)) => report.remark(note),
                    (failed, Some(note)) => report.remark(&format!("{failed} failed: {note}")),
                }
            }
        }
    }
}

/// The median; not a number without samples.
pub(crate) fn median(samples: &[f64]) -> f64 {
    Summary::of(samples).map_or(f64::NAN, |summary| summary.median)
}

/// The median over the rounds of one contestant's figure divided by another's.
pub(crate) fn by_round(these: &[f64], those: &[f64]) -> f64 {
    median(&these.iter().zip(those).map(|(this, that)| this / that).collect::<Vec<_>>())
}

/// As long as it takes.
pub(crate) const NO_END: Duration = Duration::MAX;

/// Calls `round` so many times, or until `at_most` is over, but once at least.
pub(crate) fn rounds<E>(
    what: &str,
    (count, at_most): (u64, Duration),
    mut round: impl FnMut(u64) -> Result<(), E>,
) -> Result<(), E> {
    let mut progress = Progress::new(what, count);
    let end = clock::wall().saturating_add(at_most);
    for done in 0..count {
        if done > 0 && clock::wall() > end {
            break;
        }
        progress.update(done);
        round(done)?;
    }
    Ok(())
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
        let done = rounds("test", (3, NO_END), |round| {
            samples.add("one", "a", "ns", [3.0, 1.0, 2.0][round as usize]);
            samples.add("two", "a", "ns", 2.0 * [3.0, 1.0, 2.0][round as usize]);
            Ok::<_, ()>(())
        });
        assert_eq!(done, Ok(()));
        samples.outcome("one", "b", "ns", Err("no pages"));
        samples.outcome("one", "c", "ns", Ok::<_, &str>(5.0));
        samples.note("one", "c", "ns", "of a pool");
        samples.outcome("two", "a", "ns", Err("busy"));
        assert_eq!((samples.median("two", "a"), samples.median("one", "c")), (4.0, 5.0));
        assert!(samples.median("one", "b").is_nan() && samples.median("no", "a").is_nan());
        let max = |summary: &Summary| summary.max;
        assert_eq!(samples.figure(("one", "a", "ns"), max), 3.0);
        let mut report = Report::new("test", "", true);
        samples.report(&mut report);
        let text = report.text();
        let rows: Vec<&str> = text.lines().filter(|line| line.contains("  ns  ")).collect();
        assert_eq!(rows.len(), 4, "{text}");
        assert!(rows[1].contains("no pages") && rows[2].contains("of a pool"), "{text}");
        assert!(rows[3].starts_with("two") && rows[3].contains("1 failed: busy"), "{text}");
    }

    #[test]
    fn everybody_is_first_once_and_rounds_end_in_time() {
        let all: Vec<_> = in_turn(2, &['a', 'b']).collect();
        assert_eq!(all, [(0, 'a'), (0, 'b'), (1, 'b'), (1, 'a')]);
        assert_eq!(by_round(&[2.0, 4.0, 9.0], &[1.0, 2.0, 3.0]), 2.0);
        let mut count = 0;
        let done = rounds("test", (9, Duration::ZERO), |_| {
            count += 1;
            std::thread::sleep(Duration::from_millis(1));
            Ok::<_, ()>(())
        });
        assert_eq!((done, count), (Ok(()), 1));
        assert_eq!(rounds("test", (9, NO_END), |_| Err(7)), Err(7));
    }
}
