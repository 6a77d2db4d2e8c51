//! Ranges of the caller's memory that `glebe_vrange` made volatile.
//!
//! A process-wide table of [`Adopted`] ranges: a region of its own for each part of a call that no
//! range held yet, dropped when nothing of it is volatile any more. Positions are base pages, by
//! number of the address space. The *scan* engine only, since the patches leave contents as they
//! are. Memory that processes share is in `family`. Lock: the table's, held over a call and over a
//! fork.
//!
//! # Safety
//! The header asks of the caller that the memory is his and stays mapped.
#![allow(unsafe_code)]

mod family;
mod walk;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use glebe::extent::Extent;
use glebe::sys::page_size;
use glebe::sys::vma;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Engine, Error, Priority, Region};

use super::claims::{check_fork, is_inside, Claim, Inside};
use crate::failure::Failure;
use crate::runs::{between, merged, split};
use crate::table::lock;
pub(super) use family::{begin_reclaim, end_reclaim, held, hold_family, purge, Family};
pub(super) use walk::number;
use walk::{addresses, place_of, Part, Walk};

/// A range of the caller's memory some of which is volatile.
#[derive(Debug)]
struct Adopted {
    region: Region,
    pages: Extent,
    /// What of it is volatile: ascending runs.
    volatile: Vec<Extent>,
    /// Dropped after the region.
    _claim: Claim,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    /// By their first page; none overlaps another.
    ranges: BTreeMap<u64, Adopted>,
    /// What was lost while a call failed, to be told by the next that makes it non-volatile.
    untold: Vec<Extent>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { ranges: BTreeMap::new(), untold: Vec::new() });

/// The table's lock, held over a fork.
pub(super) type Held = MutexGuard<'static, Table>;

pub(super) fn hold() -> Held {
    lock(&TABLE)
}

impl Adopted {
    fn new(pages: Extent) -> Result<Self, Failure> {
        let range = addresses(pages);
        let (addr, len) = (range.start, Bytes::new((range.end - range.start) as u64));
        let claim = Claim::new(range)?;
        let options = Region::options().engine(Engine::Scan);
        // SAFETY: the caller's duty, as the header says; the claim is this region's alone.
        let region =
            unsafe { options.build_over(std::ptr::with_exposed_provenance_mut(addr), len)? };
        Ok(Self { region, pages, volatile: Vec::new(), _claim: claim })
    }

    fn offsets(&self, part: Extent) -> Range<Bytes> {
        let offset = |page: u64| Pages::new(page - self.pages.start()).bytes(page_size());
        offset(part.start())..offset(part.end())
    }

    /// Makes `part` volatile, of which nothing is.
    fn mark(&mut self, part: Extent) -> Result<(), Failure> {
        self.volatile = merged(self.volatile.iter().copied().chain([part]).collect());
        Ok(self.region.mark(self.offsets(part), Priority::NORMAL)?)
    }

    /// Makes `part` non-volatile; what was lost of it.
    fn unmark(&mut self, part: Extent) -> Result<Vec<Extent>, Failure> {
        let lost = self.region.unmark(self.offsets(part))?;
        self.volatile = split(&self.volatile, part).1;
        let place = |run: &Extent| Extent::new(run.start() + self.pages.start(), run.len());
        Ok(lost.runs().iter().filter_map(place).collect())
    }

    /// Forgets what was mapped anew since it was made volatile, which is not armed.
    fn forget_replaced(&mut self, part: Extent) -> Result<(), Failure> {
        for vma in vma::among(&addresses(part)).map_err(Error::from)? {
            let new = between(number(vma.start), number(vma.end));
            if let Some(new) = new.filter(|_| !vma.has("um")).and_then(|n| n.intersection(part)) {
                self.unmark(new)?;
            }
        }
        Ok(())
    }
}

impl Table {
    /// The first pages of the ranges that share one with `pages`.
    fn among(&self, pages: Extent) -> Vec<u64> {
        let overlapping = self.ranges.values().filter(|range| range.pages.overlaps(pages));
        overlapping.map(|range| range.pages.start()).collect()
    }

    /// Makes `pages` volatile; what it has made so is added to `new`, also before an error.
    fn mark(&mut self, pages: Extent, new: &mut Vec<Extent>) -> Result<(), Failure> {
        let mut at = pages.start();
        for key in self.among(pages) {
            let Some(range) = self.ranges.get_mut(&key) else { continue };
            let Some(shared) = range.pages.intersection(pages) else { continue };
            let gap = between(at, shared.start());
            at = shared.end();
            range.forget_replaced(shared)?;
            let mut from = shared.start();
            let held = split(&range.volatile, shared).0;
            for end in held.into_iter().chain(Extent::new(shared.end(), 1)) {
                if let Some(part) = between(from, end.start()) {
                    new.push(part);
                    range.mark(part)?;
                }
                from = end.end();
            }
            gap.map_or(Ok(()), |gap| self.adopt(gap, new))?;
        }
        between(at, pages.end()).map_or(Ok(()), |gap| self.adopt(gap, new))
    }

    fn adopt(&mut self, gap: Extent, new: &mut Vec<Extent>) -> Result<(), Failure> {
        let adopted = Adopted::new(gap)?;
        new.push(gap);
        self.ranges.entry(gap.start()).or_insert(adopted).mark(gap)
    }

    /// Makes `pages` non-volatile, also where nothing is mapped any more; what was lost.
    fn unmark(&mut self, pages: Extent) -> Result<Vec<Extent>, Failure> {
        let mut lost = Vec::new();
        for key in self.among(pages) {
            let Some(range) = self.ranges.get_mut(&key) else { continue };
            let Some(shared) = range.pages.intersection(pages) else { continue };
            match range.unmark(shared) {
                Ok(runs) => lost.extend(runs),
                Err(failure) => {
                    self.untold.extend(lost);
                    return Err(failure);
                }
            }
            if range.volatile.is_empty() {
                self.ranges.remove(&key);
            }
        }
        Ok(lost)
    }

    /// Takes back what a call that failed has made volatile.
    fn undo(&mut self, new: &[Extent]) {
        for part in new {
            // Where that fails too, it stays volatile, and what is lost is told later.
            if let Ok(lost) = self.unmark(*part) {
                self.untold.extend(lost);
            }
        }
    }

    /// Makes `part` volatile up to the first page that is somebody else's; where that is.
    fn mark_up_to_foreign(&mut self, part: Extent) -> Result<u64, Failure> {
        let mut end = part.end();
        while let Some(pages) = between(part.start(), end) {
            let mut new = Vec::new();
            let Err(failure) = self.mark(pages, &mut new) else { break };
            self.undo(&new);
            let foreign = match &failure {
                Failure::Adopted { start, .. } => Some(*start),
                Failure::Volatile(Error::Unsuitable(refusal)) => place_of(refusal),
                _ => None,
            };
            let Some(foreign) = foreign.map(number).filter(|at| *at < end) else {
                return Err(failure);
            };
            end = foreign.max(part.start());
        }
        Ok(end)
    }
}

/// Makes `pages` non-volatile; whether any was lost.
fn settle(pages: Extent) -> Result<bool, Failure> {
    let mut lost = Vec::new();
    let shared = family::unmark(pages, &mut lost);
    let mut table = lock(&TABLE);
    let private = shared.and_then(|()| table.unmark(pages));
    match private {
        Ok(runs) => lost.extend(runs),
        Err(failure) => {
            table.untold.extend(lost);
            return Err(failure);
        }
    }
    let (told, kept) = split(&table.untold, pages);
    table.untold = kept;
    Ok(!lost.is_empty() || !told.is_empty())
}

/// As the patches: how many pages from the start were done, and whether any was lost.
pub(super) fn apply(to_volatile: bool, asked: Extent) -> Result<(u64, bool), Failure> {
    let _inside = Inside::enter()?;
    let walk = Walk::over(asked)?;
    let mut done = walk.end - asked.start();
    let Some(reached) = Extent::new(asked.start(), done) else { return Ok((0, false)) };
    family::forget_replaced(&walk.parts);
    if !to_volatile {
        return Ok((done, settle(reached)?));
    }
    for Part { pages, shared } in walk.parts {
        let reached = match shared {
            None => lock(&TABLE).mark_up_to_foreign(pages),
            Some(of) => family::mark(pages, &of).map(|()| pages.end()),
        };
        if !matches!(reached, Ok(end) if end == pages.end()) {
            let at = reached.as_ref().map_or(pages.start(), |end| *end);
            done = at - asked.start();
            return reached.map(|_| (done, false)).or_else(|failure| match done {
                0 => Err(failure),
                _ => Ok((done, false)),
            });
        }
    }
    Ok((done, false))
}

/// All of it or nothing; whether any was lost.
pub(super) fn apply_strictly(to_volatile: bool, asked: Extent) -> Result<bool, Failure> {
    let _inside = Inside::enter()?;
    let walk = Walk::over(asked)?;
    if let Some(refused) = walk.refused {
        return Err(refused.into());
    }
    family::forget_replaced(&walk.parts);
    if !to_volatile {
        return settle(asked);
    }
    let mut new = Vec::new();
    for part in walk.parts {
        mark_part(part, &mut new).inspect_err(|_| undo(&new))?;
    }
    Ok(false)
}

fn mark_part(part: Part, new: &mut Vec<Extent>) -> Result<(), Failure> {
    let Some(of) = part.shared else { return lock(&TABLE).mark(part.pages, new) };
    new.push(part.pages);
    family::mark(part.pages, &of)
}

/// Takes back what a call that failed has made volatile, of either kind.
fn undo(new: &[Extent]) {
    for part in new {
        let mut lost = Vec::new();
        let _ = family::unmark(*part, &mut lost);
        lock(&TABLE).untold.extend(lost);
    }
    lock(&TABLE).undo(new);
}

/// Whether a call made the page at `addr` volatile; in a signal handler too. Where the thread is
/// inside another call it cannot be looked up, and is taken for one.
pub(super) fn is_volatile(addr: usize) -> bool {
    let page = Extent::new(number(addr), 1);
    let holds = |table: &mut Table| {
        let held = |range: &Adopted| page.is_some_and(|page| range.pages.overlaps(page));
        Ok(table.ranges.values().any(held))
    };
    is_inside() || check_fork().is_ok() && with_table(holds).unwrap_or(false)
}

/// Calls `call` with the table, unless the thread has it or another lock of these already.
fn with_table<R>(call: impl FnOnce(&mut Table) -> Result<R, Failure>) -> Result<R, Failure> {
    let _inside = Inside::enter()?;
    call(&mut lock(&TABLE))
}
