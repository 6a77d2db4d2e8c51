//! [`Samples`]: what requests took and gave, by case and contestant, and their rows.
//!
//! A case is a word and a size, `recall_512`; a contestant is the reserve or a peer. Each has its
//! wall time, its CPU time and the longest physical run of its blocks, where frames can be read;
//! blocks that are not one run are counted. Units: microseconds, base pages.

use std::collections::BTreeMap;

use glebe::units::Pages;

use super::requests::Held;
use super::table::Line;
use crate::peers::PeerSample;
use crate::report::Report;
use crate::summary::Summary;

/// The reserve's name among the contestants.
pub(super) const GLEBE: &str = "glebe";

/// The case in which every contestant is asked.
pub(super) const RECALL: &str = "recall";

/// By case and contestant.
#[derive(Debug, Default)]
pub(super) struct Samples {
    series: BTreeMap<(String, &'static str), Series>,
}

/// Of one case and contestant.
#[derive(Debug, Default)]
struct Series {
    wall_us: Vec<f64>,
    cpu_us: Vec<f64>,
    run_pages: Vec<f64>,
    not_contiguous: u64,
    /// Pages that tenants lost.
    lent: u64,
    failures: u64,
    why: String,
}

/// The name of a case.
pub(super) fn case(what: &str, pages: u64) -> String {
    format!("{what}_{pages}")
}

impl Samples {
    fn of(&mut self, what: &str, pages: u64, who: &'static str) -> &mut Series {
        self.series.entry((case(what, pages), who)).or_default()
    }

    /// Adds a block that the reserve gave.
    pub(super) fn own(&mut self, what: &str, pages: u64, held: &Held) {
        let series = self.of(what, pages, GLEBE);
        series.wall_us.push(held.elapsed.wall_us);
        series.cpu_us.push(held.elapsed.cpu_us);
        series.run(pages, held.longest_run);
        series.lent += held.recalled;
    }

    /// Adds a request to a peer.
    pub(super) fn peer(&mut self, what: &str, pages: u64, who: &'static str, sample: PeerSample) {
        let series = self.of(what, pages, who);
        match sample.failed {
            Some(why) => series.failed(why),
            None => {
                series.wall_us.push(sample.wall_us);
                series.cpu_us.push(sample.cpu_us);
                series.run(pages, sample.longest_run);
            }
        }
    }

    /// Adds a time alone.
    pub(super) fn time(&mut self, what: &str, pages: u64, who: &'static str, us: (f64, f64)) {
        let series = self.of(what, pages, who);
        series.wall_us.push(us.0);
        series.cpu_us.push(us.1);
    }

    /// Adds a request that gave nothing.
    pub(super) fn failed(&mut self, what: &str, pages: u64, who: &'static str, why: String) {
        self.of(what, pages, who).failed(why);
    }

    /// Wall time of one case and contestant.
    pub(super) fn wall(&self, what: &str, pages: u64, who: &'static str) -> Option<Summary> {
        Summary::of(&self.series.get(&(case(what, pages), who))?.wall_us)
    }

    /// CPU time of one case and contestant.
    pub(super) fn cpu(&self, what: &str, pages: u64, who: &'static str) -> Option<Summary> {
        Summary::of(&self.series.get(&(case(what, pages), who))?.cpu_us)
    }

    /// The rows of one case and contestant; none if it was not asked.
    pub(super) fn report(&self, what: &str, pages: u64, who: &'static str, report: &mut Report) {
        let case = case(what, pages);
        let Some(series) = self.series.get(&(case.clone(), who)) else { return };
        if series.wall_us.is_empty() {
            report.absent(&case, who, "us", &series.why);
            return;
        }
        report.row(&case, who, "us", &series.wall_us);
        if series.failures > 0 {
            report.remark(&format!("{} failed: {}", series.failures, series.why));
        } else if series.lent > 0 {
            let each = series.lent as f64 / series.wall_us.len() as f64;
            report.remark(&format!("{each:.0} pages lent and called back each time"));
        }
        if !["recall_idle", "recall_half"].contains(&what) {
            report.row(&case, who, "us cpu", &series.cpu_us);
        }
        if what == RECALL && !series.run_pages.is_empty() {
            let name = |what: &str| format!("{what}_{pages}");
            report.row(&name("longest_run"), who, "pages", &series.run_pages);
            let count = [series.not_contiguous as f64];
            report.row(&name("not_contiguous"), who, "blocks", &count);
            report.remark(&format!("of {} that were looked at", series.run_pages.len()));
        }
    }

    /// The same as a line of the table of latencies.
    pub(super) fn line(&self, what: &str, pages: u64, who: &'static str) -> Option<Line> {
        let series = self.series.get(&(case(what, pages), who))?;
        let mut line = Line::new(pages, who);
        line.wall_us.clone_from(&series.wall_us);
        line.failures = series.failures;
        let worst = series.run_pages.iter().copied().min_by(f64::total_cmp);
        line.longest_run = worst.map(|run| Pages::new(run as u64));
        line.note = (series.failures > 0).then(|| series.why.clone());
        Some(line)
    }
}

impl Series {
    fn run(&mut self, pages: u64, run: Option<Pages>) {
        if let Some(run) = run {
            self.run_pages.push(run.get() as f64);
            self.not_contiguous += u64::from(run.get() < pages);
        }
    }

    fn failed(&mut self, why: String) {
        self.failures += 1;
        self.why = why;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(wall_us: f64, run: u64) -> PeerSample {
        let longest_run = Some(Pages::new(run));
        PeerSample { wall_us, cpu_us: 1.0, longest_run, from_idle_pool: 0, failed: None }
    }

    #[test]
    fn blocks_that_are_not_one_run_are_counted_and_failures_told() {
        let mut samples = Samples::default();
        for (wall_us, run) in [(3.0, 8), (5.0, 7), (4.0, 2)] {
            samples.peer(RECALL, 8, "thp", sample(wall_us, run));
        }
        let failed = PeerSample { failed: Some("no memory".into()), ..sample(1.0, 8) };
        samples.peer(RECALL, 8, "thp", failed.clone());
        samples.peer(RECALL, 8, "plain", failed);
        assert_eq!(samples.wall(RECALL, 8, "thp").map(|s| (s.median, s.runs)), Some((4.0, 3)));
        let line = samples.line(RECALL, 8, "thp").unwrap();
        assert_eq!((line.failures, line.longest_run), (1, Some(Pages::new(2))));

        let mut report = Report::new("reserve", "", true);
        for who in ["thp", "plain", GLEBE] {
            samples.report(RECALL, 8, who, &mut report);
        }
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        let row = |case: &str, who: &str| {
            let rows = json["rows"].as_array().unwrap();
            rows.iter().find(|row| row["case"] == case && row["who"] == who).cloned()
        };
        assert_eq!(row("recall_8", "thp").unwrap()["note"], "1 failed: no memory");
        assert_eq!(row("not_contiguous_8", "thp").unwrap()["max"], 2.0);
        assert_eq!(row("longest_run_8", "thp").unwrap()["min"], 2.0);
        assert_eq!(row("recall_8", "plain").unwrap()["note"], "no memory");
        assert_eq!(row("recall_8", GLEBE), None);
    }
}
