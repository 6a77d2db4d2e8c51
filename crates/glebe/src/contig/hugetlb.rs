//! Memory of a hugetlb pool, in physical order where that can be made.
//!
//! Counts and frames are huge pages here. How the order is made: [`ordered`].

mod ordered;

use std::io::ErrorKind;
use std::sync::Arc;

use super::choose::{Built, Request};
use super::pool::{PoolClaim, PoolLock};
use super::populate::{machine_available, populate, Gate, Order, Reporter};
use super::{runs, Error, Source};
use crate::error::OsError;
use crate::mapping::{Mapping, Visibility};
use crate::sys::cgroup::Resource;
use crate::sys::hugetlb::{sizes, Pool};
use crate::sys::memfd::MemFile;
use crate::sys::numa;
use crate::sys::pagemap::frames_visible;
use crate::units::{Bytes, PageSize, Pages};

/// Maps `len` bytes, a multiple of `size`.
pub(super) fn build(
    request: &Request<'_>,
    len: Bytes,
    size: PageSize,
    reporter: &mut Reporter<'_>,
) -> Result<Built, Error> {
    let no_such = || Error::NoSuchSize { size, listed: sizes() };
    let pool = request.place.pool(size).ok_or_else(no_such)?;
    let gate = Gate::new(Resource::Hugetlb(size))?;
    gate.check(len)?;
    let mut builder = Builder {
        request,
        len,
        pages: len.pages_up(size).get(),
        had_before: pool.counts()?.available(),
        claim: PoolClaim::new(pool.clone(), request.place.clone()),
        pool,
        gate,
        notes: Vec::new(),
    };
    // The lock is taken and left inside: the claim is dropped after that, on failure too.
    let mapping = builder.map(reporter)?;
    let runs = runs::read(&mapping, size)?;
    let Builder { claim, notes, .. } = builder;
    Ok(Built { claims: vec![claim], notes, ..Built::of(Source::Hugetlb(size), mapping, runs) })
}

struct Builder<'a> {
    request: &'a Request<'a>,
    len: Bytes,
    pages: u64,
    pool: Pool,
    /// Pages that the pool had before it was grown.
    had_before: u64,
    claim: PoolClaim,
    gate: Gate,
    notes: Vec<String>,
}

impl Builder<'_> {
    fn map(&mut self, reporter: &mut Reporter<'_>) -> Result<Mapping, Error> {
        if !self.claim.may_change() {
            self.require_pages(None)?;
            let mapping = self.take()?;
            self.fill(&mapping, Order::Any, reporter)?;
            return Ok(mapping);
        }
        let lock = PoolLock::acquire(&self.request.place)?;
        self.had_before = self.pool.counts()?.available();
        self.notes.extend(lock.notes().iter().cloned());
        if self.request.in_order && self.pages > 1 && frames_visible() {
            let mapping = self.map_in_order(&lock, reporter);
            return self.settle(&lock, mapping);
        }
        let mapping = self.require_pages(Some(&lock)).and_then(|()| self.take());
        let mapping = self.settle(&lock, mapping)?;
        // The pages are set aside for the mapping now; zeroing them holds nobody up.
        drop(lock);
        self.fill(&mapping, Order::Any, reporter)?;
        Ok(mapping)
    }

    /// Gives back what the pool was grown by and is not needed, before others see it as free.
    fn settle(
        &mut self,
        lock: &PoolLock,
        mapping: Result<Mapping, Error>,
    ) -> Result<Mapping, Error> {
        // Pages that the claim must keep: those that the pool did not have before.
        let needed = self.pages.saturating_sub(self.had_before);
        let keep = if mapping.is_ok() { needed } else { 0 };
        // Where that fails the claim's drop tries again.
        let _ = self.claim.shrink(lock, self.claim.pages().saturating_sub(keep));
        mapping
    }
}

impl Builder<'_> {
    /// Sees to it that the pool has pages for the whole length.
    fn require_pages(&mut self, lock: Option<&PoolLock>) -> Result<(), Error> {
        let (page, pages) = (self.pool.size(), self.pages);
        let mut have = self.pool.counts()?.available();
        if let Some(lock) = lock.filter(|_| self.may_grow()) {
            let available = machine_available()?;
            let missing = Pages::new(pages.saturating_sub(have));
            if missing.checked_bytes(page).is_none_or(|missing| missing > available) {
                let had = Pages::new(have).checked_bytes(page).unwrap_or_default();
                let available = available.checked_add(had).unwrap_or(available);
                return Err(Error::TooLarge { asked: self.len, available });
            }
            // Surplus pages become persistent ones first, so that one call may add too few.
            while have < pages && self.claim.grow(lock, pages - have)? > 0 {
                have = self.pool.counts()?.available();
            }
        }
        if have < pages {
            return Err(self.pool_short(have));
        }
        Ok(())
    }

    /// Pages that can be had beside those in hand, up to `wanted`: from what the pool has, then
    /// from half of the machine's free memory.
    fn obtainable(&mut self, lock: &PoolLock, wanted: u64) -> Result<u64, Error> {
        let mut have = self.pool.counts()?.available();
        if have < wanted && self.may_grow() {
            let free = machine_available()?.pages_down(self.pool.size()).get() / 2;
            let more = (wanted - have).min(free);
            if more > 0 {
                self.claim.grow(lock, more)?;
                have = self.pool.counts()?.available();
            }
        }
        let pages = have.min(wanted);
        let allowed =
            Pages::new(pages).checked_bytes(self.pool.size()).map(|len| self.gate.check(len));
        Ok(if matches!(allowed, Some(Ok(()))) { pages } else { 0 })
    }

    /// Growth spreads over all nodes, so that it helps one of them only where it is alone.
    fn may_grow(&self) -> bool {
        let elsewhere = self.request.node.is_some() && numa::online().len() > 1;
        self.claim.may_change() && self.request.grow_pool.unwrap_or(true) && !elsewhere
    }

    fn take(&self) -> Result<Mapping, Error> {
        self.mapped(self.len)
    }

    fn mapped(&self, len: Bytes) -> Result<Mapping, Error> {
        let mapping = self.map_pages(len).map_err(|error| self.short(error))?;
        if let Some(node) = self.request.node {
            mapping.bind(node)?;
        }
        Ok(mapping)
    }

    fn map_pages(&self, len: Bytes) -> Result<Mapping, OsError> {
        let size = self.pool.size();
        if !self.request.mappable {
            return Mapping::hugetlb(len, size, Visibility::PRIVATE);
        }
        Mapping::shared(Arc::new(MemFile::hugetlb(len, size)?), size, Visibility::PRIVATE)
    }

    fn fill(
        &self,
        mapping: &Mapping,
        order: Order,
        report: &mut Reporter<'_>,
    ) -> Result<(), Error> {
        let (page, threads) = (self.pool.size(), self.request.threads);
        populate(mapping, page, order, threads, &self.gate, report)
    }

    /// What a refused mapping means: mostly that somebody else was quicker.
    fn short(&self, error: OsError) -> Error {
        match self.pool.counts() {
            Ok(counts) if error.kind() == ErrorKind::OutOfMemory => {
                self.pool_short(counts.available())
            }
            _ => error.into(),
        }
    }

    fn pool_short(&self, got: u64) -> Error {
        let path = self.pool.path();
        let (missing, shown) = (self.pages.saturating_sub(got), path.display());
        let how_to = if !self.claim.may_change() {
            format!("as root, add {missing} to {shown}, or run with write access to it")
        } else if !self.may_grow() {
            format!("allow the pool to grow, or add {missing} to {shown}")
        } else {
            format!(
                "memory is too fragmented to add {missing}: write 1 to \
                 /proc/sys/vm/compact_memory, \
                 or reserve at boot with hugepagesz= and hugepages="
            )
        };
        Error::PoolShort { size: self.size(), wanted: self.pages, got, path, how_to }
    }

    fn size(&self) -> Bytes {
        self.pool.size().bytes()
    }
}
