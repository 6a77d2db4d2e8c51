//! Drawing chosen pages into a pool: huge pages that are free now, of the longest runs.
//!
//! The kernel does not let a caller choose what a pool grows by. So the pool grows step by step,
//! until /proc/kpageflags shows the wanted pages in it; what came and is not wanted stays in the
//! pool meanwhile, unzeroed, so that the next step brings others. What came last is handed out
//! first, and goes first: where few pages of a step are wanted, the step is taken back and made
//! once more page by page, and each wanted page is mapped when it is the last that came. At the end
//! the pool shrinks by all that nobody mapped. What others take meanwhile is seen, and the choice
//! made anew.
//!
//! 6 µs for each page that the pool grows by, and the zeroing of those mapped, 0.1 to 0.6 ms each,
//! 3 ms of memory that a virtual machine's host has yet to give. Only chosen pages are zeroed under
//! the lock of the pools: another that grows them would take them. It is held for [`TURN`] at a
//! time; who waits for it comes in between. Frames are counted in huge pages.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::effort::Effort;
use super::held::Held;
use super::survey::{frame, free_pages};
use super::{Builder, Reporter};
use crate::contig::order::fewest_runs;
use crate::contig::pool::Growing;
use crate::contig::Error;
use crate::error::OsError;
use crate::mapping::Mapping;
use crate::sys::movability::{Frames, Kind};
use crate::sys::pagemap::Pagemap;
use crate::sys::zones;
use crate::units::{Bytes, Pages};

/// How long the lock is held, but for the end of a step.
const TURN: Duration = Duration::from_millis(250);
/// Pages that the pool grows by in one step.
const STEP: u64 = 32;

/// What is drawn, for which run.
pub(super) struct Draw<'a, 'r> {
    pub run: usize,
    pub frames: &'a Frames,
    pub held: &'a mut Held,
    pub reporter: &'a mut Reporter<'r>,
}

impl Builder<'_> {
    /// Takes in hand the free pages that make the longest runs with those in hand, the longest run
    /// first, and some that came with them.
    pub(super) fn draw(
        &mut self,
        draw: &mut Draw<'_, '_>,
        effort: &mut Effort,
    ) -> Result<(), Error> {
        zones::empty_processor_lists();
        let (mut wanted, longest) = self.wanted(draw)?;
        effort.note(format!("a run of {} was seen free", longest.bytes(self.pool.size())));
        while !wanted.is_empty() && !effort.is_over() {
            let before = draw.held.pages();
            let lock = self.lock()?;
            let pool = self.pool.clone();
            let most = effort.may_grow(&pool)?;
            let turn = |growing: &mut Growing<'_>| self.draw_a_turn(growing, draw, &mut wanted);
            lock.with_growth(&pool, most, turn)?;
            drop(lock);
            if draw.held.pages() == before {
                break;
            }
            self.grew = true;
            // The pages that went back now are free for everybody only so.
            zones::empty_processor_lists();
            if wanted.is_empty() {
                (wanted, _) = self.wanted(draw)?;
            }
        }
        Ok(())
    }

    /// The free pages to draw next, none where nothing is gained by them, and the longest run that
    /// could be had. A run that is longer than what is in hand comes before all others.
    fn wanted(&self, draw: &Draw<'_, '_>) -> Result<(BTreeSet<u64>, Pages), Error> {
        let (size, held) = (self.pool.size(), &*draw.held);
        let keep = usize::try_from(self.pages).unwrap_or(usize::MAX);
        let mut all = held.frames.clone();
        all.extend(free_pages(draw.frames, size, draw.run as u64, self.pages)?);
        let (best, had) = (fewest_runs(&all, keep), held.plan(self.pages));
        let longest = Pages::new(best.longest as u64);
        let mut kept: Vec<u64> = best.give_back.iter().rev().take(keep).map(|n| all[*n]).collect();
        if best.longest > had.longest {
            let runs = kept.chunk_by(|a, b| a + 1 == *b);
            kept = runs.max_by_key(|run| run.len()).map_or(Vec::new(), <[u64]>::to_vec);
        } else if held.pages() >= self.pages {
            kept.clear();
        }
        let in_hand: BTreeSet<u64> = held.frames.iter().copied().collect();
        Ok((kept.into_iter().filter(|number| !in_hand.contains(number)).collect(), longest))
    }

    fn draw_a_turn(
        &self,
        growing: &mut Growing<'_>,
        draw: &mut Draw<'_, '_>,
        wanted: &mut BTreeSet<u64>,
    ) -> Result<(), Error> {
        let began = Instant::now();
        while began.elapsed() < TURN && !wanted.is_empty() {
            // More than there are would have the kernel reclaim and compact for them.
            let came = growing.by(STEP.min(zones::obtainable(self.pool.size())?))?;
            if came == 0 {
                wanted.clear();
                break;
            }
            let before = wanted.len();
            let arrived = self.arrived(wanted, draw.frames)?;
            let mut missed = before - wanted.len();
            if !arrived.is_empty() {
                missed -= self.take_from_top(growing, came, arrived, draw)?;
                let pages = draw.held.pages().min(self.pages);
                draw.reporter.report(Pages::new(pages).bytes(self.pool.size()), self.len);
            }
            if missed > 0 {
                // Others took some: what is free now makes other runs.
                (*wanted, _) = self.wanted(draw)?;
            }
        }
        Ok(())
    }

    /// Moves those that are in the pool out of `wanted`; what is neither there nor free any more
    /// goes.
    fn arrived(
        &self,
        wanted: &mut BTreeSet<u64>,
        frames: &Frames,
    ) -> Result<BTreeSet<u64>, OsError> {
        let mut arrived = BTreeSet::new();
        let mut still = BTreeSet::new();
        for number in std::mem::take(wanted) {
            match frames.kind(frame(number, self.pool.size()))? {
                Kind::Pool => arrived.insert(number),
                // The kernel moves some to a list of the processor's before it hands them out.
                Kind::Free | Kind::Unmarked => still.insert(number),
                _ => false,
            };
        }
        *wanted = still;
        Ok(arrived)
    }

    /// Maps those of the `top` pages that came last which have `arrived`. Returns how many of them
    /// were had.
    fn take_from_top(
        &self,
        growing: &mut Growing<'_>,
        top: u64,
        mut arrived: BTreeSet<u64>,
        draw: &mut Draw<'_, '_>,
    ) -> Result<usize, Error> {
        let all = arrived.len();
        if (all as u64) * 2 > top {
            self.take_one_by_one(top, &mut arrived, draw.held)?;
            return Ok(all - arrived.len());
        }
        // Few of many: they go back, and come one by one once more, the last first.
        growing.less(top)?;
        for _ in 0..top {
            if growing.by(1)? == 0 || arrived.is_empty() {
                break;
            }
            if self.is_any_there(&arrived, draw.frames)? {
                self.take_one_by_one(1, &mut arrived, draw.held)?;
            }
        }
        Ok(all - arrived.len())
    }

    fn is_any_there(&self, numbers: &BTreeSet<u64>, frames: &Frames) -> Result<bool, OsError> {
        for number in numbers {
            if frames.kind(frame(*number, self.pool.size()))? == Kind::Pool {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Maps up to `top` pages, the last that came first, until all of `arrived` are had.
    fn take_one_by_one(
        &self,
        top: u64,
        arrived: &mut BTreeSet<u64>,
        held: &mut Held,
    ) -> Result<(), Error> {
        let size = self.pool.size();
        let mut mapping = match self.private(top) {
            // Somebody took some of them.
            Err(Error::Os(_)) => return Ok(()),
            mapped => mapped?,
        };
        self.gate.check(mapping.len())?;
        let mut len = Bytes::ZERO;
        while len < mapping.len() && !arrived.is_empty() {
            mapping.populate(len, size.bytes())?;
            arrived.remove(&self.number_at(&mapping, len)?);
            len = len + size.bytes();
        }
        mapping.shorten(len)?;
        Ok(held.add(mapping, size)?)
    }

    fn number_at(&self, mapping: &Mapping, offset: Bytes) -> Result<u64, OsError> {
        let size = self.pool.size();
        let at = mapping.addr() + offset.as_usize();
        let entries = Pagemap::open()?.entries(at, size.bytes(), size)?;
        let found = entries.first().and_then(|entry| entry.frame()).unwrap_or_default();
        Ok(found.get() / frame(1, size).get())
    }
}
