//! [`PoolLock`]: the right to change the machine's hugetlb pools, and the changes made under it.
//!
//! Memory comes as *surplus* pages. The kernel takes these back when they are freed, also by
//! SIGKILL, so that the pool keeps no page longer than its owner lives. To get them, a counter of
//! the pool is raised while the memory is mapped, and lowered by the same difference. Each raise
//! is recorded ([`window`](super::window)): if the process is killed in between, the next holder
//! of the lock lowers the counter.
//!
//! - [`PoolLock::with_surplus`] raises the limit on surplus pages. A kill leaves no page behind.
//! - [`PoolLock::with_pages`] raises the persistent pages, for sizes of which the kernel makes no
//!   surplus, and where pages are freed and taken again in an order of choice: while there is
//!   surplus every freed page leaves the pool. Lowering them turns what is in use, or promised to a
//!   mapping, into surplus.
//!
//! Counts are huge pages. A change costs some 50 µs and 2 to 50 µs for each 2 MiB page added.
//! No memory is zeroed while the lock is held, but what a search chose
//! ([`draw`](super::hugetlb)). Source: admin-guide/mm/hugetlbpage, mm/hugetlb.c.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::window::{self, Counter, Window};
use crate::error::OsError;
use crate::sys::hugetlb::{Counts, Pool, ROOT};
use crate::sys::lock_file::{LockFile, Locked};
use crate::sys::numa;
use crate::sys::private;
use crate::sys::process::{boot_id, effective_user};

const LOCK_NAME: &str = "hugetlb.lock";
/// A directory that only root can make or write in.
const ROOTS_DIR: &str = "/run/glebe";

/// Where the pools and the lock are.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub pools: PathBuf,
    /// The NUMA nodes, each with its parts of the pools.
    pub nodes: PathBuf,
    /// The lock file, and where else if that directory cannot be.
    pub locks: Vec<PathBuf>,
}

impl Default for Place {
    /// This machine's.
    fn default() -> Self {
        let user = effective_user();
        let of_user = || Some(PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?).join("glebe"));
        let first = if user == 0 { Some(PathBuf::from(ROOTS_DIR)) } else { of_user() };
        let dirs = first.into_iter().chain([std::env::temp_dir().join(format!("glebe-{user}"))]);
        let locks = dirs.map(|dir| dir.join(LOCK_NAME)).collect();
        Self { pools: ROOT.into(), nodes: numa::ROOT.into(), locks }
    }
}

/// The right to change the machine's hugetlb pools, among all that use this lock. Dropping it gives
/// it up. A thread that has it and asks for it again is refused when its patience ends.
///
/// ```
/// use glebe::contig::PoolLock;
///
/// let lock = PoolLock::acquire()?; // mends what a killed process left
/// for note in lock.notes() {
///     println!("{note}");
/// }
/// # Ok::<(), glebe::error::OsError>(())
/// ```
#[derive(Debug)]
pub struct PoolLock {
    locked: Locked,
    place: Place,
    boot_id: String,
    notes: Vec<String>,
}

impl PoolLock {
    /// How long [`PoolLock::acquire`] waits. Others hold the lock for as long as the kernel needs
    /// to find pages.
    pub const PATIENCE: Duration = Duration::from_secs(60);

    /// Waits for the lock, [`PoolLock::PATIENCE`] at most, then lowers what a killed process had
    /// raised.
    ///
    /// # Errors
    /// As [`PoolLock::within`].
    pub fn acquire() -> Result<Self, OsError> {
        Self::within(Self::PATIENCE)
    }

    /// As [`PoolLock::acquire`], with a patience of the caller's.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) with the process that holds it; if the lock file
    /// cannot be opened or is somebody else's.
    pub fn within(patience: Duration) -> Result<Self, OsError> {
        Self::of(&Place::default(), patience)
    }

    pub(super) fn of(place: &Place, patience: Duration) -> Result<Self, OsError> {
        let locked = lock_first(&place.locks, patience)?;
        let boot_id = boot_id()?;
        let mut lock = Self { locked, place: place.clone(), boot_id, notes: Vec::new() };
        lock.mend()?;
        Ok(lock)
    }

    /// What was wrong with the record, and what was mended, if anything.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Runs `map` while a mapping can get `missing` more surplus pages than there are. The kernel
    /// sets them aside when the mapping is made; the caller populates them later, without the lock.
    ///
    /// # Errors
    /// EINVAL of the counter where the kernel makes no surplus pages of this size; if it cannot be
    /// changed; what `map` returns.
    pub fn with_surplus<T, E: From<OsError>>(
        &self,
        pool: &Pool,
        missing: u64,
        map: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let before = pool.overcommit()?;
        let by = pool.counts()?.surplus.saturating_add(missing).saturating_sub(before);
        let window = (Counter::Overcommit, before, by);
        self.open(pool, window, || pool.set_overcommit(before + by), |_| map())
    }

    /// Adds up to `more` pages, makes all surplus pages persistent, and runs `body` with the number
    /// that came. Pages that are in use or promised after it are surplus again.
    pub(super) fn with_pages<T, E: From<OsError>>(
        &self,
        pool: &Pool,
        more: u64,
        body: impl FnOnce(u64) -> Result<T, E>,
    ) -> Result<T, E> {
        let counts = pool.counts()?;
        let (before, by) = (counts.persistent(), counts.surplus.saturating_add(more));
        let raise = || pool.set_persistent(before.saturating_add(by));
        let window = (Counter::Pages, before, by);
        self.open(pool, window, raise, |made| body(made.saturating_sub(counts.surplus)))
    }

    /// As [`PoolLock::with_pages`], but `body` adds the pages step by step, up to `most` in all.
    pub(super) fn with_growth<T, E: From<OsError>>(
        &self,
        pool: &Pool,
        most: u64,
        body: impl FnOnce(&mut Growing<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let counts = pool.counts()?;
        let (before, by) = (counts.persistent(), counts.surplus.saturating_add(most));
        let _open = self.begin(pool, (Counter::Pages, before, by))?;
        let base = before.saturating_add(counts.surplus);
        pool.set_persistent(base)?;
        body(&mut Growing { pool, base, most, had: 0 })
    }

    /// The lock, beside whose file others of the same owner may lie.
    pub(super) fn locked(&self) -> &Locked {
        &self.locked
    }

    /// The kernel's name of this boot.
    pub(super) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// As [`PoolLock::with_pages`], but splits up to `pages` of `larger` for the pages it adds. The
    /// pages of one larger page are contiguous, and the pool hands them out next.
    pub(super) fn with_split<T, E: From<OsError>>(
        &self,
        pool: &Pool,
        larger: &Pool,
        pages: u64,
        body: impl FnOnce(u64) -> Result<T, E>,
    ) -> Result<T, E> {
        let each = larger.size().bytes().get() / pool.size().bytes().get();
        self.with_pages(larger, pages, |had| {
            self.with_pages(pool, 0, |_| {
                let window =
                    (Counter::Pages, pool.counts()?.persistent(), had.saturating_mul(each));
                self.open(pool, window, || larger.demote(had), body)
            })
        })
    }

    /// Adds `more` pages for good, or none if fewer came. Returns the counts that it read before,
    /// and how many pages came.
    pub(super) fn keep_pages(&self, pool: &Pool, more: u64) -> Result<(Counts, u64), OsError> {
        let counts = pool.counts()?;
        let (before, by) = (counts.persistent(), counts.surplus.saturating_add(more));
        let open = self.begin(pool, (Counter::Pages, before, by))?;
        pool.set_persistent(before.saturating_add(by))?;
        let came = open.made()?.saturating_sub(counts.surplus);
        if came >= more {
            open.keep()?;
        }
        Ok((counts, came))
    }

    /// Raises a counter from a value by so much, runs `body` with how far that came, and lowers it.
    fn open<T, E: From<OsError>>(
        &self,
        pool: &Pool,
        (counter, before, by): (Counter, u64, u64),
        change: impl FnOnce() -> Result<(), OsError>,
        body: impl FnOnce(u64) -> Result<T, E>,
    ) -> Result<T, E> {
        if by == 0 {
            return body(0);
        }
        let open = self.begin(pool, (counter, before, by))?;
        let made = change().and_then(|()| open.made())?;
        body(made)
    }

    /// Writes down a change that is about to be made.
    fn begin<'a>(
        &'a self,
        pool: &'a Pool,
        (counter, before, by): (Counter, u64, u64),
    ) -> Result<Open<'a>, OsError> {
        let window = Window { size: pool.size(), counter, before, by, node: pool.node() };
        let mut windows = self.read()?.0;
        windows.push(window);
        self.write(&windows)?;
        Ok(Open { lock: self, pool, window })
    }

    /// Strikes a window out of the record.
    fn end(&self, window: Window) -> Result<(), OsError> {
        let mut windows = self.read()?.0;
        windows.retain(|other| *other != window);
        self.write(&windows)
    }

    fn mend(&mut self) -> Result<(), OsError> {
        let (windows, ignored) = self.read()?;
        let shown = self.locked.path().display().to_string();
        self.notes.extend(ignored.iter().map(|what| format!("{shown}: {what}")));
        // The last was opened inside those before it.
        for window in windows.iter().rev() {
            let Some(pool) = Pool::find(&self.place.pools, window.size)? else { continue };
            let part = window.node.map(|node| pool.on_node(&self.place.nodes, node)).transpose()?;
            let Some(pool) = part.unwrap_or(Some(pool)) else { continue };
            let made = lower(&pool, *window)?;
            let (size, what) = (window.size.bytes(), window.counter.as_str());
            self.notes.push(format!(
                "{shown}: a process ended while it had {what} of {size} raised by {}; {made} were \
                 taken off",
                window.by
            ));
        }
        match windows.is_empty() && ignored.is_empty() {
            true => Ok(()),
            false => self.write(&[]),
        }
    }

    fn read(&self) -> Result<(Vec<Window>, Vec<String>), OsError> {
        Ok(window::parse(&self.locked.record()?, &self.boot_id))
    }

    fn write(&self, windows: &[Window]) -> Result<(), OsError> {
        self.locked.set_record(window::format(windows, &self.boot_id).as_bytes())
    }
}

/// A pool that grows step by step. What came last is handed out first.
pub(super) struct Growing<'a> {
    pool: &'a Pool,
    /// Persistent pages before the first step.
    base: u64,
    most: u64,
    had: u64,
}

impl Growing<'_> {
    /// Adds up to `pages`. Returns how many came.
    pub fn by(&mut self, pages: u64) -> Result<u64, OsError> {
        let target = self.had.saturating_add(pages).min(self.most);
        self.pool.set_persistent(self.base.saturating_add(target))?;
        let had = self.pool.total()?.saturating_sub(self.base);
        let came = had.saturating_sub(self.had);
        self.had = had;
        Ok(came)
    }
}

/// A window that is closed when this is dropped. Where that fails it stays in the record, and the
/// next that takes the lock closes it.
struct Open<'a> {
    lock: &'a PoolLock,
    pool: &'a Pool,
    window: Window,
}

impl Open<'_> {
    /// How far the change came.
    fn made(&self) -> Result<u64, OsError> {
        Ok(self.window.made(count(self.pool, self.window.counter)?))
    }

    /// Leaves the counter as it is.
    fn keep(self) -> Result<(), OsError> {
        self.lock.end(self.window)?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if lower(self.pool, self.window).is_ok() {
            let _ = self.lock.end(self.window);
        }
    }
}

fn count(pool: &Pool, counter: Counter) -> Result<u64, OsError> {
    match counter {
        Counter::Pages => Ok(pool.counts()?.persistent()),
        Counter::Overcommit => pool.overcommit(),
    }
}

/// Takes off what is made of a window; how much that was.
fn lower(pool: &Pool, window: Window) -> Result<u64, OsError> {
    let now = count(pool, window.counter)?;
    let made = window.made(now);
    match (made, window.counter) {
        (0, _) => {}
        (_, Counter::Pages) => pool.set_persistent(now - made)?,
        (_, Counter::Overcommit) => pool.set_overcommit(now - made)?,
    }
    Ok(made)
}

fn lock_first(paths: &[PathBuf], patience: Duration) -> Result<Locked, OsError> {
    let mut last = None;
    for path in paths {
        let made = path.parent().map_or(Ok(()), private::own_dir);
        match made.and_then(|()| LockFile::at(path).lock(patience)) {
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

#[cfg(test)]
mod tests;
