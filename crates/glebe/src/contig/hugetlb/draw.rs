//! Drawing chosen pages into a pool: huge pages that are free now, of the longest runs.
//!
//! The kernel does not let a caller choose what a pool grows by. So the pool grows, without a page
//! zeroed, until /proc/kpageflags shows the wanted pages in it; from then on nobody else can take
//! them. What others took before is seen, and the choice made anew of what came. Then the pool
//! shrinks, the page that came last first; a wanted page that went is brought back, since it is
//! the next that the pool gets, and mapped. At the end all is gone that nobody mapped.
//!
//! 6 µs for each page that the pool grows by, 10 for each by which it shrinks, and the zeroing of
//! those mapped, 0.1 to 0.6 ms each, 3 ms of memory that a virtual machine's host has yet to give.
//! These are zeroed under the lock of the pools: another that grows them would take them. It is
//! held for [`TURN`] at a time; who waits for it comes in between. Frames are counted in huge
//! pages.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::effort::Effort;
use super::held::Held;
use super::survey::{frame, free_pages, in_pool};
use super::{Builder, Order, Reporter};
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
const TURN: Duration = Duration::from_millis(500);
/// Pages that the pool grows or shrinks by in one step.
const STEP: u64 = 64;
/// Pages after which what came is looked at, since it may do as well as what is wanted; then after
/// twice as many, and so on.
const LOOK_FIRST: u64 = 256;
/// Turns that bring nothing, at most.
const VAIN_MAX: u32 = 2;

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
        let (mut wanted, longest) = self.wanted_of_free(draw)?;
        effort.note(format!("a run of {} was seen free", longest.bytes(self.pool.size())));
        let mut vain = 0;
        while !wanted.is_empty() && vain < VAIN_MAX && !effort.is_over() {
            let before = draw.held.pages();
            let lock = self.lock()?;
            let pool = self.pool.clone();
            let most = effort.may_grow(&pool)?;
            lock.with_growth(&pool, most, |growing| self.draw_a_turn(growing, draw, wanted))?;
            drop(lock);
            vain = if draw.held.pages() == before { vain + 1 } else { 0 };
            self.grew |= vain == 0;
            // What went back is free for everybody only so.
            zones::empty_processor_lists();
            (wanted, _) = self.wanted_of_free(draw)?;
        }
        Ok(())
    }

    /// The free pages to draw next, and the longest run that could be had.
    fn wanted_of_free(&self, draw: &Draw<'_, '_>) -> Result<(BTreeSet<u64>, Pages), Error> {
        let free = free_pages(draw.frames, self.pool.size(), draw.run as u64, self.pages)?;
        Ok(self.wanted(draw, free))
    }

    /// Which of `pages` to draw next, none where nothing is gained by them, and the longest run
    /// that could be had. A run that is longer than what is in hand comes before all others.
    fn wanted(&self, draw: &Draw<'_, '_>, pages: Vec<u64>) -> (BTreeSet<u64>, Pages) {
        let held = &*draw.held;
        let keep = usize::try_from(self.pages).unwrap_or(usize::MAX);
        let mut all = held.frames.clone();
        all.extend(pages);
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
        (kept.into_iter().filter(|number| !in_hand.contains(number)).collect(), longest)
    }

    fn draw_a_turn(
        &self,
        growing: &mut Growing<'_>,
        draw: &mut Draw<'_, '_>,
        mut wanted: BTreeSet<u64>,
    ) -> Result<(), Error> {
        let (began, size) = (Instant::now(), self.pool.size());
        self.grow_until(growing, draw, &mut wanted)?;
        while !wanted.is_empty() && began.elapsed() < TURN {
            let top = STEP.min(growing.free());
            if top == 0 {
                break;
            }
            growing.less(top)?;
            let mut gone = self.gone(&wanted, draw.frames)?;
            if !gone.is_empty() {
                wanted.retain(|number| !gone.contains(number));
                growing.by(top)?;
                self.take_from_top(growing, top, &mut gone, draw)?;
                let pages = draw.held.pages().min(self.pages);
                draw.reporter.report(Pages::new(pages).bytes(size), self.len);
            }
        }
        Ok(())
    }

    /// Grows the pool until `wanted` is in it, or something as good, or no more can be had; then
    /// `wanted` is the best of what came.
    fn grow_until(
        &self,
        growing: &mut Growing<'_>,
        draw: &Draw<'_, '_>,
        wanted: &mut BTreeSet<u64>,
    ) -> Result<(), Error> {
        let size = self.pool.size();
        let of_others = in_pool(draw.frames, size)?;
        let mut look_at = LOOK_FIRST;
        while !self.are_in_pool(wanted, draw.frames)? {
            // More than there are would have the kernel reclaim and compact for them.
            let came = growing.by(STEP.min(zones::obtainable(size)?))?;
            if came > 0 && growing.free() < look_at {
                continue;
            }
            look_at = look_at.saturating_mul(2);
            let all = in_pool(draw.frames, size)?.difference(&of_others).copied().collect();
            let (best, longest) = self.wanted(draw, all);
            if came == 0 || longest.get() >= draw.run as u64 {
                *wanted = best;
                break;
            }
        }
        Ok(())
    }

    /// Maps those of the `top` pages that came last which are in `these`.
    fn take_from_top(
        &self,
        growing: &mut Growing<'_>,
        top: u64,
        these: &mut BTreeSet<u64>,
        draw: &mut Draw<'_, '_>,
    ) -> Result<(), Error> {
        if these.len() as u64 * 2 > top {
            return self.take_one_by_one(growing, top, these, draw.held);
        }
        for _ in 0..top {
            if these.is_empty() {
                break;
            }
            growing.less(1)?;
            if !self.gone(these, draw.frames)?.is_empty() && growing.by(1)? == 1 {
                self.take_one_by_one(growing, 1, these, draw.held)?;
            }
        }
        Ok(())
    }

    /// Maps up to `top` pages, the last that came first, until all of `these` are had.
    fn take_one_by_one(
        &self,
        growing: &mut Growing<'_>,
        top: u64,
        these: &mut BTreeSet<u64>,
        held: &mut Held,
    ) -> Result<(), Error> {
        let size = self.pool.size();
        let mut mapping = match self.private(top) {
            // Somebody took some of them.
            Err(Error::Os(_)) => return Ok(()),
            mapped => mapped?,
        };
        self.gate.check(mapping.len())?;
        if these.len() as u64 == top {
            // All are wanted, in whatever order they come.
            growing.take(top);
            self.fill(&mapping, Order::Any, &mut Reporter(None))?;
            these.clear();
            return Ok(held.add(mapping, size)?);
        }
        let mut len = Bytes::ZERO;
        while len < mapping.len() && !these.is_empty() {
            mapping.populate(len, size.bytes())?;
            growing.take(1);
            these.remove(&self.number_at(&mapping, len)?);
            len = len + size.bytes();
        }
        mapping.shorten(len)?;
        Ok(held.add(mapping, size)?)
    }

    /// Those that are not in the pool.
    fn gone(&self, numbers: &BTreeSet<u64>, frames: &Frames) -> Result<BTreeSet<u64>, OsError> {
        let mut gone = BTreeSet::new();
        for number in numbers {
            if frames.kind(frame(*number, self.pool.size()))? != Kind::Pool {
                gone.insert(*number);
            }
        }
        Ok(gone)
    }

    fn are_in_pool(&self, numbers: &BTreeSet<u64>, frames: &Frames) -> Result<bool, OsError> {
        for number in numbers {
            if frames.kind(frame(*number, self.pool.size()))? != Kind::Pool {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn number_at(&self, mapping: &Mapping, offset: Bytes) -> Result<u64, OsError> {
        let size = self.pool.size();
        let at = mapping.addr() + offset.as_usize();
        let entries = Pagemap::open()?.entries(at, size.bytes(), size)?;
        let found = entries.first().and_then(|entry| entry.frame()).unwrap_or_default();
        Ok(found.get() / frame(1, size).get())
    }
}
