//! [`AdoptedRanges`] has the caller's private memory that `glebe_vrange` made volatile.
//!
//! Each part of a marked range that no region covers yet gets a region. The region is dropped when
//! none of its pages is volatile any more. Positions are base pages, numbered from address 0.
//! Regions use the *scan* engine, which leaves the contents of volatile pages alone, as the kernel
//! patches for vrange(2) do. [`family`] has the memory that processes share. The table's lock is
//! held while a call uses the table, and during a fork.
//!
//! # Safety
//! `glebe.h` demands that the caller owns the memory and keeps it mapped.
#![allow(unsafe_code)]

mod family;
mod walk;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use glebe::extent::Extent;
use glebe::internal::sys::memory::vma;
use glebe::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Engine, Error, Priority, Region};

use super::claims::{check_fork, is_inside, Claim, Inside};
use crate::failure::Failure;
use crate::runs::{between, merged, split};
use crate::table::lock;
pub(super) use family::{begin_reclaim, end_reclaim, held, hold_family, purge, Family};
pub(super) use walk::number;
use walk::{addresses, place_of, Part, Walk};

#[derive(Debug)]
struct Adopted {
    region: Region,
    pages: Extent,
    /// Ascending runs of volatile pages.
    volatile: Vec<Extent>,
    /// Dropped last.
    _claim: Claim,
}

#[derive(Debug, Default)]
pub(super) struct AdoptedRanges {
    /// Ranges by first page, without overlaps.
    ranges: BTreeMap<u64, Adopted>,
    /// Lost pages that a call found before it failed. The next unmark of such a page reports the
    /// loss.
    untold: Vec<Extent>,
}

static TABLE: Mutex<AdoptedRanges> =
    Mutex::new(AdoptedRanges { ranges: BTreeMap::new(), untold: Vec::new() });

pub(super) type Held = MutexGuard<'static, AdoptedRanges>;

pub(super) fn hold() -> Held {
    lock(&TABLE)
}

impl Adopted {
    fn new(pages: Extent) -> Result<Self, Failure> {
        let range = addresses(pages);
        let (addr, len) = (range.start, Bytes::new((range.end - range.start) as u64));
        let claim = Claim::new(range)?;
        let options = Region::options().engine(Engine::Scan);
        // SAFETY: the caller vouches for the memory, and the claim keeps other regions off it.
        let region =
            unsafe { options.build_over(std::ptr::with_exposed_provenance_mut(addr), len)? };
        Ok(Self { region, pages, volatile: Vec::new(), _claim: claim })
    }

    fn offsets(&self, part: Extent) -> Range<Bytes> {
        let offset = |page: u64| Pages::new(page - self.pages.start()).bytes(page_size());
        offset(part.start())..offset(part.end())
    }

    /// Makes `part` volatile. None of its pages may be volatile before.
    fn mark(&mut self, part: Extent) -> Result<(), Failure> {
        self.volatile = merged(self.volatile.iter().copied().chain([part]).collect());
        Ok(self.region.mark(self.offsets(part), Priority::NORMAL)?)
    }

    /// Returns the lost pages.
    fn unmark(&mut self, part: Extent) -> Result<Vec<Extent>, Failure> {
        let lost = self.region.unmark(self.offsets(part))?;
        self.volatile = split(&self.volatile, part).1;
        let place = |run: &Extent| Extent::new(run.start() + self.pages.start(), run.len());
        Ok(lost.runs().iter().filter_map(place).collect())
    }

    /// Unmarks pages that were mapped anew after they became volatile. A new mapping lacks the
    /// userfaultfd (`um` in `VmFlags`).
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

impl AdoptedRanges {
    /// Returns the first page of each range that overlaps `pages`.
    fn among(&self, pages: Extent) -> Vec<u64> {
        let overlapping = self.ranges.values().filter(|range| range.pages.overlaps(pages));
        overlapping.map(|range| range.pages.start()).collect()
    }

    /// Marks `pages`. Adds each newly marked part to `new` first, so that the caller can undo a
    /// failed call.
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

    /// Unmarks `pages`, mapped or not. Returns the lost pages.
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

    fn undo(&mut self, new: &[Extent]) {
        for part in new {
            // If this unmark fails, a later call reports the lost pages.
            if let Ok(lost) = self.unmark(*part) {
                self.untold.extend(lost);
            }
        }
    }

    /// Marks `part` up to the first page that belongs to another region or cannot be volatile.
    /// Returns the number of that page, or the end.
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

/// Unmarks `pages`. Returns true if a page was lost.
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

/// Marks or unmarks `asked` up to the first memory that cannot be volatile, as vrange(2) does.
/// Returns the number of pages done, including holes between mappings, and true if a page was lost.
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

/// If `to_volatile`, marks all of `asked` or nothing; otherwise unmarks `asked`. Returns true if a
/// page was lost.
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

fn undo(new: &[Extent]) {
    for part in new {
        let mut lost = Vec::new();
        let _ = family::unmark(*part, &mut lost);
        lock(&TABLE).untold.extend(lost);
    }
    lock(&TABLE).undo(new);
}

/// Returns true if the page at `addr` is in an adopted range, or if the thread is inside another
/// call and cannot look. Signal handlers call this.
pub(super) fn is_volatile(addr: usize) -> bool {
    let page = Extent::new(number(addr), 1);
    let holds = |table: &mut AdoptedRanges| {
        let held = |range: &Adopted| page.is_some_and(|page| range.pages.overlaps(page));
        Ok(table.ranges.values().any(held))
    };
    is_inside() || check_fork().is_ok() && with_table(holds).unwrap_or(false)
}

/// Calls `call`. Refuses a thread that may hold the table's lock or another lock of volatile
/// memory.
fn with_table<R>(
    call: impl FnOnce(&mut AdoptedRanges) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let _inside = Inside::enter()?;
    call(&mut lock(&TABLE))
}
