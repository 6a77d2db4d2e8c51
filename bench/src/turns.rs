//! [`rounds`]: contestants take turns; [`Table`]: what each of them took, by case.
//!
//! A case adds a sample a round for each contestant, so that whatever else the machine does falls
//! on all of them. Rows come out in the order in which they were first named.

use std::time::Duration;

use crate::clock;
use crate::progress::Progress;
use crate::report::Report;
use crate::summary::Summary;

/// Calls `round` so many times, or until `at_most` is over; how often it was called.
pub(crate) fn rounds<E>(
    what: &str,
    (count, at_most): (u64, Duration),
    mut round: impl FnMut(u64) -> Result<(), E>,
) -> Result<u64, E> {
    let mut progress = Progress::new(what, count);
    let end = clock::wall().saturating_add(at_most);
    let mut done = 0;
    while done < count && (done == 0 || clock::wall() < end) {
        progress.update(done);
        round(done)?;
        done += 1;
    }
    progress.clear();
    Ok(done)
}

/// As long as it takes.
pub(crate) const NO_END: Duration = Duration::MAX;

/// Samples by case, contestant and unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    case: String,
    who: String,
    unit: &'static str,
    samples: Vec<f64>,
    /// Tries that gave no sample.
    failed: u64,
    note: String,
}

impl Table {
    fn find(&self, case: &str, who: &str, unit: &str) -> Option<usize> {
        self.rows.iter().position(|row| row.case == case && row.who == who && row.unit == unit)
    }

    fn row(&mut self, case: &str, who: &str, unit: &'static str) -> &mut Row {
        let at = self.find(case, who, unit).unwrap_or_else(|| {
            let (case, who) = (case.to_owned(), who.to_owned());
            let (samples, note) = (Vec::new(), String::new());
            self.rows.push(Row { case, who, unit, samples, failed: 0, note });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// Adds a sample.
    pub(crate) fn add(&mut self, case: &str, who: &str, unit: &'static str, sample: f64) {
        self.row(case, who, unit).samples.push(sample);
    }

    /// Remarks on a row: why it has no sample, or why it has fewer than others.
    pub(crate) fn note(&mut self, case: &str, who: &str, unit: &'static str, text: &str) {
        self.row(case, who, unit).note = text.to_owned();
    }

    /// Adds a sample, or counts a try that gave none and says why the last one did not.
    pub(crate) fn tried(
        &mut self,
        case: &str,
        who: &str,
        unit: &'static str,
        sample: Result<f64, String>,
    ) {
        let row = self.row(case, who, unit);
        match sample {
            Ok(sample) => row.samples.push(sample),
            Err(why) => (row.failed, row.note) = (row.failed + 1, why),
        }
    }

    /// The samples of one row.
    pub(crate) fn of(&self, case: &str, who: &str, unit: &str) -> &[f64] {
        self.find(case, who, unit).map_or(&[], |at| &self.rows[at].samples)
    }

    /// One figure of a row; not a number without samples.
    pub(crate) fn figure(
        &self,
        (case, who, unit): (&str, &str, &str),
        figure: fn(&Summary) -> f64,
    ) -> f64 {
        Summary::of(self.of(case, who, unit)).as_ref().map_or(f64::NAN, figure)
    }

    /// The median of a row; not a number without samples.
    pub(crate) fn median(&self, case: &str, who: &str, unit: &str) -> f64 {
        self.figure((case, who, unit), |summary| summary.median)
    }

    /// Adds all rows to the report.
    pub(crate) fn tell(&self, report: &mut Report) {
        for Row { case, who, unit, samples, failed, note } in &self.rows {
            if samples.is_empty() && !note.is_empty() {
                report.absent(case, who, unit, note);
                continue;
            }
            report.row(case, who, unit, samples);
            match failed {
                0 if note.is_empty() => {}
                0 => report.remark(note),
                failed => report.remark(&format!("{failed} failed: {note}")),
            }
        }
    }
}

/// The median of samples; not a number without any.
pub(crate) fn median(samples: &[f64]) -> f64 {
    Summary::of(samples).map_or(f64::NAN, |summary| summary.median)
}

/// The median over the rounds of one contestant's figure divided by another's.
pub(crate) fn by_round(these: &[f64], those: &[f64]) -> f64 {
    median(&these.iter().zip(those).map(|(this, that)| this / that).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_order_and_say_why_they_are_empty() {
        let mut table = Table::default();
        let done = rounds("turns", (4, NO_END), |round| {
            table.add("get", "b", "us", round as f64);
            table.add("get", "a", "us", 2.0 * round as f64);
            Ok::<_, ()>(())
        });
        assert_eq!(done, Ok(4));
        table.note("get", "c", "us", "not here");
        table.tried("put", "a", "us", Ok(1.0));
        table.tried("put", "a", "us", Err("full".into()));
        assert_eq!(table.median("get", "a", "us"), 2.0);
        assert!(table.median("get", "c", "us").is_nan());
        assert_eq!(by_round(&[2.0, 4.0, 9.0], &[1.0, 2.0, 3.0]), 2.0);
        let mut report = Report::new("turns", "", true);
        table.tell(&mut report);
        let text = report.text();
        let at = |who: &str| text.find(&format!("get   {who}")).unwrap();
        assert!(at("b") < at("a") && text.contains("not here"), "{text}");
        assert!(text.contains("1 failed: full"), "{text}");
        let ended = rounds("turns", (9, Duration::ZERO), |_| Err::<(), _>(7));
        assert_eq!(ended, Err(7));
        assert_eq!(rounds("turns", (9, Duration::ZERO), |_| Ok::<_, ()>(())), Ok(1));
    }
}
