use std::sync::atomic::Ordering;
use std::time::Duration;

use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_volatile::{Engine, Error as VolatileError, Priority, Purged};

use super::ground::{Ground, Kind};
use super::oracle::{Contents, State};
use super::{range, Counts, Shared};
use glebe_testing::stressed::{fill, page_buffer, Random};

const WRITE_MAX: u64 = 16;
/// Longest pause between steps, so that pages stay marked for a while.
const REST_MAX: Duration = Duration::from_micros(1500);
/// Steps between pauses of an owner of huge pages. The kernel takes used pages last, and an unmark
/// counts as use. So the owner at times leaves all pages alone until the kernel takes one, at most
/// `HUGE_LOOKS` times `HUGE_REST`.
const HUGE_STEPS: u64 = 12;
const HUGE_LOOKS: u32 = 60;
const HUGE_REST: Duration = Duration::from_millis(20);
const PRIORITIES: u64 = 8;

struct Owner<'a> {
    shared: &'a Shared,
    ground: &'a Ground,
    random: Random,
    counts: Counts,
    page: Vec<u8>,
}

pub(super) fn own(shared: &Shared, ground: &Ground, id: u64) -> Counts {
    let random = Random(id << 32 | (ground.kind as u64) << 48 | 1);
    let mut owner =
        Owner { shared, ground, random, counts: Counts::default(), page: page_buffer() };
    let chunks = ground.chunks_of(id);
    let mut steps = 0;
    while !shared.stopped() {
        {
            let _step = shared.step.read();
            let chunk = chunks[owner.random.below(chunks.len() as u64) as usize];
            owner.step(chunk);
        }
        steps += 1;
        ground.show(&owner.counts);
        if ground.kind == Kind::Huge && steps % HUGE_STEPS == 0 {
            owner.leave_alone(&chunks);
        }
        owner.random.rest(REST_MAX);
    }
    for chunk in chunks {
        let _step = shared.step.read();
        owner.unmark(chunk, ground.chunk);
    }
    owner.counts
}

/// Writes, marks and unmarks all pages of an owner before the kernel needs memory.
pub(super) fn begin(shared: &Shared, ground: &Ground, id: u64) -> Counts {
    let random = Random(1);
    let mut owner =
        Owner { shared, ground, random, counts: Counts::default(), page: page_buffer() };
    for chunk in ground.chunks_of(id) {
        owner.write(chunk, ground.chunk);
        owner.mark(chunk, ground.chunk);
        owner.unmark(chunk, ground.chunk);
        owner.rewrite_empty(chunk, ground.chunk);
    }
    owner.counts
}

impl Owner<'_> {
    fn step(&mut self, chunk: u64) {
        let (grain, grains) = (self.ground.grain, self.ground.chunk / self.ground.grain);
        let at = self.random.below(grains);
        let (first, pages) = (chunk + at * grain, (1 + self.random.below(grains - at)) * grain);
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

    fn leave_alone(&mut self, chunks: &[u64]) {
        let (shared, pages) = (self.shared, self.ground.chunk);
        for &chunk in chunks {
            let _step = shared.step.read();
            if chunk == chunks[0] {
                self.mark(chunk, pages);
                self.drop_now(chunk, pages);
                self.unmark(chunk, pages);
                self.rewrite_empty(chunk, pages);
            }
            self.mark(chunk, pages);
        }
        // Keeps readers away, because a read would count as a use of the whole huge page.
        self.ground.left_alone.store(true, Ordering::Relaxed);
        let resident = || self.ground.region.stats().resident;
        let before = resident();
        for _ in 0..HUGE_LOOKS {
            std::thread::sleep(HUGE_REST);
            if resident() < before || shared.stopped() {
                break;
            }
        }
        self.ground.left_alone.store(false, Ordering::Relaxed);
        for &chunk in chunks {
            let _step = shared.step.read();
            self.unmark(chunk, pages);
            self.rewrite_empty(chunk, pages);
        }
    }

    fn mark(&mut self, first: u64, pages: u64) {
        let (region, oracle) = (&self.ground.region, &self.ground.oracle);
        let priority = priority(&mut self.random);
        oracle.begin(first, pages);
        region.mark(range(first, pages), priority).unwrap();
        for page in first..first + pages {
            oracle.end(page, State { marked: true, ..oracle.state(page) });
        }
    }

    fn drop_now(&mut self, first: u64, pages: u64) {
        let (region, oracle) = (&self.ground.region, &self.ground.oracle);
        oracle.begin(first, pages);
        region.drop_now(range(first, pages)).unwrap();
        for page in first..first + pages {
            let state = oracle.state(page);
            oracle.end(page, State { dropped: state.dropped || state.marked, ..state });
        }
    }

    fn unmark(&mut self, first: u64, pages: u64) {
        let (region, oracle) = (&self.ground.region, &self.ground.oracle);
        oracle.begin(first, pages);
        let purged = region.unmark(range(first, pages)).unwrap();
        for (page, lost) in (first..).zip(lost(&purged, first, pages).unwrap()) {
            let was = oracle.state(page);
            let mut is = State { marked: false, dropped: false, empty: was.empty || lost, ..was };
            region.read(offset(page), &mut self.page).unwrap();
            let held = oracle.judge(was, &self.page, page);
            self.counts.judge_unmarked(was, lost, held);
            if held == Contents::Refilled {
                is = State { version: was.version + 1, empty: false, ..is };
                fill(&mut self.page, page, is.version);
                region.write(offset(page), &self.page).unwrap();
            }
            oracle.end(page, is);
        }
        self.counts.check();
    }

    /// Writes new versions of runs, up to the first run with a marked page. The region must refuse
    /// to write that run.
    fn write(&mut self, first: u64, pages: u64) {
        let oracle = &self.ground.oracle;
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
            let wrote = self.ground.region.write(offset(at), &bytes);
            match wrote {
                Ok(()) => assert!(!marked, "a write into what is marked"),
                Err(VolatileError::Marked { .. }) => assert!(marked, "a write that is refused"),
                Err(e) => panic!("{e}"),
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

    fn rewrite_empty(&mut self, first: u64, pages: u64) {
        for page in first..first + pages {
            if self.ground.oracle.state(page).empty {
                self.write(page, 1);
            }
        }
    }

    fn look(&mut self, first: u64, pages: u64) {
        for page in first..first + pages {
            let state = self.ground.oracle.state(page);
            let read = self.ground.region.try_read(offset(page), &mut self.page);
            self.counts.judge_read(self.ground, state, read, &self.page, page);
        }
    }
}

impl Counts {
    pub(super) fn judge_unmarked(&mut self, was: State, lost: bool, is: Contents) {
        match (lost, is) {
            // A page refilled during the unmark may also be reported lost.
            (_, Contents::Refilled) if was.marked => self.refilled_pages += 1,
            // A page reported lost must hold zeros.
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
            (false, Contents::Zeros | Contents::Wrong | Contents::Refilled) => {
                self.lost_writes += 1
            }
        }
    }

    fn judge_read(
        &mut self,
        ground: &Ground,
        state: State,
        read: Result<(), VolatileError>,
        bytes: &[u8],
        page: u64,
    ) {
        match read {
            Ok(()) => match ground.oracle.judge(state, bytes, page) {
                Contents::Right if state.dropped && !state.empty => self.false_intact += 1,
                Contents::Right | Contents::Refilled => {}
                Contents::Zeros if state.marked => self.false_intact += 1,
                Contents::Stale => self.stale_reads += 1,
                Contents::Zeros | Contents::Wrong => self.lost_writes += 1,
            },
            Err(VolatileError::Purged { .. }) => self.false_purged += u64::from(!state.marked),
            Err(e) => panic!("try_read: {e}"),
        }
    }
}

pub(super) fn read(shared: &Shared, ground: &Ground) -> Counts {
    let mut counts = Counts::default();
    let mut random = Random(!0);
    let mut bytes = page_buffer();
    // Only the scan engine refills a lost page at a touch. The tag engine lets it read as zeros.
    let touches = ground.kind == Kind::Refilled && ground.region.engine() == Engine::Scan;
    while !shared.stopped() {
        let page = random.below(ground.own());
        if ground.left_alone.load(Ordering::Relaxed) {
            std::thread::sleep(HUGE_REST);
            continue;
        }
        if random.below(16) == 0 {
            random.rest(REST_MAX);
        }
        let Some((state, word)) = ground.oracle.stable(page) else { continue };
        let read = match touches && random.below(2) == 0 {
            true => {
                ground.touch(page, &mut bytes);
                Ok(())
            }
            false => ground.region.try_read(offset(page), &mut bytes),
        };
        if ground.oracle.is_still(page, word) {
            counts.judge_read(ground, state, read, &bytes, page);
            counts.check();
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

/// Returns, for each page of the range, true if it is reported lost.
///
/// # Errors
/// The runs are out of order, not merged, or outside the range, or the number of pages is wrong.
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
