//! [`Marked`] is a region whose pages hold their number and version. After an unmark, lost pages
//! must be empty, and others must hold their last version. Unit: pages.

use std::ops::Range;
use std::sync::Arc;

use glebe::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Priority, Region};
use serde::{Deserialize, Serialize};

use crate::report::Report;
use crate::reserve::keyed;
use crate::Outcome;

/// Object number of all pages in [`keyed`].
const KEY: u64 = 0x766f_6c61;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Judged {
    pub(super) kept: u64,
    pub(super) lost: u64,
    /// Pages not reported as lost that hold neither their last version nor an older one.
    lost_writes: u64,
    /// Pages not reported as lost that hold an older version.
    stale_reads: u64,
    /// Empty pages that were written and not reported as lost.
    false_intact: u64,
    /// Pages reported as lost that have contents.
    false_purged: u64,
}

impl Judged {
    pub(super) const CHECKS: [&str; 4] =
        ["lost_writes", "stale_reads", "false_intact", "false_purged"];

    pub(super) fn report(&self, report: &mut Report) {
        let counts = [self.lost_writes, self.stale_reads, self.false_intact, self.false_purged];
        Self::CHECKS.iter().zip(counts).for_each(|(name, count)| report.check(name, count));
    }
}

pub(super) struct Marked {
    region: Arc<Region>,
    /// Version of each page; 0 is an empty page.
    versions: Vec<u64>,
    next: u64,
    page: Vec<u8>,
    pub(super) judged: Judged,
}

impl Marked {
    pub(super) fn new(region: Region) -> Self {
        let pages = region.len().pages_down(page_size()).as_usize();
        let page = vec![0; page_size().bytes().as_usize()];
        let (region, judged) = (Arc::new(region), Judged::default());
        Self { region, versions: vec![0; pages], next: 1, page, judged }
    }

    pub(super) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(super) fn write(&mut self, pages: Range<u64>) -> Outcome {
        for page in pages {
            keyed::fill(&mut self.page, KEY, page, self.next);
            self.region.write(bytes(page), &self.page)?;
            self.versions[page as usize] = self.next;
        }
        self.next += 1;
        Ok(())
    }

    pub(super) fn mark(&self, pages: Range<u64>) -> Outcome {
        Ok(self.region.mark(bytes(pages.start)..bytes(pages.end), Priority::NORMAL)?)
    }

    /// Unmarks a part and judges its pages. Returns the number of lost pages.
    pub(super) fn unmark(&mut self, pages: Range<u64>) -> Outcome<u64> {
        let purged = self.region.unmark(bytes(pages.start)..bytes(pages.end))?;
        let runs = || purged.runs().iter().map(|run| run.start()..run.end());
        for page in pages {
            self.region.read(bytes(page), &mut self.page)?;
            let version = std::mem::take(&mut self.versions[page as usize]);
            let is_lost = runs().any(|run| run.contains(&page));
            self.judged.judge(version, is_lost, &self.page, page);
            if !is_lost {
                self.versions[page as usize] = version;
            }
        }
        Ok(purged.pages().get())
    }
}

impl Judged {
    fn judge(&mut self, version: u64, is_lost: bool, bytes: &[u8], page: u64) {
        let is_empty = bytes.iter().all(|&byte| byte == 0);
        let count = match (is_lost, keyed::version(bytes, KEY, page)) {
            (true, _) if is_empty => &mut self.lost,
            (true, _) => &mut self.false_purged,
            (false, _) if is_empty && version > 0 => &mut self.false_intact,
            (false, _) if is_empty => &mut self.kept,
            (false, Some(is)) if is == version => &mut self.kept,
            (false, Some(is)) if is < version => &mut self.stale_reads,
            (false, _) => &mut self.lost_writes,
        };
        *count += 1;
    }
}

fn bytes(page: u64) -> Bytes {
    Pages::new(page).bytes(page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_told_from_the_others() {
        let mut page = vec![0; page_size().bytes().as_usize()];
        let empty = page.clone();
        keyed::fill(&mut page, KEY, 3, 7);
        let judged = |version, is_lost, bytes: &[u8], at| {
            let mut judged = Judged::default();
            judged.judge(version, is_lost, bytes, at);
            judged
        };
        let none = Judged::default();
        assert_eq!(judged(7, false, &page, 3), Judged { kept: 1, ..none });
        assert_eq!(judged(0, false, &empty, 3), Judged { kept: 1, ..none });
        assert_eq!(judged(7, true, &empty, 3), Judged { lost: 1, ..none });
        assert_eq!(judged(8, false, &page, 3), Judged { stale_reads: 1, ..none });
        assert_eq!(judged(7, false, &page, 4), Judged { lost_writes: 1, ..none });
        assert_eq!(judged(7, false, &empty, 3), Judged { false_intact: 1, ..none });
        assert_eq!(judged(7, true, &page, 3), Judged { false_purged: 1, ..none });
    }
}
