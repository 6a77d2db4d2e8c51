//! Statistics: counters of one `Shared`, and gauges of the file. `pinned` counts only this
//! `Shared`'s pins.

use super::ledger::Ledger;
use super::word::Word;
use crate::Priority;
use glebe_os::error::OsError;
use glebe_os::internal::stats::{
    families, json, openmetrics, shown, statistics, Row, Set, Unit, Value,
};
use glebe_os::internal::sync::Ordering;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

statistics! {
    labels {
        by_priority: [Bytes; Priority::HIGHEST.get() as usize + 1],
            "Bytes marked with each priority.";
    }
    counters {
        Marks marks Count "calls that marked something";
        Unmarks unmarks Count "calls that unmarked something";
        Pins pins Count "pins made";
        MarkedEver marked_ever Pages "pages that were marked";
        Purged purged Pages "pages that an unmark told as lost";
        Freed freed Pages "pages that purges of this process took";
        DroppedNow dropped_now Pages "pages taken because the program asked for it";
    }
    gauges {
        total "total_pages" "pages of data";
        marked "marked_pages" "pages marked";
        present "present_pages" "pages that may hold memory, as far as is known";
        lost "lost_pages" "pages that were lost and not told";
        pinned "pinned_pages" "pages that this process has pinned";
    }
    durations {}
}

const PREFIX: &str = "glebe_shared_";

impl Counts {
    pub(super) fn gauged(&self, ledger: &Ledger, holder: Option<u32>) -> Stats {
        let mut stats = self.sum();
        let granule = Bytes::new(ledger.layout().granule);
        stats.total = ledger.layout().len().pages_down(page_size());
        let _ = stats.look(ledger, granule);
        let pinned = holder.and_then(|holder| ledger.pinned_by(holder).ok()).unwrap_or(0);
        stats.pinned = Pages::new(pinned * granule.pages_down(page_size()).get());
        stats
    }
}

impl Stats {
    fn look(&mut self, ledger: &Ledger, granule: Bytes) -> Result<(), OsError> {
        let pages = granule.pages_down(page_size());
        for index in ledger.noted()?.iter().flat_map(|run| run.start()..run.end()) {
            let word = Word(ledger.word(index).load(Ordering::Relaxed));
            for (gauge, counts) in [
                (&mut self.marked, word.is_marked()),
                (&mut self.present, word.is_present()),
                (&mut self.lost, word.is_lost()),
            ] {
                *gauge = *gauge + if counts { pages } else { Pages::ZERO };
            }
            if word.is_marked() {
                let of_priority = &mut self.by_priority[usize::from(word.priority().get())];
                *of_priority = *of_priority + granule;
            }
        }
        Ok(())
    }

    /// Returns one JSON object. Names end in their unit, except counts.
    #[must_use]
    pub fn to_json(&self) -> String {
        json(&self.rows())
    }

    /// Returns OpenMetrics 1.0 text, with memory in bytes.
    #[must_use]
    pub fn to_openmetrics(&self) -> String {
        text_of(&[(vec![], self)])
    }

    /// Returns the OpenMetrics text of several files, which the label `file` names.
    #[must_use]
    pub fn openmetrics_of(files: &[(&str, &Stats)]) -> String {
        let labelled = |(name, stats): &(&str, _)| (vec![("file", (*name).to_owned())], *stats);
        text_of(&files.iter().map(labelled).collect::<Vec<_>>())
    }

    fn level(&self, level: Priority, mut labels: Labels) -> Set<'static> {
        let marked = self.by_priority[usize::from(level.get())].get();
        let value = Value::Gauge(Unit::Bytes, marked);
        let row = Row { name: "marked_by_priority_bytes", value, what: "bytes marked" };
        labels.push(("priority", level.get().to_string()));
        Set { labels, rows: vec![row] }
    }
}

type Labels = Vec<(&'static str, String)>;

fn text_of(files: &[(Labels, &Stats)]) -> String {
    let page = page_size().bytes();
    let mut all = Vec::new();
    for (labels, stats) in files {
        all.push(Set { labels: labels.clone(), rows: stats.rows() });
    }
    let of_file = |(labels, stats): &(Labels, &Stats)| {
        Priority::all().map(|level| stats.level(level, labels.clone())).collect::<Vec<_>>()
    };
    let levels: Vec<_> = files.iter().flat_map(of_file).collect();
    families(PREFIX, page, &all) + &openmetrics(PREFIX, page, &levels)
}

shown!(Stats);
