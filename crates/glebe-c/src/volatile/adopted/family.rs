//! [`Family`] has shared regions over the caller's memory that a process shares with its children.
//!
//! A mark of pages outside all regions makes a region. Children that are forked later inherit the
//! region, so all processes see the same volatile and lost pages. A region stays even without
//! volatile pages; the region ends when a call finds other memory mapped over all of it. Positions
//! are base pages, numbered from address 0. The lock of [`Family`] is held during a fork, and never
//! during a call on a region, because such a call may wait for a fork.
//!
//! Only [`purge`] frees this memory, by address, so [`purge`] first checks that a whole region is
//! still the same memory. A touch of purged memory finds zeros.
//!
//! # Safety
//! The header demands that the caller owns the memory and keeps it mapped while it is volatile.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use glebe::extent::Extent;
use glebe::internal::sys::memory::vma::{self, SharedAt};
use glebe::internal::sys::processes::fork::ForkGuard;
use glebe::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Error, Order, Priority, Shared};

use super::walk::{addresses, pages_of, Part};
use crate::failure::Failure;
use crate::references;
use crate::runs::split;
use crate::table::lock;

/// The regions, and the process whose thread purges them.
#[derive(Debug)]
pub(in super::super) struct Family {
    members: Vec<Entry>,
    reclaims: Option<ForkGuard>,
}

static FAMILY: Mutex<Family> = Mutex::new(Family { members: Vec::new(), reclaims: None });

pub(in super::super) fn hold_family() -> MutexGuard<'static, Family> {
    lock(&FAMILY)
}

/// A region, and the ascending runs of its pages where no call found other memory.
#[derive(Clone, Debug)]
struct Entry {
    member: Arc<Member>,
    live: Vec<Extent>,
}

/// A region over pages of one mapping, outside older regions.
#[derive(Debug)]
struct Member {
    shared: Shared,
    of: SharedAt,
    pages: Extent,
}

impl Member {
    fn new(pages: Extent, of: &SharedAt) -> Result<Self, Error> {
        let range = addresses(pages);
        let len = Bytes::new((range.end - range.start) as u64);
        let addr = std::ptr::with_exposed_provenance_mut(range.start);
        // SAFETY: the caller vouches for the memory.
        let shared = unsafe { Shared::options().over(addr, len)? };
        Ok(Self { shared, of: of.clone(), pages })
    }

    fn offsets(&self, part: Extent) -> Range<Bytes> {
        let offset = |page: u64| Pages::new(page - self.pages.start()).bytes(page_size());
        offset(part.start())..offset(part.end())
    }

    /// Returns true if all pages are still the same memory, so that a purge is safe.
    fn is_whole(&self) -> bool {
        let range = addresses(self.pages);
        let mut at = range.start;
        while at < range.end {
            match vma::shared_at(at) {
                Ok(now) if now.is_same_memory(&self.of) => at = now.range.end,
                _ => return false,
            }
        }
        true
    }
}

impl Family {
    /// Returns the parts of `pages` that no region covers.
    fn gaps(&self, pages: Option<Extent>) -> Vec<Extent> {
        let mut gaps: Vec<_> = pages.into_iter().collect();
        for live in self.members.iter().flat_map(|entry| &entry.live) {
            gaps = split(&gaps, *live).1;
        }
        gaps
    }

    /// In a forked child, gives up the references of the parent's other threads.
    ///
    /// # Safety
    /// The contract of [`references::forget_others`] holds.
    pub(in super::super) unsafe fn forget_parents(&self) {
        for entry in &self.members {
            // SAFETY: the caller keeps the contract.
            unsafe { references::forget_others(&entry.member) };
        }
    }
}

/// Returns the parts of `pages` that regions cover, each with its region.
fn among(pages: Extent) -> Vec<(Arc<Member>, Extent)> {
    let mut found = Vec::new();
    for entry in &lock(&FAMILY).members {
        let parts = split(&entry.live, pages).0;
        found.extend(parts.into_iter().map(|part| (Arc::clone(&entry.member), part)));
    }
    found
}

fn adopt(pages: Extent, of: &SharedAt) -> Result<(), Failure> {
    loop {
        // A new region covers a whole gap of the mapping, so calls on many parts make few regions.
        let gaps = lock(&FAMILY).gaps(pages_of(of));
        let Some(gap) = gaps.into_iter().find(|gap| gap.overlaps(pages)) else { return Ok(()) };
        let member = Arc::new(Member::new(gap, of)?);
        let mut family = lock(&FAMILY);
        // If the gap has changed, another thread was first.
        if family.gaps(Some(gap)) == [gap] {
            family.members.push(Entry { member, live: vec![gap] });
        }
    }
}

pub(super) fn mark(pages: Extent, of: &SharedAt) -> Result<(), Failure> {
    adopt(pages, of)?;
    for (member, part) in among(pages) {
        member.shared.mark(member.offsets(part), Priority::NORMAL, Order::Fifo)?;
    }
    Ok(())
}

/// Unmarks `pages`. Adds the lost pages to `lost`, also those found before an error.
pub(super) fn unmark(pages: Extent, lost: &mut Vec<Extent>) -> Result<(), Failure> {
    for (member, part) in among(pages) {
        let told = member.shared.unmark(member.offsets(part))?;
        let place = |run: &Extent| Extent::new(run.start() + member.pages.start(), run.len());
        lost.extend(told.runs().iter().filter_map(place));
    }
    Ok(())
}

/// Forgets the parts of regions where other memory is mapped now.
pub(super) fn forget_replaced(parts: &[Part]) {
    let mut gone = Vec::new();
    let mut family = lock(&FAMILY);
    for entry in &mut family.members {
        for part in parts {
            let of = &entry.member.of;
            if !part.shared.as_ref().is_some_and(|now| now.is_same_memory(of)) {
                entry.live = split(&entry.live, part.pages).1;
            }
        }
    }
    family.members.retain(|entry| {
        let stays = !entry.live.is_empty();
        gone.extend((!stays).then(|| Arc::clone(&entry.member)));
        stays
    });
    // Unlocks before `gone` drops, because the drop ends regions, and such calls run without the
    // lock.
    drop(family);
}

fn all() -> Vec<Arc<Member>> {
    lock(&FAMILY).members.iter().map(|entry| Arc::clone(&entry.member)).collect()
}

/// Returns roughly how many bytes a purge could free.
pub(in super::super) fn held() -> Bytes {
    let members = all();
    let pages = members.iter().map(|member| {
        let stats = member.shared.stats();
        stats.marked.get().saturating_sub(stats.lost.get())
    });
    Pages::new(pages.sum()).bytes(page_size())
}

/// Purges up to `target` bytes, rounded up to pages, and returns the bytes freed. Skips regions
/// that another process purges, or where other memory is mapped. Fails only if it freed nothing.
pub(in super::super) fn purge(target: Bytes) -> Result<Bytes, Failure> {
    let (mut freed, mut failed) = (Bytes::ZERO, None);
    for member in all().iter().filter(|member| member.is_whole()) {
        if freed >= target {
            break;
        }
        match member.shared.purge(target.saturating_sub(freed), Priority::HIGHEST) {
            Ok(more) => freed = freed + more,
            Err(Error::Busy { .. }) => {}
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if freed == Bytes::ZERO => Err(error.into()),
        _ => Ok(freed),
    }
}

/// Notes that a thread of this process purges. Returns false if a thread already does.
pub(in super::super) fn begin_reclaim() -> bool {
    let mut family = lock(&FAMILY);
    let runs = family.reclaims.is_some_and(|of| !of.is_child());
    if !runs {
        family.reclaims = Some(ForkGuard::new());
    }
    !runs
}

pub(in super::super) fn end_reclaim() {
    lock(&FAMILY).reclaims = None;
}
