//! [`PoolLock`] and [`PoolClaim`]: who adds pages to a hugetlb pool, and gives back just those.
//!
//! The pool is the whole machine's, so it is changed by differences only, never set to a number
//! read earlier, and only while [`PoolLock`] is held. What was added is written down before
//! ([`claims`](super::claims)), so that the next holder gives back what a killed process added.
//! Only free pages are given back: the kernel turns the rest into surplus, which would count
//! against others. What is in use by others stays in the record until it is free.
//!
//! Counts are huge pages. A change costs a few 10 µs and 50 µs for each 2 MiB page added.
//!
//! Order: a claim is dropped when its thread holds no `PoolLock`, since the drop takes it.

use std::io;
use std::path::{Path, PathBuf};

use super::claims::{self, Claim};
use crate::error::OsError;
use crate::sys::fork::ForkGuard;
use crate::sys::hugetlb::{Counts, Pool, ROOT};
use crate::sys::lock_file::{read_private, replace_private, LockFile};
use crate::sys::process::{boot_id, Process};
use crate::units::PageSize;

const LOCK_NAME: &str = "glebe-hugetlb.lock";
const LOCK_DIR: &str = "/run/lock";
const RECORD_BYTES_MAX: u64 = 1 << 20;

/// Where the pools and the lock are.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub pools: PathBuf,
    /// The lock file, and where else if that directory is not there or is read-only.
    pub locks: Vec<PathBuf>,
}

impl Place {
    /// This machine's.
    pub fn machine() -> Self {
        let locks = [PathBuf::from(LOCK_DIR), std::env::temp_dir()];
        Self { pools: ROOT.into(), locks: locks.map(|dir| dir.join(LOCK_NAME)).into() }
    }

    pub fn pool(&self, size: PageSize) -> Option<Pool> {
        Pool::below(&self.pools, size)
    }
}

/// The right to change the pools, among all who use this lock file.
#[derive(Debug)]
pub(super) struct PoolLock {
    file: LockFile,
    this: Process,
    boot_id: String,
    notes: Vec<String>,
}

impl PoolLock {
    /// Waits for the lock, then gives back what processes that have ended had added.
    ///
    /// # Errors
    /// If the lock file cannot be opened or is somebody else's, or its record cannot be read.
    pub fn acquire(place: &Place) -> Result<Self, OsError> {
        let file = lock_first(&place.locks)?;
        let (this, boot_id) = (Process::this(), boot_id());
        let mut lock = Self { file, this, boot_id, notes: Vec::new() };
        lock.give_back_for_ended(place)?;
        Ok(lock)
    }

    /// What was wrong with the record, if anything.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn record_path(&self) -> PathBuf {
        self.file.path().with_extension("claims")
    }

    fn read(&self) -> Result<(Vec<Claim>, Vec<String>), OsError> {
        let text = read_private(&self.record_path(), RECORD_BYTES_MAX)?;
        Ok(claims::parse(&text, &self.boot_id))
    }

    fn write(&self, claims: &[Claim]) -> Result<(), OsError> {
        replace_private(&self.record_path(), claims::format(claims, &self.boot_id).as_bytes())
    }

    /// Changes the record of `process` for `size`.
    fn record(
        &self,
        process: Process,
        size: PageSize,
        change: impl FnOnce(&mut Claim),
    ) -> Result<(), OsError> {
        let (mut claims, _) = self.read()?;
        change(own(&mut claims, process, size));
        self.write(&claims)
    }

    /// Changes two records of this process in one write.
    fn record_both(
        &self,
        sizes: [PageSize; 2],
        change: [&mut dyn FnMut(&mut Claim); 2],
    ) -> Result<(), OsError> {
        let (mut claims, _) = self.read()?;
        for (size, change) in sizes.into_iter().zip(change) {
            change(own(&mut claims, self.this, size));
        }
        self.write(&claims)
    }

    fn give_back_for_ended(&mut self, place: &Place) -> Result<(), OsError> {
        let (mut claims, ignored) = self.read()?;
        let path = self.record_path();
        self.notes.extend(ignored.into_iter().map(|what| format!("{}: {what}", path.display())));
        for at in 0..claims.len() {
            if !claims[at].process.has_ended() {
                continue;
            }
            let size = claims[at].size;
            let Some(pool) = place.pool(size) else { continue };
            let counts = pool.counts()?;
            claims[at].settle(counts.persistent());
            if claims[at].pages > counts.total {
                self.notes.push(format!(
                    "{}: {} pages of {} claimed, the pool has {}: ignored",
                    path.display(),
                    claims[at].pages,
                    size.bytes(),
                    counts.total
                ));
                claims[at].pages = 0;
                continue;
            }
            let give = claims[at].pages.min(spare(&counts));
            if give == 0 {
                continue;
            }
            claims[at].before = counts.persistent();
            claims[at].change = -i64::try_from(give).unwrap_or(i64::MAX);
            self.write(&claims)?;
            pool.set_persistent(counts.persistent() - give)?;
            claims[at].settle(pool.counts()?.persistent());
        }
        self.write(&claims)
    }
}

/// The claim of `process` to pages of `size`, made if there is none.
fn own(claims: &mut Vec<Claim>, process: Process, size: PageSize) -> &mut Claim {
    let found = claims.iter().position(|claim| claim.process == process && claim.size == size);
    let at = found.unwrap_or_else(|| {
        claims.push(Claim::new(process, size));
        claims.len() - 1
    });
    &mut claims[at]
}

/// Pages that can be taken from a pool without hurting anybody.
fn spare(counts: &Counts) -> u64 {
    counts.available().min(counts.persistent())
}

fn lock_first(paths: &[PathBuf]) -> Result<LockFile, OsError> {
    let mut last = None;
    for path in paths {
        match LockFile::acquire(path) {
            Err(error) if elsewhere(&error, path) => last = Some(error),
            other => return other,
        }
    }
    Err(last.unwrap_or_else(|| {
        OsError::new("open", LOCK_NAME, io::Error::from(io::ErrorKind::NotFound))
    }))
}

/// Whether the lock cannot be at `path` for anybody, rather than being kept from us.
fn elsewhere(error: &OsError, path: &Path) -> bool {
    let gone = path.parent().is_none_or(|dir| !dir.is_dir());
    gone || error.kind() == io::ErrorKind::ReadOnlyFilesystem
}

/// Pages added to a pool, given back when this is dropped; not by a forked child.
#[derive(Debug)]
pub(super) struct PoolClaim {
    pool: Pool,
    place: Place,
    pages: u64,
    /// Whether this process may change the pool at all.
    may_change: bool,
    guard: ForkGuard,
}

impl PoolClaim {
    /// A claim to nothing yet.
    pub fn new(pool: Pool, place: Place) -> Self {
        let may_change = pool.is_writable();
        Self { pool, place, pages: 0, may_change, guard: ForkGuard::new() }
    }

    /// Whether this process may change the pool at all.
    pub fn may_change(&self) -> bool {
        self.may_change
    }

    /// Pages added and still here.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Asks the kernel for up to `wanted` more pages; returns how many came.
    pub fn grow(&mut self, lock: &PoolLock, wanted: u64) -> Result<u64, OsError> {
        let before = self.pool.counts()?.persistent();
        let change = i64::try_from(wanted).unwrap_or(i64::MAX);
        let target = before.saturating_add(change.unsigned_abs());
        self.change(lock, before, target, change)
    }

    /// Gives back up to `wanted` pages, those that are free; returns how many.
    pub fn shrink(&mut self, lock: &PoolLock, wanted: u64) -> Result<u64, OsError> {
        let counts = self.pool.counts()?;
        let give = wanted.min(self.pages).min(spare(&counts));
        if give == 0 {
            return Ok(0);
        }
        let before = counts.persistent();
        self.change(lock, before, before - give, -i64::try_from(give).unwrap_or(i64::MAX))
    }

    /// Adds pages by splitting up to `wanted` pages of `larger`, which is grown for that: what
    /// comes of one of them is contiguous, and handed out next. Returns how many came.
    pub fn grow_by_demotion(
        &mut self,
        lock: &PoolLock,
        larger: Pool,
        wanted: u64,
    ) -> Result<u64, OsError> {
        let mut large = PoolClaim::new(larger, self.place.clone());
        let split = match large.grow(lock, wanted) {
            Ok(0) => Ok(0),
            Ok(had) => self.demote(lock, &mut large, had),
            Err(error) => Err(error),
        };
        // Its drop would wait for the lock that is held here.
        large.release(lock);
        split
    }

    fn demote(
        &mut self,
        lock: &PoolLock,
        large: &mut PoolClaim,
        pages: u64,
    ) -> Result<u64, OsError> {
        let sizes = [large.pool.size(), self.pool.size()];
        let each = sizes[0].bytes().get() / sizes[1].bytes().get();
        let change = |pages: u64| i64::try_from(pages).unwrap_or(i64::MAX);
        let changes = [-change(pages), change(pages.saturating_mul(each))];
        let before = [large.pool.counts()?.persistent(), self.pool.counts()?.persistent()];
        let mut begin = [0, 1].map(|at| {
            move |claim: &mut Claim| (claim.before, claim.change) = (before[at], changes[at])
        });
        let [first, second] = &mut begin;
        lock.record_both(sizes, [first, second])?;
        let written = large.pool.demote(pages);
        let now = [large.pool.counts()?.persistent(), self.pool.counts()?.persistent()];
        let mut settle = now.map(|now| move |claim: &mut Claim| claim.settle(now));
        let had = self.pages;
        for (at, claim) in [large, self].into_iter().enumerate() {
            let mut own = Claim::new(lock.this, sizes[at]);
            (own.pages, own.before, own.change) = (claim.pages, before[at], changes[at]);
            own.settle(now[at]);
            claim.pages = own.pages;
        }
        let [first, second] = &mut settle;
        lock.record_both(sizes, [first, second])?;
        written.map(|()| self.pages - had)
    }

    /// Ends the claim while the lock is held.
    fn release(&mut self, lock: &PoolLock) {
        // A failure leaves the claim in the record, for the next holder after this process.
        let _ = self.shrink(lock, self.pages);
        if self.pages > 0 {
            let _ = self.leave(lock);
        }
        self.may_change = false;
    }

    fn change(
        &mut self,
        lock: &PoolLock,
        before: u64,
        target: u64,
        change: i64,
    ) -> Result<u64, OsError> {
        let size = self.pool.size();
        lock.record(lock.this, size, |claim| {
            claim.before = before;
            claim.change = change;
        })?;
        // A failed write is settled like one that did nothing.
        let written = self.pool.set_persistent(target);
        let now = self.pool.counts()?.persistent();
        let mut own = Claim::new(lock.this, size);
        (own.pages, own.before, own.change) = (self.pages, before, change);
        own.settle(now);
        let moved = own.pages.abs_diff(self.pages);
        self.pages = own.pages;
        lock.record(lock.this, size, |claim| claim.settle(now))?;
        written.map(|()| moved)
    }

    /// Leaves what cannot be given back now to whoever next takes the lock.
    fn leave(&mut self, lock: &PoolLock) -> Result<(), OsError> {
        let pages = std::mem::take(&mut self.pages);
        let size = self.pool.size();
        lock.record(lock.this, size, |claim| claim.pages = claim.pages.saturating_sub(pages))?;
        lock.record(Process::none(), size, |claim| claim.pages += pages)
    }
}

impl Drop for PoolClaim {
    fn drop(&mut self) {
        if !self.may_change || self.guard.is_child() {
            return;
        }
        // Also of a claim to nothing: pages that others left in the record because this holder
        // used them are free now, and taking the lock gives them back.
        if let Ok(lock) = PoolLock::acquire(&self.place) {
            self.release(&lock);
        }
    }
}

#[cfg(test)]
mod tests;
