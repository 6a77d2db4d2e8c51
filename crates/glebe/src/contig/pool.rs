//! [`PoolLock`] and [`PoolClaim`]: who adds pages to a hugetlb pool, and gives back just those.
//!
//! The pool is the whole machine's, so it is changed by differences only, never set to a number
//! read earlier, and only while [`PoolLock`] is held. What was added is written down before
//! ([`claims`](super::claims)), so that the next holder gives back what a killed process added.
//! Only free pages are given back: the kernel turns the rest into surplus, which would count
//! against others. What is in use by others stays in the record until it is free.
//!
//! A give-back that fails is made up for: the claim is kept, and the next of this process that
//! takes the lock gives it back; once the process has ended anybody does. Nobody is told, since it
//! happens in a drop; the record shows it.
//!
//! Counts are huge pages. A change costs a few 10 µs and 50 µs for each 2 MiB page added.
//!
//! Order: a claim is dropped when its thread holds no `PoolLock`, since the drop takes it.

use std::io;
use std::path::PathBuf;

use super::claims::{self, Claim};
use crate::error::OsError;
use crate::sync::{lock, MappedWord, Mutex, Ordering, StaticMutex};
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
    /// Tells one holding of the lock from another.
    number: u64,
    /// What changes of this process came to that were settled when the lock was taken.
    settled: Mutex<Vec<(PageSize, i64)>>,
}

/// Claims of this process that could not be given back: the next that takes the lock tries again.
/// Never waited for, since a thread that forked meanwhile would wait for ever in the child.
static LEFT: StaticMutex<Vec<PoolClaim>> = StaticMutex::new(Vec::new());
static HOLDINGS: MappedWord = MappedWord::new(0);

impl PoolLock {
    /// Waits for the lock, settles what was cut short, then gives back what processes that have
    /// ended had added, and what this process could not give back before.
    ///
    /// # Errors
    /// If the lock file cannot be opened or is somebody else's, its record cannot be read, or it
    /// cannot be told who this process is.
    pub fn acquire(place: &Place) -> Result<Self, OsError> {
        let file = lock_first(&place.locks)?;
        let (this, boot_id) = (Process::this()?, boot_id()?);
        let number = HOLDINGS.fetch_add(1, Ordering::Relaxed);
        let (notes, settled) = (Vec::new(), Mutex::new(Vec::new()));
        let mut lock = Self { file, this, boot_id, notes, number, settled };
        lock.give_back_for_ended(place)?;
        lock.give_back_left();
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

    /// Changes the record of this process for `size`.
    fn record(&self, size: PageSize, change: impl FnOnce(&mut Claim)) -> Result<(), OsError> {
        let (mut claims, _) = self.read()?;
        change(own(&mut claims, self.this, size));
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

    /// Settles changes that were cut short, before the pool is changed by anybody else.
    fn settle(&self, claims: &mut [Claim], place: &Place) -> Result<(), OsError> {
        for claim in claims.iter_mut().filter(|claim| claim.change != 0) {
            let Some(pool) = place.pool(claim.size) else { continue };
            let had = claim.pages;
            claim.settle(pool.counts()?.persistent());
            if claim.process == self.this {
                let came = i64::try_from(i128::from(claim.pages) - i128::from(had));
                lock(&self.settled).push((claim.size, came.unwrap_or_default()));
            }
        }
        Ok(())
    }

    fn give_back_left(&self) {
        let Ok(mut left) = LEFT.try_lock() else { return };
        let claims = std::mem::take(&mut *left);
        drop(left);
        for mut claim in claims {
            if claim.place.locks.iter().any(|path| path == self.file.path()) {
                claim.release(self);
            } else {
                claim.keep();
            }
        }
    }

    fn give_back_for_ended(&mut self, place: &Place) -> Result<(), OsError> {
        let (mut claims, ignored) = self.read()?;
        self.settle(&mut claims, place)?;
        let path = self.record_path();
        self.notes.extend(ignored.into_iter().map(|what| format!("{}: {what}", path.display())));
        for at in 0..claims.len() {
            if !claims[at].process.has_ended() {
                continue;
            }
            let size = claims[at].size;
            let Some(pool) = place.pool(size) else { continue };
            let counts = pool.counts()?;
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
            Err(error) if elsewhere(&error) => last = Some(error),
            other => return other,
        }
    }
    Err(last.unwrap_or_else(|| {
        OsError::new("open", LOCK_NAME, io::Error::from(io::ErrorKind::NotFound))
    }))
}

/// Whether the lock cannot be there for anybody, rather than being kept from us now: the file
/// would be made, so it is the directory that is not there.
fn elsewhere(error: &OsError) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, ReadOnlyFilesystem};
    matches!(error.kind(), NotFound | NotADirectory | ReadOnlyFilesystem)
}

/// A change that was begun.
#[derive(Clone, Copy, Debug)]
struct Unsettled {
    /// The number of the lock's holding in which that was.
    holding: u64,
    before: u64,
    change: i64,
}

/// Pages added to a pool, given back when this is dropped; not by a forked child.
#[derive(Debug)]
pub(super) struct PoolClaim {
    pool: Pool,
    place: Place,
    pages: u64,
    /// A change of which it is not known yet how far it got.
    unsettled: Option<Unsettled>,
    /// Whether this process may change the pool at all.
    may_change: bool,
    guard: ForkGuard,
}

impl PoolClaim {
    /// A claim to nothing yet.
    pub fn new(pool: Pool, place: Place) -> Self {
        let may_change = pool.is_writable();
        Self { pool, place, pages: 0, unsettled: None, may_change, guard: ForkGuard::new() }
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
        self.catch_up(lock, counts.persistent());
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
        let mut begin =
            [0, 1].map(|at| move |claim: &mut Claim| claim.begin(before[at], changes[at]));
        let [first, second] = &mut begin;
        lock.record_both(sizes, [first, second])?;
        let holding = lock.number;
        let begun = |at: usize| Unsettled { holding, before: before[at], change: changes[at] };
        (large.unsettled, self.unsettled) = (Some(begun(0)), Some(begun(1)));
        let written = large.pool.demote(pages);
        let now = [large.pool.counts()?.persistent(), self.pool.counts()?.persistent()];
        let mut settle = now.map(|now| move |claim: &mut Claim| claim.settle(now));
        let had = self.pages;
        large.catch_up(lock, now[0]);
        self.catch_up(lock, now[1]);
        let [first, second] = &mut settle;
        lock.record_both(sizes, [first, second])?;
        written.map(|()| self.pages - had)
    }

    /// Ends the claim while the lock is held.
    fn release(&mut self, lock: &PoolLock) {
        let _ = self.shrink(lock, u64::MAX);
        if self.unsettled.is_some() || (self.pages > 0 && self.leave(lock).is_err()) {
            self.keep();
        }
        self.may_change = false;
    }

    /// Keeps the claim for the next that takes the lock, of this process; once that has ended,
    /// the record gives it to anybody.
    fn keep(&mut self) {
        if let Ok(mut left) = LEFT.try_lock() {
            let (pages, unsettled) = (std::mem::take(&mut self.pages), self.unsettled.take());
            let (pool, place) = (self.pool.clone(), self.place.clone());
            left.push(Self { pool, place, pages, unsettled, may_change: true, guard: self.guard });
        }
        self.may_change = false;
    }

    /// Learns how far a change got, where that is not known yet, from the pages in the pool now.
    fn catch_up(&mut self, holder: &PoolLock, persistent: u64) {
        let Some(Unsettled { holding, before, change }) = self.unsettled.take() else { return };
        let size = self.pool.size();
        if holding == holder.number {
            let mut own = Claim { pages: self.pages, ..Claim::new(holder.this, size) };
            own.begin(before, change);
            own.settle(persistent);
            self.pages = own.pages;
            return;
        }
        // The record was settled when the lock was taken, by this process or by another, and
        // only if by this one it is told what came of the change.
        let mut settled = lock(&holder.settled);
        if let Some(at) = settled.iter().position(|(of, _)| *of == size) {
            self.pages = self.pages.saturating_add_signed(settled.swap_remove(at).1);
        }
    }

    fn change(
        &mut self,
        lock: &PoolLock,
        before: u64,
        target: u64,
        change: i64,
    ) -> Result<u64, OsError> {
        let size = self.pool.size();
        lock.record(size, |claim| claim.begin(before, change))?;
        self.unsettled = Some(Unsettled { holding: lock.number, before, change });
        // A failed write is settled like one that did nothing.
        let written = self.pool.set_persistent(target);
        let now = self.pool.counts()?.persistent();
        let had = self.pages;
        self.catch_up(lock, now);
        lock.record(size, |claim| claim.settle(now))?;
        written.map(|()| self.pages.abs_diff(had))
    }

    /// Leaves what cannot be given back now to whoever next takes the lock.
    fn leave(&mut self, lock: &PoolLock) -> Result<(), OsError> {
        let (pages, size) = (self.pages, self.pool.size());
        let (mut claims, _) = lock.read()?;
        let of_this = own(&mut claims, lock.this, size);
        of_this.pages = of_this.pages.saturating_sub(pages);
        own(&mut claims, lock.this.none(), size).pages += pages;
        lock.write(&claims)?;
        self.pages = 0;
        Ok(())
    }
}

impl Drop for PoolClaim {
    fn drop(&mut self) {
        if !self.may_change || self.guard.is_child() {
            return;
        }
        // Also of a claim to nothing: pages that others left in the record because this holder
        // used them are free now, and taking the lock gives them back.
        match PoolLock::acquire(&self.place) {
            Ok(lock) => self.release(&lock),
            Err(_) if self.pages > 0 || self.unsettled.is_some() => self.keep(),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
