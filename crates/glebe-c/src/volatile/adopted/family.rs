//! Memory of the caller's that a process shares with its children, some of it volatile.
//!
//! One shared region over each mapping, made at the first call that makes some of it volatile, and
//! inherited by the children that are forked after that: what is volatile and what was lost is the
//! same for all of them. So a region stays when nothing is volatile any more; it goes when other
//! memory was mapped over all of it and a call finds that. Positions are base pages, by number of
//! the address space. Lock: that of the list, held over a fork, and never over a call on a region,
//! which may wait for a fork.
//!
//! The kernel takes none of this memory. [`purge`] does, where all of a mapping is what it was,
//! since it frees by address. A touch of what was taken finds zeros.
//!
//! # Safety
//! The header asks of the caller that the memory is his and stays mapped while it is volatile.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use glebe::extent::Extent;
use glebe::sys::fork::ForkGuard;
use glebe::sys::page_size;
use glebe::sys::vma::{self, SharedAt};
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Error, Order, Priority, Shared};

use super::walk::{addresses, pages_of, Part};
use crate::failure::Failure;
use crate::references;
use crate::runs::split;
use crate::table::lock;

/// The regions of all mappings, and the process whose thread purges them.
#[derive(Debug)]
pub(in super::super) struct Family {
    members: Vec<Entry>,
    reclaims: Option<ForkGuard>,
}

static FAMILY: Mutex<Family> = Mutex::new(Family { members: Vec::new(), reclaims: None });

/// The list's lock, held over a fork.
pub(in super::super) fn hold_family() -> MutexGuard<'static, Family> {
    lock(&FAMILY)
}

/// A region, and what of it no call found to be other memory by now: ascending runs.
#[derive(Clone, Debug)]
struct Entry {
    member: Arc<Member>,
    live: Vec<Extent>,
}

/// A region over a mapping, or what of it no other region had.
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
        // SAFETY: the caller's duty, as the header says.
        let shared = unsafe { Shared::options().over(addr, len)? };
        Ok(Self { shared, of: of.clone(), pages })
    }

    fn offsets(&self, part: Extent) -> Range<Bytes> {
        let offset = |page: u64| Pages::new(page - self.pages.start()).bytes(page_size());
        offset(part.start())..offset(part.end())
    }

    /// Whether all of it is the memory that it was, and may go.
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
    /// What of `pages` no region has.
    fn gaps(&self, pages: Option<Extent>) -> Vec<Extent> {
        let mut gaps: Vec<_> = pages.into_iter().collect();
        for live in self.members.iter().flat_map(|entry| &entry.live) {
            gaps = split(&gaps, *live).1;
        }
        gaps
    }

    /// Gives up the references of threads that a child lacks.
    ///
    /// # Safety
    /// As [`references::forget_others`].
    pub(in super::super) unsafe fn forget_parents(&self) {
        for entry in &self.members {
            // SAFETY: the caller's duty.
            unsafe { references::forget_others(&entry.member) };
        }
    }
}

/// The regions that have some of `pages`, and which.
fn among(pages: Extent) -> Vec<(Arc<Member>, Extent)> {
    let mut found = Vec::new();
    for entry in &lock(&FAMILY).members {
        let parts = split(&entry.live, pages).0;
        found.extend(parts.into_iter().map(|part| (Arc::clone(&entry.member), part)));
    }
    found
}

/// Has all of `pages` be of some region.
fn adopt(pages: Extent, of: &SharedAt) -> Result<(), Failure> {
    loop {
        // Of all the mapping, so that calls on many parts of it make few regions.
        let gaps = lock(&FAMILY).gaps(pages_of(of));
        let Some(gap) = gaps.into_iter().find(|gap| gap.overlaps(pages)) else { return Ok(()) };
        let member = Arc::new(Member::new(gap, of)?);
        let mut family = lock(&FAMILY);
        // Else another thread was first.
        if family.gaps(Some(gap)) == [gap] {
            family.members.push(Entry { member, live: vec![gap] });
        }
    }
}

/// Makes `pages` of a mapping volatile.
pub(super) fn mark(pages: Extent, of: &SharedAt) -> Result<(), Failure> {
    adopt(pages, of)?;
    for (member, part) in among(pages) {
        member.shared.mark(member.offsets(part), Priority::NORMAL, Order::Fifo)?;
    }
    Ok(())
}

/// Makes `pages` non-volatile; what was lost is added to `lost`, also before an error.
pub(super) fn unmark(pages: Extent, lost: &mut Vec<Extent>) -> Result<(), Failure> {
    for (member, part) in among(pages) {
        let told = member.shared.unmark(member.offsets(part))?;
        let place = |run: &Extent| Extent::new(run.start() + member.pages.start(), run.len());
        lost.extend(told.runs().iter().filter_map(place));
    }
    Ok(())
}

/// Forgets what is other memory now.
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
    // Their end is a call.
    drop(family);
}

fn all() -> Vec<Arc<Member>> {
    lock(&FAMILY).members.iter().map(|entry| Arc::clone(&entry.member)).collect()
}

/// About how much a purge could take.
pub(in super::super) fn held() -> Bytes {
    let members = all();
    let pages = members.iter().map(|member| {
        let stats = member.shared.stats();
        stats.marked.get().saturating_sub(stats.lost.get())
    });
    Pages::new(pages.sum()).bytes(page_size())
}

/// Takes up to `target` of what is volatile, rounded up to pages; how much. Memory that another
/// process purges meanwhile is passed over.
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

/// Notes that a thread of this process purges from now on; whether none did.
pub(in super::super) fn begin_reclaim() -> bool {
    let mut family = lock(&FAMILY);
    let runs = family.reclaims.is_some_and(|of| !of.is_child());
    if !runs {
        family.reclaims = Some(ForkGuard::new());
    }
    !runs
}

/// Notes that there is no such thread.
pub(in super::super) fn end_reclaim() {
    lock(&FAMILY).reclaims = None;
}
