//! [`StandingPool::compact`]: longer runs, by exchanging pages that nobody holds.
//!
//! Held pages stay where they are; the free ones between them are *stretches* of the file. More
//! pages are taken from the machine, and of them and the free ones the longest runs are laid into
//! the longest stretches: all are given back to the hugetlb pool, those wanted last and in
//! descending order, set aside for the file under the pool's lock and populated stretch by stretch
//! after, since the pool hands out what came last first. What came out is read, never assumed. It
//! costs the zeroing of every page looked at.
//!
//! Counts and frames are huge pages.

use super::state::State;
use super::{Inner, StandingPool};
use crate::contig::pool::{Place, PoolLock};
use crate::contig::populate::machine_available;
use crate::contig::{runs, Contig, Error, Run, Source};
use crate::error::OsError;
use crate::extent::Extent;
use crate::mapping::Mapping;
use crate::sys::hugetlb::Pool;
use crate::sys::page_size;
use crate::sys::pagemap::{frames_visible, Entry, Pagemap};
use crate::units::{Bytes, Pages};

/// What a compaction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// The longest run before.
    pub before: Pages,
    /// The longest run after.
    pub after: Pages,
    /// Runs before.
    pub runs_before: usize,
    /// Runs after.
    pub runs_after: usize,
    /// Bytes that were given back and taken again; none where nothing could be gained.
    pub exchanged: Bytes,
    /// Bytes that somebody else took meanwhile: the pool is shorter by them.
    pub lost: Bytes,
}

/// Where a page that may be laid into the file is now.
#[derive(Clone, Copy, Debug)]
enum At {
    /// At this huge page of the file, held by nobody.
    File(u64),
    /// In memory taken for the occasion.
    Scratch(usize),
}

impl StandingPool {
    /// Lengthens the longest run, with up to `more` of the machine's memory to choose from beside
    /// the pool's own free pages. Nobody can take a piece meanwhile.
    ///
    /// # Errors
    /// [`Error::FramesHidden`] without the privilege to read them, [`Error::PoolFixed`] without
    /// that to change the hugetlb pool; what the kernel refuses. The pool's state is what is there
    /// then.
    ///
    /// # Panics
    /// If memory to keep account of the runs cannot be had.
    pub fn compact(&self, more: Bytes) -> Result<Compaction, Error> {
        let inner = &*self.0;
        let mut state = inner.state()?;
        if !frames_visible() {
            return Err(Error::FramesHidden);
        }
        let fixed = || Error::PoolFixed { size: inner.size.bytes() };
        let pool = Place::machine().pool(inner.size).filter(Pool::is_writable).ok_or_else(fixed)?;
        let mut all = inner.exchange(&mut state, &pool, more)?;
        for _ in 1..ATTEMPTS {
            if all.as_planned {
                break;
            }
            let again = inner.exchange(&mut state, &pool, more)?;
            all = all.followed_by(again);
        }
        Ok(all.done)
    }
}

/// Attempts to have the pages as planned: others draw from the pool meanwhile.
const ATTEMPTS: u32 = 4;

struct Exchange {
    done: Compaction,
    as_planned: bool,
}

impl Exchange {
    fn followed_by(self, next: Self) -> Self {
        let (first, last) = (self.done, next.done);
        let (before, runs_before) = (first.before, first.runs_before);
        let (exchanged, lost) = (first.exchanged + last.exchanged, first.lost + last.lost);
        let done = Compaction { before, runs_before, exchanged, lost, ..last };
        Self { done, as_planned: next.as_planned }
    }
}

impl Inner {
    fn exchange(&self, state: &mut State, pool: &Pool, more: Bytes) -> Result<Exchange, Error> {
        // What this needs is had before anything is changed.
        let map = Pagemap::open()?;
        let (runs, proof) = runs::read_by(&map, &self.mapping, self.size)?;
        if runs != state.runs() {
            state.renew(runs, proof); // an earlier compaction could not see what it had made
        }
        let (longest, count) = (runs::longest(state.runs()), state.runs().len());
        let stretches = stretches(state.runs(), self.grain(), |pages| state.is_free(pages));
        let free: u64 = stretches.iter().map(|stretch| stretch.len()).sum();
        let nothing = Compaction {
            before: longest,
            after: longest,
            runs_before: count,
            runs_after: count,
            exchanged: Bytes::ZERO,
            lost: Bytes::ZERO,
        };
        let as_it_is = Exchange { done: nothing, as_planned: true };
        if free == 0 {
            return Ok(as_it_is);
        }
        let mut scratch = self.scratch(more)?;
        let pages = self.candidates(&map, &stretches, scratch.as_ref())?;
        let frames: Vec<u64> = pages.iter().map(|(frame, _)| *frame).collect();
        let lens: Vec<usize> = stretches.iter().map(|s| s.len() as usize).collect();
        let plan = lay(&frames, &lens);
        let planned = longest_laid(&frames, &lens, &plan) * self.grain();
        if planned <= longest.get() {
            return Ok(as_it_is);
        }
        let lock = PoolLock::acquire()?;
        let aside = self.free_and_set_aside(&lock, pool, &pages, &plan, &stretches, &mut scratch);
        drop(lock);
        let mut filled = Ok(());
        for stretch in &stretches {
            filled = filled.and(self.fill(&map, *stretch, pool));
        }
        drop(scratch);
        // Also after a failure: what is not there any more, or cannot be seen, is nobody's to take.
        let (runs, proof) = runs::read_by(&map, &self.mapping, self.size).inspect_err(|_| {
            let kept = outside(state.runs(), &stretches, self.grain());
            let proof = state.proof();
            state.renew(kept, proof);
        })?;
        let there = |runs: &[Run]| runs.iter().map(|run| run.pages.len()).sum::<u64>();
        let lost = there(state.runs()).saturating_sub(there(&runs));
        let (after, runs_after) = (runs::longest(&runs), runs.len());
        state.renew(runs, proof);
        drop(aside?);
        filled?;
        let exchanged = Pages::new(free).bytes(self.size);
        let lost = Pages::new(lost).bytes(page_size());
        let done = Compaction { after, runs_after, exchanged, lost, ..nothing };
        Ok(Exchange { done, as_planned: after.get() >= planned })
    }

    /// Gives every page back, so that the hugetlb pool hands out those of `plan` in its order, and
    /// sets as many aside for the stretches: mappings that keep them so.
    fn free_and_set_aside(
        &self,
        lock: &PoolLock,
        pool: &Pool,
        pages: &[(u64, At)],
        plan: &[usize],
        stretches: &[Extent],
        scratch: &mut Option<Contig>,
    ) -> Result<Vec<Mapping>, Error> {
        let mut wanted = vec![false; pages.len()];
        plan.iter().for_each(|n| wanted[*n] = true);
        // While some pages are surplus, those that are not wanted leave the pool.
        for n in (0..pages.len()).filter(|n| !wanted[*n]) {
            self.give_back(pages[n].1, scratch)?;
        }
        lock.with_pages(pool, 0, |_| {
            for n in plan.iter().rev() {
                self.give_back(pages[*n].1, scratch)?;
            }
            // Where one is refused somebody else was quicker, and populating finds what is left.
            Ok(stretches.iter().filter_map(|stretch| self.aside(*stretch).ok()).collect())
        })
    }

    /// A mapping of a stretch, for which what is absent is set aside.
    fn aside(&self, stretch: Extent) -> Result<Mapping, Error> {
        let [start, len] = [stretch.start(), stretch.len()].map(|n| Pages::new(n).bytes(self.size));
        Ok(Mapping::window(self.file.as_file(), start, len, self.size)?)
    }

    /// Base pages in a huge page.
    fn grain(&self) -> u64 {
        self.size.bytes().pages_down(page_size()).get()
    }

    /// Up to `more` bytes of other pages, populated; none where none is to be had.
    fn scratch(&self, more: Bytes) -> Result<Option<Contig>, Error> {
        let half = Bytes::new(machine_available()?.get() / 2);
        let wanted = more.min(half).pages_down(self.size).get();
        if wanted == 0 {
            return Ok(None);
        }
        let source = Source::Hugetlb(self.size);
        let take = |pages: u64| {
            let options = Contig::options().source(source).in_order(false);
            options.map(Pages::new(pages).bytes(self.size))
        };
        let taken = match take(wanted) {
            Err(Error::PoolShort { got, .. }) if got > 0 => take(got.min(wanted)),
            taken => taken,
        };
        match taken {
            Err(Error::PoolShort { .. } | Error::TooLarge { .. }) => Ok(None),
            taken => taken.map(Some),
        }
    }

    /// Frame and place of every page that may be laid into the file.
    fn candidates(
        &self,
        map: &Pagemap,
        stretches: &[Extent],
        scratch: Option<&Contig>,
    ) -> Result<Vec<(u64, At)>, Error> {
        let grain = self.grain();
        let mut pages = Vec::new();
        let all = map.entries(self.mapping.addr(), self.mapping.len(), self.size)?;
        for at in stretches.iter().flat_map(|stretch| stretch.start()..stretch.end()) {
            let entry = all.get(usize::try_from(at).unwrap_or(usize::MAX));
            let frame = entry.and_then(|entry| entry.frame()).ok_or(Error::FramesHidden)?;
            pages.push((frame.get() / grain, At::File(at)));
        }
        if let Some(Contig { mapping, .. }) = scratch {
            let entries = map.entries(mapping.addr(), mapping.len(), self.size)?;
            for (n, entry) in entries.iter().enumerate() {
                let frame = entry.frame().ok_or(Error::FramesHidden)?;
                pages.push((frame.get() / grain, At::Scratch(n)));
            }
        }
        Ok(pages)
    }

    fn give_back(&self, at: At, scratch: &mut Option<Contig>) -> Result<(), OsError> {
        match (at, scratch) {
            // Nobody holds it while the state is locked, and it is populated again.
            (At::File(at), _) => {
                self.file.punch(Pages::new(at).bytes(self.size), self.size.bytes())
            }
            (At::Scratch(at), Some(scratch)) => scratch.mapping.discard(at),
            (At::Scratch(_), None) => Ok(()),
        }
    }

    /// Populates a stretch, from its start on; once more where somebody else had drawn from the
    /// pool, which is given what is still absent.
    pub(super) fn fill(&self, map: &Pagemap, stretch: Extent, pool: &Pool) -> Result<(), Error> {
        let [start, len] = [stretch.start(), stretch.len()].map(|n| Pages::new(n).bytes(self.size));
        if self.mapping.populate(start, len).is_ok() {
            return Ok(());
        }
        let entries = map.entries(self.mapping.addr() + start.as_usize(), len, self.size)?;
        let absent = entries.iter().filter(|entry| **entry == Entry::Absent).count() as u64;
        let missing = absent.saturating_sub(pool.counts()?.available());
        let lock = PoolLock::acquire()?;
        let _aside = lock.with_surplus(self.size, missing, || self.aside(stretch))?;
        drop(lock);
        Ok(self.mapping.populate(start, len)?)
    }
}

/// The free huge pages of the file that lie side by side.
fn stretches(runs: &[Run], grain: u64, is_free: impl Fn(Extent) -> bool) -> Vec<Extent> {
    let mut all: Vec<Extent> = Vec::new();
    for run in runs {
        for at in run.pages.start() / grain..run.pages.end() / grain {
            if !Extent::new(at * grain, grain).is_some_and(&is_free) {
                continue;
            }
            match all.last_mut() {
                Some(last) if last.end() == at => {
                    *last = Extent::new(last.start(), last.len() + 1).unwrap_or(*last);
                }
                _ => all.extend(Extent::new(at, 1)),
            }
        }
    }
    all
}

/// What of `runs` is in no stretch.
fn outside(runs: &[Run], stretches: &[Extent], grain: u64) -> Vec<Run> {
    let mut all = Vec::new();
    for run in runs {
        let mut start = run.pages.start();
        let mut keep = |from: u64, to: u64| {
            let pfn = run.pfn.map(|pfn| pfn.plus(Pages::new(from - run.pages.start())));
            let pages = to.checked_sub(from).and_then(|len| Extent::new(from, len));
            all.extend(pages.map(|pages| Run { pages, pfn }));
        };
        for stretch in stretches {
            let [from, to] = [stretch.start(), stretch.end()].map(|huge| huge * grain);
            if from < run.pages.end() && to > start {
                keep(start, from);
                start = to;
            }
        }
        keep(start, run.pages.end());
    }
    all
}

/// Which of `frames` to lay where: an index for each place of the stretches, one after the other.
/// The longest runs go to the longest stretches; where a run is longer than what is left of a
/// stretch, the shortest that is enough is broken.
fn lay(frames: &[u64], stretches: &[usize]) -> Vec<usize> {
    let mut ascending: Vec<usize> = (0..frames.len()).collect();
    ascending.sort_unstable_by_key(|n| frames[*n]);
    let runs = ascending.chunk_by(|a, b| frames[*b] == frames[*a].wrapping_add(1));
    let mut runs: Vec<Vec<usize>> = runs.map(<[usize]>::to_vec).collect();
    runs.sort_by_key(Vec::len);
    let mut order: Vec<usize> = (0..stretches.len()).collect();
    order.sort_by_key(|n| std::cmp::Reverse(stretches[*n]));
    let mut laid: Vec<Vec<usize>> = vec![Vec::new(); stretches.len()];
    for stretch in order {
        let mut left = stretches[stretch];
        while left > 0 && !runs.is_empty() {
            let enough = runs.partition_point(|run| run.len() < left);
            let run = runs.remove(enough.min(runs.len() - 1));
            let (part, rest) = run.split_at(run.len().min(left));
            laid[stretch].extend(part);
            left -= part.len();
            if !rest.is_empty() {
                let at = runs.partition_point(|other| other.len() < rest.len());
                runs.insert(at, rest.to_vec());
            }
        }
    }
    laid.concat()
}

/// The longest run of a plan, within one stretch.
fn longest_laid(frames: &[u64], stretches: &[usize], plan: &[usize]) -> u64 {
    let mut rest = plan;
    let mut longest = 0;
    for len in stretches {
        let (stretch, behind) = rest.split_at((*len).min(rest.len()));
        rest = behind;
        let runs = stretch.chunk_by(|a, b| frames[*b] == frames[*a].wrapping_add(1));
        longest = longest.max(runs.map(<[usize]>::len).max().unwrap_or(0));
    }
    longest as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Pfn;
    use proptest::prelude::*;

    #[test]
    fn the_longest_run_goes_to_the_longest_stretch() {
        let frames = [10, 30, 11, 31, 32, 50];
        let plan = lay(&frames, &[2, 3]);
        let laid: Vec<u64> = plan.iter().map(|n| frames[*n]).collect();
        assert_eq!(laid, [10, 11, 30, 31, 32]);
        assert_eq!(longest_laid(&frames, &[2, 3], &plan), 3);
        let plan = lay(&frames, &[4]);
        let laid: Vec<u64> = plan.iter().map(|n| frames[*n]).collect();
        assert_eq!(laid, [30, 31, 32, 50]);
        assert_eq!(longest_laid(&frames, &[1, 1], &lay(&frames, &[1, 1])), 1);
    }

    #[test]
    fn stretches_end_where_somebody_holds_a_page() {
        let pages = |start, len| Extent::new(start, len).unwrap();
        let run = |start, len| Run { pages: pages(start, len), pfn: None };
        let runs = [run(0, 16), run(16, 8), run(32, 8)];
        let held = pages(9, 1);
        let all = stretches(&runs, 4, |huge| !huge.overlaps(held));
        assert_eq!(all, [pages(0, 2), pages(3, 3), pages(8, 2)]);
    }

    #[test]
    fn what_is_held_is_left_where_the_rest_cannot_be_seen() {
        let pages = |start, len| Extent::new(start, len).unwrap();
        let run = |start, len, pfn| Run { pages: pages(start, len), pfn: Some(Pfn::new(pfn)) };
        let runs = [run(0, 16, 100), run(16, 8, 400), run(24, 16, 800)];
        let kept = outside(&runs, &[pages(0, 1), pages(2, 3), pages(7, 3)], 4);
        assert_eq!(kept, [run(4, 4, 104), run(20, 4, 404), run(24, 4, 800)]);
        assert_eq!(outside(&runs, &[], 4), runs);
        assert_eq!(outside(&runs, &[pages(0, 10)], 4), []);
    }

    proptest! {
        #[test]
        fn every_place_has_one_page_and_the_longest_run_is_as_long_as_can_be(
            set in proptest::collection::hash_set(0_u64..60, 1..40),
            cut in proptest::collection::vec(1_usize..8, 1..6),
        ) {
            let frames: Vec<u64> = set.into_iter().collect();
            let mut left = frames.len();
            let mut lens: Vec<usize> = Vec::new();
            for len in cut {
                lens.push(len.min(left));
                left -= len.min(left);
            }
            lens.retain(|len| *len > 0);
            let plan = lay(&frames, &lens);
            prop_assert_eq!(plan.len(), lens.iter().sum::<usize>());
            let mut once = plan.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!(once.len(), plan.len());
            let mut sorted = frames.clone();
            sorted.sort_unstable();
            let run = sorted.chunk_by(|a, b| *b == a + 1).map(<[u64]>::len).max().unwrap();
            let most = run.min(*lens.iter().max().unwrap());
            prop_assert_eq!(longest_laid(&frames, &lens, &plan), most as u64);
        }
    }
}
