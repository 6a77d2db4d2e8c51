//! Memory of a hugetlb pool, in physical order where that can be made.
//!
//! The pages that lie idle in the pool are used first, and what is missing is had as surplus, which
//! ends with its user ([`pool`](super::pool)). Pages are zeroed when no lock is held.
//!
//! Counts and frames are huge pages here. How the order is made: [`ordered`].

mod draw;
mod effort;
mod held;
mod ordered;
mod promised;
mod search;
mod survey;

use std::io::ErrorKind;
use std::sync::Arc;

use super::choose::{Built, Request};
use super::pool::PoolLock;
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
    let pages = len.pages_up(size).get();
    let idle_before = pool.counts()?.available();
    let may_change = pool.is_writable();
    let (grew, tried, notes) = (false, None, Vec::new());
    let mut builder = Builder { request, len, pages, pool, may_change, gate, grew, tried, notes };
    let mapping = builder.map(reporter)?;
    let runs = runs::read(&mapping, size)?;
    let grown_by = if builder.grew { pages.saturating_sub(idle_before) } else { 0 };
    let (tried, notes) = (builder.tried, builder.notes);
    Ok(Built { grown_by, tried, notes, ..Built::of(Source::Hugetlb(size), mapping, runs) })
}

/// Stretches of which a mapping is made, at most: an eighth of the kernel's own default limit on
/// the mappings of a process.
const STRETCHES_MAX: usize = 1 << 13;

struct Builder<'a> {
    request: &'a Request<'a>,
    len: Bytes,
    pages: u64,
    pool: Pool,
    /// Whether this process may change the pool at all.
    may_change: bool,
    gate: Gate,
    /// Whether some pages are not of those that the pool had.
    grew: bool,
    /// What was tried for a run that was not had.
    tried: Option<String>,
    notes: Vec<String>,
}

impl Builder<'_> {
    fn map(&mut self, reporter: &mut Reporter<'_>) -> Result<Mapping, Error> {
        if self.request.in_order && self.pages > 1 && frames_visible() {
            return self.map_in_order(reporter);
        }
        let mapping = self.take(self.pages)?;
        self.fill(&mapping, Order::Any, reporter)?;
        Ok(mapping)
    }

    /// Maps `pages`, which are set aside for it but not populated.
    fn take(&mut self, pages: u64) -> Result<Mapping, Error> {
        let have = self.pool.counts()?.available();
        if have >= pages {
            match self.mapped(pages) {
                // Somebody else was quicker.
                Err(Error::Os(error)) if error.kind() == ErrorKind::OutOfMemory => {}
                other => return other,
            }
        }
        let have = self.pool.counts()?.available();
        if !self.may_grow() {
            return Err(self.pool_short(pages, have));
        }
        let (missing, available) = (pages.saturating_sub(have), machine_available()?);
        let size = self.pool.size();
        if Pages::new(missing).checked_bytes(size).is_none_or(|missing| missing > available) {
            let had = Pages::new(have).checked_bytes(size).unwrap_or_default();
            let available = available.checked_add(had).unwrap_or(available);
            return Err(Error::TooLarge { asked: self.len, available });
        }
        let lock = self.lock()?;
        let mapping = self.grown(&lock, pages);
        self.grew |= mapping.is_ok();
        mapping
    }

    /// As [`Builder::take`], of pages that the pool has not.
    fn grown(&self, lock: &PoolLock, pages: u64) -> Result<Mapping, Error> {
        let missing = || Ok::<_, OsError>(pages.saturating_sub(self.pool.counts()?.available()));
        match lock.with_surplus(self.pool.size(), missing()?, || self.mapped(pages)) {
            // None to be had, none of this size as surplus, or that limit is not ours to change.
            Err(Error::Os(error)) if is_no_surplus(&error) => {}
            other => return other,
        }
        lock.with_pages(&self.pool, missing()?, |_| match self.pool.counts()?.available() {
            have if have < pages => Err(self.pool_short(pages, have)),
            _ => self.mapped(pages).map_err(|error| self.short(pages, error)),
        })
    }

    fn lock(&mut self) -> Result<PoolLock, Error> {
        let lock = PoolLock::of(&self.request.place, self.request.lock_patience)?;
        self.notes.extend(lock.notes().iter().cloned());
        Ok(lock)
    }

    /// Growth spreads over all nodes, so that it helps one of them only where it is alone.
    fn may_grow(&self) -> bool {
        let elsewhere = self.request.node.is_some() && numa::online().len() > 1;
        self.may_change && self.request.grow_pool.unwrap_or(true) && !elsewhere
    }

    /// Pages that the pool has, or may have for this mapping.
    fn mapped(&self, pages: u64) -> Result<Mapping, Error> {
        if !self.request.mappable {
            return self.private(pages);
        }
        let (len, size) = (Pages::new(pages).bytes(self.pool.size()), self.pool.size());
        let file = MemFile::hugetlb(len, size)?.not_for_children()?;
        self.bound(Mapping::shared(Arc::new(file), size, Visibility::PRIVATE)?)
    }

    /// The same, of no file.
    fn private(&self, pages: u64) -> Result<Mapping, Error> {
        let (len, size) = (Pages::new(pages).bytes(self.pool.size()), self.pool.size());
        self.bound(Mapping::hugetlb(len, size, Visibility::PRIVATE)?)
    }

    fn bound(&self, mapping: Mapping) -> Result<Mapping, Error> {
        if let Some(node) = self.request.node {
            mapping.bind(node)?;
        }
        Ok(mapping)
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
    fn short(&self, pages: u64, error: Error) -> Error {
        match (error, self.pool.counts()) {
            (Error::Os(error), Ok(counts)) if error.kind() == ErrorKind::OutOfMemory => {
                self.pool_short(pages, counts.available())
            }
            (error, _) => error,
        }
    }

    fn pool_short(&self, wanted: u64, got: u64) -> Error {
        let path = self.pool.path();
        let (missing, shown) = (wanted.saturating_sub(got), path.display());
        let how_to = if !self.may_change {
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
        Error::PoolShort { size: self.pool.size().bytes(), wanted, got, path, how_to }
    }
}

fn is_no_surplus(error: &OsError) -> bool {
    use ErrorKind::{InvalidInput, OutOfMemory, PermissionDenied};
    matches!(error.kind(), InvalidInput | OutOfMemory | PermissionDenied)
}
