//! Owners of pages, and readers of any of them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Error as VolatileError, Priority, Purged};

use super::oracle::{fill, Contents, State};
use super::{range, Counts, Shared, CHUNK, OWN, OWNERS};
use crate::reserve::keyed::Random;
use crate::reserve::page_buffer;

/// Most pages of one write.
const WRITE_MAX: u64 = 16;
/// Between two steps, so that what is marked stays so for a while.
const REST_US_MAX: u64 = 1500;
const PRIORITIES: u64 = 8;

struct Owner<'a> {
    shared: &'a Shared,
    random: Random,
    counts: Counts,
    page: Vec<u8>,
}

/// Steps at random on the pages of owner `id` until told to stop; then everything is looked at.
pub(super) fn own(shared: &Shared, id: u64) -> Counts {
    let random = Random::new(id << 32 | 1);
    let mut owner = Owner { shared, random, counts: Counts::default(), page: page_buffer() };
    let chunks: Vec<u64> = (0..OWN / CHUNK).filter(|chunk| chunk % OWNERS == id).collect();
    for &chunk in &chunks {
        let _step = shared.step.read();
        owner.write(chunk * CHUNK, CHUNK);
    }
    while !shared.stop.load(Ordering::Relaxed) && owner.counts.errors.is_empty() {
        {
            let _step = shared.step.read();
            let chunk = chunks[owner.random.below(chunks.len() as u64) as usize];
            owner.step(chunk * CHUNK);
        }
        std::thread::sleep(Duration::from_micros(owner.random.below(REST_US_MAX)));
    }
    for chunk in chunks {
        let _step = shared.step.read();
        owner.unmark(chunk * CHUNK, CHUNK);
    }
    owner.counts
}

impl Owner<'_> {
    fn step(&mut self, chunk: u64) {
        let at = self.random.below(CHUNK);
        let (first, pages) = (chunk + at, 1 + self.random.below(CHUNK - at));
        match self.random.below(20) {
            0..=7 => self.mark(first, pages),
            8..=13 => {
                self.unmark(first, pages);
                self.rewrite_empty(first, pages);
            }
            14..=16 => self.write(first, pages),
            17 | 18 => self.look(first, pages),
            _ => self.drop_now(first, pages),
        }
    }

    fn mark(&mut self, first: u64, pages: u64) {
        let (region, oracle) = (&self.shared.region, &self.shared.oracle);
        let priority = priority(&mut self.random);
        oracle.begin(first, pages);
        if let Err(e) = region.mark(range(first, pages), priority) {
            self.counts.error("mark", e);
        }
        self.counts.marks += 1;
        for page in first..first + pages {
            oracle.end(page, State { marked: true, ..oracle.state(page) });
        }
    }

    fn drop_now(&mut self, first: u64, pages: u64) {
        let (region, oracle) = (&self.shared.region, &self.shared.oracle);
        oracle.begin(first, pages);
        if let Err(e) = region.drop_now(range(first, pages)) {
            self.counts.error("drop_now", e);
        }
        for page in first..first + pages {
            let state = oracle.state(page);
            self.counts.dropped_pages += u64::from(state.marked && !state.dropped);
            oracle.end(page, State { dropped: state.dropped || state.marked, ..state });
        }
    }

    fn unmark(&mut self, first: u64, pages: u64) {
        let (region, oracle) = (&self.shared.region, &self.shared.oracle);
        oracle.begin(first, pages);
        self.counts.unmarks += 1;
        let lost = match region.unmark(range(first, pages)) {
            Ok(purged) => lost(&purged, first, pages),
            Err(e) => Err(e.to_string()),
        };
        let lost = match lost {
            Ok(lost) => lost,
            Err(e) => {
                self.counts.error("unmark", e);
                vec![false; pages as usize]
            }
        };
        for (page, lost) in (first..).zip(lost) {
            let was = oracle.state(page);
            let is = State { marked: false, dropped: false, empty: was.empty || lost, ..was };
            match region.read(offset(page), &mut self.page) {
                Ok(()) => self.counts.judge_unmarked(was, lost, was.judge(&self.page, page)),
                Err(e) => self.counts.error("read of what is unmarked", e),
            }
            oracle.end(page, is);
        }
    }

    /// New versions for the pages of the run up to the first that is marked, and a look at whether
    /// that is refused.
    fn write(&mut self, first: u64, pages: u64) {
        let oracle = &self.shared.oracle;
        let mut at = first;
        while at < first + pages {
            let pages = (first + pages - at).min(1 + self.random.below(WRITE_MAX));
            let marked = (at..at + pages).any(|page| oracle.state(page).marked);
            let size = self.page.len();
            let mut bytes = vec![0; size * pages as usize];
            for (page, bytes) in (at..).zip(bytes.chunks_exact_mut(size)) {
                fill(bytes, page, oracle.state(page).version + 1);
            }
            oracle.begin(at, pages);
            let wrote = self.shared.region.write(offset(at), &bytes);
            match wrote {
                Ok(()) if !marked => self.counts.writes += pages,
                Err(VolatileError::Marked { .. }) if marked => {}
                Ok(()) => self.counts.error("write", "into what is marked"),
                Err(e) => self.counts.error("write", e),
            }
            for page in at..at + pages {
                let was = oracle.state(page);
                let new = State { version: was.version + 1, empty: false, ..was };
                oracle.end(page, if marked { was } else { new });
            }
            if marked {
                break;
            }
            at += pages;
        }
    }

    /// Gives new contents to what is empty, a page at a time.
    fn rewrite_empty(&mut self, first: u64, pages: u64) {
        for page in first..first + pages {
            if self.shared.oracle.state(page).empty {
                self.write(page, 1);
            }
        }
    }

    /// Reads without unmarking, as its owner: what is not marked must be there.
    fn look(&mut self, first: u64, pages: u64) {
        for page in first..first + pages {
            let state = self.shared.oracle.state(page);
            let read = self.shared.region.try_read(offset(page), &mut self.page);
            self.counts.judge_read(state, read, &self.page, page);
        }
    }
}

impl Counts {
    /// Of a page that was in state `was`, was told as lost or not, and then was read.
    pub(super) fn judge_unmarked(&mut self, was: State, lost: bool, is: Contents) {
        match (lost, is) {
            // Told, and empty: whatever it was.
            (true, Contents::Zeros | Contents::Right) if was.marked => {
                if !matches!(is, Contents::Zeros) && !was.empty {
                    self.false_purged += 1;
                } else if !was.empty && !was.dropped {
                    self.purged_pages += 1;
                }
            }
            (true, _) => self.false_purged += 1,
            (false, Contents::Right) if was.dropped && !was.empty => self.false_intact += 1,
            (false, Contents::Right) => self.intact_pages += u64::from(was.marked && !was.empty),
            (false, Contents::Zeros) if was.marked => self.false_intact += 1,
            (false, Contents::Stale) => self.stale_reads += 1,
            (false, Contents::Zeros | Contents::Wrong) => self.lost_writes += 1,
        }
    }

    /// Of a page in one state that was read without unmarking.
    fn judge_read(
        &mut self,
        state: State,
        read: Result<(), VolatileError>,
        bytes: &[u8],
        page: u64,
    ) {
        match read {
            Ok(()) => {
                self.reads += 1;
                match state.judge(bytes, page) {
                    Contents::Right if state.dropped && !state.empty => self.false_intact += 1,
                    Contents::Right => {}
                    Contents::Zeros if state.marked => self.false_intact += 1,
                    Contents::Stale => self.stale_reads += 1,
                    Contents::Zeros | Contents::Wrong => self.lost_writes += 1,
                }
            }
            Err(VolatileError::Purged { .. }) => self.false_purged += u64::from(!state.marked),
            Err(e) => self.error("try_read", e),
        }
    }
}

/// Reads pages of any owner until told to stop.
pub(super) fn read(shared: &Shared) -> Counts {
    let mut counts = Counts::default();
    let mut random = Random::new(!0);
    let mut bytes = page_buffer();
    while !shared.stop.load(Ordering::Relaxed) {
        let page = random.below(OWN);
        if random.below(16) == 0 {
            std::thread::sleep(Duration::from_micros(random.below(REST_US_MAX)));
        }
        let Some((state, word)) = shared.oracle.stable(page) else { continue };
        let read = shared.region.try_read(offset(page), &mut bytes);
        if shared.oracle.is_still(page, word) {
            counts.judge_read(state, read, &bytes, page);
        }
    }
    counts
}

pub(super) fn priority(random: &mut Random) -> Priority {
    Priority::new(random.below(PRIORITIES) as u8).unwrap_or(Priority::NORMAL)
}

pub(super) fn offset(page: u64) -> Bytes {
    Pages::new(page).bytes(page_size())
}

/// For each page of the run whether it is told as lost.
///
/// # Errors
/// If the list is not in order, not merged, or has pages that were not asked about.
pub(super) fn lost(purged: &Purged, first: u64, pages: u64) -> Result<Vec<bool>, String> {
    let mut lost = vec![false; pages as usize];
    let mut last = None;
    let mut sum = 0;
    for run in purged.runs() {
        let apart = last.is_none_or(|end| run.start() > end);
        if !apart || run.start() < first || run.end() > first + pages {
            return Err(format!("{:?} for {first}, {pages} pages", purged.runs()));
        }
        last = Some(run.end());
        sum += run.len();
        for page in run.start()..run.end() {
            lost[(page - first) as usize] = true;
        }
    }
    if purged.pages().get() != sum || purged.is_empty() != (sum == 0) {
        return Err(format!("{} pages in runs of {sum}", purged.pages()));
    }
    Ok(lost)
}
