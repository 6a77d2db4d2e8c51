//! [`PoolLock`] and [`PoolClaim`]: who adds pages to a hugetlb pool, and gives back just those.
//!
//! The pool is the whole machine's, so it is changed by differences only, never set to a number
//! read earlier, and only while [`PoolLock`] is held. What was added is written down before
//! ([`claims`](super::claims)), so that the next holder gives back what a killed process added.
//! Only free pages are given back: the kernel turns the rest into surplus, which would count
//! against others. What is in use by others stays in the record until it is free.
//!
//! The record is what counts: a claim looks at its line each time it holds the lock, since a change
//! of which it did not see the end may have been settled by anybody meanwhile. Before a change all
//! others of that size are settled.
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

use super::claims::{self, Claim, Key};
use crate::error::OsError;
use crate::sync::{MappedWord, Ordering, StaticMutex};
use crate::sys::fork::ForkGuard;
use crate::sys::hugetlb::{Counts, Pool, ROOT};
use crate::sys::lock_file::{read_private, replace_private, LockFile};
use crate::sys::process::{boot_id, Process};
use crate::units::PageSize;

const LOCK_NAME: &str = "glebe-hugetlb.lock";
const LOCK_DIR: &str = "/run/lock";
/// Some 10 000 claims; a pool is not grown for more.
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

/// Claims of this process that could not be given back: the next that takes the lock tries again.
/// Never waited for, since a thread that forked meanwhile would wait for ever in the child.
static LEFT: StaticMutex<Vec<PoolClaim>> = StaticMutex::new(Vec::new());
/// The number of the next claim, from 1 on: 0 is of claims that are nobody's.
static NUMBERS: MappedWord = MappedWord::new(1);

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
        let mut lock = Self { file, this, boot_id, notes: Vec::new() };
        lock.give_back_for_ended(place)?;
        lock.give_back_left();
        Ok(lock)
    }

    /// What was wrong with the record, if anything.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Pages of `size` that processes have claimed.
    ///
    /// # Errors
    /// If the record cannot be read.
    pub fn claimed(&self, size: PageSize) -> Result<u64, OsError> {
        let (claims, _) = self.read()?;
        Ok(claims.iter().filter(|claim| claim.key.size == size).map(|claim| claim.pages).sum())
    }

    fn record_path(&self) -> PathBuf {
        self.file.path().with_extension("claims")
    }

    fn read(&self) -> Result<(Vec<Claim>, Vec<String>), OsError> {
        let text = read_private(&self.record_path(), RECORD_BYTES_MAX)?;
        Ok(claims::parse(&text, &self.boot_id))
    }

    fn write(&self, claims: &[Claim]) -> Result<(), OsError> {
        let (path, text) = (self.record_path(), claims::format(claims, &self.boot_id));
        if text.len() as u64 > RECORD_BYTES_MAX {
            let full = io::Error::new(io::ErrorKind::FileTooLarge, "too many claims");
            return Err(OsError::new("write", path.display().to_string(), full));
        }
        replace_private(&path, text.as_bytes())
    }

    /// Writes down that pools are about to be changed, and which pages they have now: all that is
    /// unsettled of their sizes is settled first. What the claims had before is the answer.
    fn begin<const N: usize>(
        &self,
        changes: [(&mut PoolClaim, u64, i64); N],
    ) -> Result<[u64; N], OsError> {
        let (mut claims, _) = self.read()?;
        let had = changes.map(|(of, persistent, change)| {
            settle(&mut claims, of.pool.size(), persistent);
            let line = self.line(of, &mut claims);
            line.begin(persistent, change);
            line.pages
        });
        self.write(&claims)?;
        Ok(had)
    }

    /// Writes down what came of changes, by the pages that the pools have now.
    fn end<const N: usize>(&self, changed: [(&mut PoolClaim, u64); N]) -> Result<(), OsError> {
        let (mut claims, _) = self.read()?;
        for (of, persistent) in changed {
            settle(&mut claims, of.pool.size(), persistent);
            let line = self.line(of, &mut claims);
            of.learn(line);
        }
        self.write(&claims)
    }

    /// The line of a claim, made if there is none.
    fn line<'a>(&self, of: &PoolClaim, claims: &'a mut Vec<Claim>) -> &'a mut Claim {
        line(claims, Key { process: self.this, size: of.pool.size(), number: of.number })
    }

    /// Settles changes that were cut short, before the pool is changed by anybody else.
    fn settle_all(&self, claims: &mut [Claim], place: &Place) -> Result<(), OsError> {
        let cut_short: Vec<PageSize> =
            claims.iter().filter(|claim| claim.change != 0).map(|claim| claim.key.size).collect();
        for size in cut_short {
            if let Some(pool) = Pool::find(&place.pools, size)? {
                settle(claims, size, pool.counts()?.persistent());
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
        self.settle_all(&mut claims, place)?;
        let path = self.record_path();
        self.notes.extend(ignored.into_iter().map(|what| format!("{}: {what}", path.display())));
        for at in 0..claims.len() {
            if !claims[at].key.process.has_ended() {
                continue;
            }
            let size = claims[at].key.size;
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

/// The line of that key, made if there is none.
fn line(claims: &mut Vec<Claim>, key: Key) -> &mut Claim {
    let at = claims.iter().position(|claim| claim.key == key).unwrap_or_else(|| {
        claims.push(Claim::new(key));
        claims.len() - 1
    });
    &mut claims[at]
}

/// Settles what is unsettled of one size.
fn settle(claims: &mut [Claim], size: PageSize, persistent: u64) {
    let unsettled = |claim: &&mut Claim| claim.key.size == size && claim.change != 0;
    claims.iter_mut().filter(unsettled).for_each(|claim| claim.settle(persistent));
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

/// Pages added to a pool, given back when this is dropped; not by a forked child.
#[derive(Debug)]
pub(super) struct PoolClaim {
    pool: Pool,
    place: Place,
    /// Tells it from others of this process.
    number: u64,
    /// Pages that the record has for it, as last seen.
    pages: u64,
    /// Whether the record may have a line of it.
    is_recorded: bool,
    /// Whether this process may change the pool at all.
    may_change: bool,
    guard: ForkGuard,
}

impl PoolClaim {
    /// A claim to nothing yet.
    pub fn new(pool: Pool, place: Place) -> Self {
        let may_change = pool.is_writable();
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let (pages, is_recorded, guard) = (0, false, ForkGuard::new());
        Self { pool, place, number, pages, is_recorded, may_change, guard }
    }

    /// Whether this process may change the pool at all.
    pub fn may_change(&self) -> bool {
        self.may_change
    }

    /// Pages added and still here.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Pages of the pool that are free and set aside for nobody.
    pub fn idle(&self) -> Result<u64, OsError> {
        Ok(self.pool.counts()?.available())
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
        self.look_up(lock, counts.persistent())?;
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
        (large.is_recorded, self.is_recorded) = (true, true);
        let begun = [(&mut *large, before[0], changes[0]), (&mut *self, before[1], changes[1])];
        let [_, had] = lock.begin(begun)?;
        let written = large.pool.demote(pages);
        let now = [large.pool.counts()?.persistent(), self.pool.counts()?.persistent()];
        lock.end([(large, now[0]), (&mut *self, now[1])])?;
        written.map(|()| self.pages.saturating_sub(had))
    }

    /// Leaves what was added in the pool, as nobody's.
    pub fn disown(&mut self, lock: &PoolLock) -> Result<(), OsError> {
        self.reassign(lock, |_, _| {})
    }

    /// Ends the claim while the lock is held.
    pub fn release(&mut self, lock: &PoolLock) {
        if self.is_recorded {
            let _ = self.shrink(lock, u64::MAX);
            if self.leave(lock).is_err() {
                self.keep();
            }
        }
        self.may_change = false;
    }

    /// Keeps the claim for the next that takes the lock, of this process; once that has ended,
    /// the record gives it to anybody.
    fn keep(&mut self) {
        if let Ok(mut left) = LEFT.try_lock() {
            let Self { number, pages, guard, .. } = *self;
            let (pool, place) = (self.pool.clone(), self.place.clone());
            let (is_recorded, may_change) = (true, true);
            left.push(Self { pool, place, number, pages, is_recorded, may_change, guard });
        }
        self.may_change = false;
    }

    /// Takes over what its settled line says.
    fn learn(&mut self, line: &Claim) {
        self.pages = line.pages;
        self.is_recorded = line.pages > 0;
    }

    /// Looks at the record, with the pages that the pool has now.
    fn look_up(&mut self, lock: &PoolLock, persistent: u64) -> Result<(), OsError> {
        let (mut claims, _) = lock.read()?;
        settle(&mut claims, self.pool.size(), persistent);
        self.learn(lock.line(self, &mut claims));
        Ok(())
    }

    fn change(
        &mut self,
        lock: &PoolLock,
        before: u64,
        target: u64,
        change: i64,
    ) -> Result<u64, OsError> {
        self.is_recorded = true;
        let [had] = lock.begin([(&mut *self, before, change)])?;
        // A failed write is settled like one that did nothing.
        let written = self.pool.set_persistent(target);
        let now = self.pool.counts()?.persistent();
        lock.end([(&mut *self, now)])?;
        written.map(|()| self.pages.abs_diff(had))
    }

    /// Leaves what cannot be given back now to whoever next takes the lock.
    fn leave(&mut self, lock: &PoolLock) -> Result<(), OsError> {
        let nobodys = Key { process: lock.this.none(), size: self.pool.size(), number: 0 };
        self.reassign(lock, |claims, pages| line(claims, nobodys).pages += pages)
    }

    /// Takes the pages off its line, and has `give` put them elsewhere.
    fn reassign(
        &mut self,
        lock: &PoolLock,
        give: impl FnOnce(&mut Vec<Claim>, u64),
    ) -> Result<(), OsError> {
        if !self.is_recorded {
            return Ok(());
        }
        let persistent = self.pool.counts()?.persistent();
        let (mut claims, _) = lock.read()?;
        settle(&mut claims, self.pool.size(), persistent);
        let pages = std::mem::take(&mut lock.line(self, &mut claims).pages);
        give(&mut claims, pages);
        lock.write(&claims)?;
        (self.pages, self.is_recorded) = (0, false);
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
            Err(_) if self.is_recorded => self.keep(),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
