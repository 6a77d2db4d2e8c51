//! Takes chosen free huge pages through the kernel's pool.
//!
//! The kernel chooses a pool's new pages. So untouched mappings ([`promised`](super::promised))
//! make the pool grow, until /proc/kpageflags shows the wanted pages in the pool. Then the mappings
//! end in steps. The pool of one NUMA node ([`nodes`](super::nodes)) loses its newest page first.
//! When a wanted page leaves, the pool grows until the page is back, and a touch takes the page.
//!
//! A turn holds the [`PoolLock`], also during zeroing, because a program that grows the pool would
//! take the pages. Frame numbers count huge pages.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use super::nodes::Stays;
use super::promised::Promised;
use super::survey::{free_pages, in_pool, is_in_pool};
use super::{Builder, Order};
use crate::order::fewest_runs;
use crate::pool::PoolLock;
use crate::Error;
use glebe_os::error::OsError;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sys::machine::kpage::Frames;
use glebe_os::internal::sys::machine::zones;
use glebe_os::internal::sys::processes::one_processor::OneProcessor;
use glebe_os::units::Pages;

/// Time limit of a turn, without the pool's growth; the last step may exceed it.
const TURN: Duration = Duration::from_millis(500);
const STEP: u64 = 64;
/// Pages added before the first check for an equally good run.
const LOOK_FIRST: u64 = 256;
/// Turns in a row without a new page, until `draw` ends.
const VAIN_MAX: u32 = 2;

pub(super) type Seen = (BTreeSet<u64>, Pages);

impl Builder<'_> {
    pub(super) fn draw(
        &mut self,
        frames: &Frames,
        (mut wanted, longest): Seen,
    ) -> Result<(), Error> {
        let size = self.pool.size();
        self.effort.note(format!("a run of {} was seen free", longest.bytes(size)));
        if self.options.required.is_some_and(|required| required > longest.bytes(size)) {
            return Ok(());
        }
        let mut vain = 0;
        while !wanted.is_empty() && vain < VAIN_MAX && !self.effort.is_over() {
            let before = self.held.pages();
            let left = self.effort.left();
            let lock = match self.lock_within(left) {
                Err(Error::Os(error)) if left.is_some() && error.kind() == ErrorKind::TimedOut => {
                    self.effort.note(error.to_string());
                    break;
                }
                lock => lock?,
            };
            self.draw_on_one_node(&lock, frames, wanted)?;
            drop(lock);
            vain = if self.held.pages() == before { vain + 1 } else { 0 };
            (wanted, _) = self.see(frames)?;
        }
        Ok(())
    }

    pub(super) fn see(&self, frames: &Frames) -> Result<Seen, Error> {
        zones::empty_processor_lists();
        let (size, in_hand) = (self.pool.size(), self.held.numbers());
        let wanted = (self.run as u64, self.pages);
        let may = |number| self.nodes.have(number);
        let free = free_pages(frames, size, &in_hand, wanted, may, || self.effort.is_over())?;
        Ok(self.wanted(free))
    }

    /// Returns the pages to take next: only the longest run, if it is longer than all held runs.
    fn wanted(&self, pages: Vec<u64>) -> Seen {
        let held = &self.held;
        let keep = usize::try_from(self.pages).unwrap_or(usize::MAX);
        let mut all = held.frames.clone();
        all.extend(pages);
        let (best, had) = (fewest_runs(&all, keep), held.plan(self.pages, 1));
        let longest = Pages::new(best.longest as u64);
        let mut kept: Vec<u64> = best.give_back.iter().rev().take(keep).map(|n| all[*n]).collect();
        if best.longest > had.longest {
            let runs = kept.chunk_by(|a, b| a + 1 == *b);
            kept = runs.max_by_key(|run| run.len()).map_or(Vec::new(), <[u64]>::to_vec);
        } else if held.pages() >= self.pages {
            kept.clear();
        }
        let in_hand = held.numbers();
        (kept.into_iter().filter(|number| !in_hand.contains(number)).collect(), longest)
    }

    fn draw_on_one_node(
        &mut self,
        lock: &PoolLock,
        frames: &Frames,
        wanted: BTreeSet<u64>,
    ) -> Result<(), Error> {
        let (wanted, node) = self.nodes.most(wanted);
        let (before, machine) = (self.pool.clone(), self.machine_pool()?);
        let node = node.or(before.node());
        let most = self.effort.may_grow(machine.size(), node.as_slice())?;
        self.go_to(node)?;
        let drawn = lock.with_surplus(&machine, most, || self.draw_a_turn(most, frames, wanted));
        self.pool = before;
        drawn
    }

    fn draw_a_turn(
        &mut self,
        most: u64,
        frames: &Frames,
        mut wanted: BTreeSet<u64>,
    ) -> Result<(), Error> {
        let size = self.pool.size();
        let (mut idle, mut promised) = (Promised::new(size), Promised::new(size));
        // `idle` takes the pool's free pages, so that each later promise makes the pool grow.
        idle.more(self, self.machine_pool()?.counts()?.available())?;
        let _stays = self.pool.node().map(Stays::on);
        self.grow_until(&mut promised, most, frames, &mut wanted)?;
        let began = Instant::now();
        while !wanted.is_empty() && began.elapsed() < TURN && !self.effort.is_over() {
            let top = STEP.min(promised.pages());
            if top == 0 {
                break;
            }
            let (gone, back) = self.look_below(&mut promised, top, &wanted, frames)?;
            if gone.is_empty() {
                continue;
            }
            wanted.retain(|number| !gone.contains(number));
            match gone.len() as u64 == top && back == top {
                true => self.take_all(promised.take())?,
                false => self.take_from_top(&mut promised, back, gone, frames)?,
            }
        }
        Ok(())
    }

    /// Gives back the `top` newest pages. If any of `these` left, tries to grow the pool until they
    /// are back. Returns which of `these` left, and the number of new pages.
    fn look_below(
        &self,
        promised: &mut Promised,
        top: u64,
        these: &BTreeSet<u64>,
        frames: &Frames,
    ) -> Result<(BTreeSet<u64>, u64), Error> {
        // Stays on one processor, because a processor first reuses the pages that it freed.
        let _stays = OneProcessor::stay();
        promised.less(top)?;
        let gone = self.gone(these, frames)?;
        if gone.is_empty() {
            return Ok((gone, 0));
        }
        let mut came = promised.more(self, top)?;
        while came < top + STEP && !self.are_in_pool(&gone, frames)? {
            if promised.more(self, 1)? == 0 {
                break;
            }
            came += 1;
        }
        Ok((gone, came))
    }

    /// Grows the pool until it has `wanted`. If new pages allow a run of `self.run` pages, or
    /// growth ends, `wanted` becomes the best new pages.
    fn grow_until(
        &self,
        promised: &mut Promised,
        most: u64,
        frames: &Frames,
        wanted: &mut BTreeSet<u64>,
    ) -> Result<(), Error> {
        let size = self.pool.size();
        let of_others = in_pool(frames, size)?;
        let mut look_at = LOOK_FIRST;
        while !self.are_in_pool(wanted, frames)? && !self.effort.is_over() {
            // A request for more pages than exist would make the kernel reclaim and compact.
            let obtainable = zones::obtainable(size, self.pool.node()).unwrap_or(0);
            let step = STEP.min(obtainable).min(most - promised.pages().min(most));
            let came = promised.more(self, step)?;
            if came > 0 && promised.pages() < look_at {
                continue;
            }
            look_at = look_at.saturating_mul(2);
            let seen = in_pool(frames, size)?;
            let is_here = |number: &u64| self.nodes.of(*number) == self.pool.node();
            let all = seen.difference(&of_others).copied().filter(is_here).collect();
            let (best, longest) = self.wanted(all);
            if came == 0 || longest.get() >= self.run as u64 {
                *wanted = best;
                break;
            }
        }
        Ok(())
    }

    fn take_from_top(
        &mut self,
        promised: &mut Promised,
        top: u64,
        mut these: BTreeSet<u64>,
        frames: &Frames,
    ) -> Result<(), Error> {
        let mut looked = 0;
        while looked < top && !these.is_empty() {
            let (gone, _) = self.look_below(promised, 1, &these, frames)?;
            these.retain(|number| !gone.contains(number));
            if !gone.is_empty() && self.are_in_pool(&gone, frames)? {
                self.take_all(promised.take())?;
            }
            looked += 1;
        }
        Ok(())
    }

    pub fn take_all(&mut self, mapping: Option<Mapping>) -> Result<(), Error> {
        let Some(mapping) = mapping else { return Ok(()) };
        match self.fill(&mapping, Order::Any) {
            Err(Error::PoolShort { .. }) => return Ok(()),
            filled => filled?,
        }
        Ok(self.held.add(mapping, self.pool.size())?)
    }

    fn gone(&self, numbers: &BTreeSet<u64>, frames: &Frames) -> Result<BTreeSet<u64>, OsError> {
        let mut gone = BTreeSet::new();
        for number in numbers {
            if !is_in_pool(frames, *number, self.pool.size())? {
                gone.insert(*number);
            }
        }
        Ok(gone)
    }

    fn are_in_pool(&self, numbers: &BTreeSet<u64>, frames: &Frames) -> Result<bool, OsError> {
        for number in numbers {
            if !is_in_pool(frames, *number, self.pool.size())? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
