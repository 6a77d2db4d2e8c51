//! Statistics of a region.

use super::Engine;
use glebe_os::internal::stats::{json, openmetrics, statistics, text, Set};
use glebe_os::internal::sys::page_size;

statistics! {
    labels {
        engine: Engine, "The engine.";
    }
    counters {
        Marks marks Count "calls that marked something";
        Unmarks unmarks Count "calls that unmarked something";
        MarkedEver marked_ever Pages "pages that were marked";
        Purged purged Pages "pages that an unmark found lost";
        Rescued rescued Pages "pages that an unmark kept (v10: pgdiscard_rescued)";
        DroppedByCap dropped_by_cap Pages "marked pages dropped because of a cap or their age";
        DroppedNow dropped_now Pages "marked pages dropped because the program asked for it";
        Shed shed Pages "marked pages dropped because a reclaimer asked for their memory";
        Overwritten overwritten Pages "lost pages that were written while they were marked";
        ReadsLost reads_lost Count "reads of marked memory that found some of it lost";
    }
    gauges {
        total "total_pages" "pages of the region";
        marked "marked_pages" "pages marked";
        resident "resident_pages" "marked pages that are in memory still";
        lazy_free "lazy_free_pages" "pages counted in RSS that the kernel may take (LazyFree)";
        unreclaimable "unreclaimable_pages" "pages counted in RSS less those the kernel may take";
    }
    durations {}
}

const PREFIX: &str = "glebe_volatile_";

impl Counts {
    /// Adds without a locked instruction. The caller holds the region's exclusive lock.
    #[inline]
    pub(super) fn add_alone(&self, counter: Counter, n: u64) {
        self.0.add_alone(counter as usize, n);
    }
}

impl Stats {
    /// Returns one JSON object. Names end in their unit, except counts.
    #[must_use]
    pub fn to_json(&self) -> String {
        let numbers = json(&self.rows());
        format!("{{ \"engine\": \"{}\", {}", self.engine, numbers.trim_start_matches(['{', ' ']))
    }

    /// Returns OpenMetrics 1.0 text. Memory is in bytes.
    #[must_use]
    pub fn to_openmetrics(&self) -> String {
        let labels = vec![("engine", self.engine.to_string())];
        openmetrics(PREFIX, page_size().bytes(), &[Set { labels, rows: self.rows() }])
    }

    /// Returns one OpenMetrics text for several regions, with their unique names as the label
    /// `region`.
    #[must_use]
    pub fn openmetrics_of(regions: &[(&str, &Stats)]) -> String {
        let labels = |name: &str, stats: &Stats| {
            vec![("region", name.to_owned()), ("engine", stats.engine.to_string())]
        };
        let sets: Vec<_> = regions
            .iter()
            .map(|(name, stats)| Set { labels: labels(name, stats), rows: stats.rows() })
            .collect();
        openmetrics(PREFIX, page_size().bytes(), &sets)
    }

    /// Checks that `marked_ever` is `marked` + `purged` + `rescued`, which holds while no call
    /// runs.
    ///
    /// # Errors
    /// Returns the values if not.
    pub fn check(&self) -> Result<(), String> {
        if self.marked_ever == self.marked.get() + self.purged + self.rescued {
            return Ok(());
        }
        Err(format!(
            "marked_ever {} is not marked {} + purged {} + rescued {}",
            self.marked_ever,
            self.marked.get(),
            self.purged,
            self.rescued
        ))
    }
}

impl std::fmt::Display for Stats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{:<24} {:>14}  how lost pages are known", "engine", self.engine)?;
        f.write_str(&text(&self.rows()))
    }
}
