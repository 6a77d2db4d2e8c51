//! [`PoolLock`] is the right to change hugetlb pools.
//!
//! Memory comes as *surplus* pages, which the kernel takes back when they are freed, also by
//! SIGKILL. To get them, glebe raises a counter, maps, and lowers the counter by the same
//! difference. Each raise is recorded first ([`window`](super::window)), so that the next holder of
//! the lock can undo it.
//!
//! - [`PoolLock::with_surplus`] raises the limit on surplus pages.
//! - [`PoolLock::with_pages`] raises the persistent pages, for sizes without surplus, or to keep
//!   freed pages in the pool until they are retaken in a chosen order.
//!
//! Counts are huge pages.

mod keeping;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::window::{self, Counter, Window};
use glebe_os::error::OsError;
use glebe_os::internal::sys::files::lock_file::{LockFile, Locked};
use glebe_os::internal::sys::files::private;
use glebe_os::internal::sys::machine::hugetlb::{Pool, PoolCounts, ROOT};
use glebe_os::internal::sys::machine::numa;
use glebe_os::internal::sys::processes::process::{boot_id, effective_user};
pub use keeping::Keeping;

const LOCK_NAME: &str = "hugetlb.lock";
/// Directory of root's lock, which only root can write.
const ROOTS_DIR: &str = "/run/glebe";

#[derive(Clone, Debug)]
pub struct Place {
    pub pools: PathBuf,
    pub nodes: PathBuf,
    /// Lock files to try, best first. A path is skipped if its file system is read-only, or if a
    /// parent directory is missing or a file.
    pub locks: Vec<PathBuf>,
}

impl Default for Place {
    fn default() -> Self {
        let user = effective_user();
        let of_user = || Some(PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?).join("glebe"));
        let first = if user == 0 { Some(PathBuf::from(ROOTS_DIR)) } else { of_user() };
        let dirs = first.into_iter().chain([std::env::temp_dir().join(format!("glebe-{user}"))]);
        let locks = dirs.map(|dir| dir.join(LOCK_NAME)).collect();
        Self { pools: ROOT.into(), nodes: numa::ROOT.into(), locks }
    }
}

/// The exclusive right to change the machine's hugetlb pools. A thread that has the lock cannot get
/// a second.
///
/// ```
/// use glebe_contig::PoolLock;
///
/// let lock = PoolLock::acquire()?; // mends what a killed process left
/// for note in lock.notes() {
///     println!("{note}");
/// }
/// # Ok::<(), glebe_contig::OsError>(())
/// ```
#[derive(Debug)]
pub struct PoolLock {
    locked: Locked,
    place: Place,
    boot_id: String,
    notes: Vec<String>,
}

impl PoolLock {
    /// The patience of [`PoolLock::acquire`].
    pub const PATIENCE: Duration = Duration::from_secs(60);

    /// Waits up to [`PoolLock::PATIENCE`] for the lock, and lowers counters that killed processes
    /// left raised.
    ///
    /// # Errors
    /// See [`PoolLock::within`].
    pub fn acquire() -> Result<Self, OsError> {
        Self::within(Self::PATIENCE)
    }

    /// Acquires the lock within `patience`.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut); a lock file or its directory that cannot be opened or
    /// has another owner; a counter that cannot be lowered.
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

    /// Returns notes on faults of the record and on lowered counters.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Runs `map` while a mapping can get `missing` more surplus pages. The kernel promises these
    /// at mmap, so the caller can populate them without the lock.
    ///
    /// # Errors
    /// EINVAL if this size has no surplus; a counter that cannot be changed; errors of `map`.
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

    /// Adds up to `more` pages, makes surplus pages persistent, and runs `body` with the number
    /// added. Lowers the page count again after `body`. Of several nodes, the first grows first.
    pub(super) fn with_pages<T, E: From<OsError>>(
        &self,
        pool: &Pool,
        more: u64,
        body: impl FnOnce(u64) -> Result<T, E>,
    ) -> Result<T, E> {
        self.with_pages_of(&pool.parts(), (0, more), Box::new(body))
    }

    /// Adds up to `missing` pages after `came` of other nodes.
    fn with_pages_of<T, E: From<OsError>>(
        &self,
        parts: &[Pool],
        (came, missing): (u64, u64),
        body: Box<dyn FnOnce(u64) -> Result<T, E> + '_>,
    ) -> Result<T, E> {
        let Some((first, others)) = parts.split_first() else { return body(came) };
        self.with_pages_of_one(first, missing, |here| {
            self.with_pages_of(others, (came + here, missing.saturating_sub(here)), body)
        })
    }

    fn with_pages_of_one<T, E: From<OsError>>(
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

    pub(super) fn locked(&self) -> &Locked {
        &self.locked
    }

    pub(super) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Splits up to `pages` of `larger` and runs `body` with the number of parts.
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

    /// Adds `more` pages for good, or none. Returns the counts before, and the number that came.
    pub(super) fn keep_pages(&self, pool: &Pool, more: u64) -> Result<(PoolCounts, u64), OsError> {
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

    fn begin<'a>(
        &'a self,
        pool: &'a Pool,
        (counter, before, by): (Counter, u64, u64),
    ) -> Result<Open<'a>, OsError> {
        let window = Window { size: pool.size(), counter, before, by, node: pool.node() };
        self.note(window)?;
        Ok(Open { lock: self, pool, window })
    }

    fn note(&self, window: Window) -> Result<(), OsError> {
        let mut windows = self.read()?.0;
        windows.push(window);
        self.write(&windows)
    }

    fn end(&self, window: Window) -> Result<(), OsError> {
        let mut windows = self.read()?.0;
        windows.retain(|other| *other != window);
        self.write(&windows)
    }

    fn mend(&mut self) -> Result<(), OsError> {
        let (windows, ignored) = self.read()?;
        let shown = self.locked.path().display().to_string();
        self.notes.extend(ignored.iter().map(|what| format!("{shown}: {what}")));
        // Undoes the recorded raises of counters in reverse, because later raises build on earlier
        // ones.
        for window in windows.iter().rev() {
            let Some(pool) = Pool::find(&self.place.pools, window.size)? else { continue };
            let of_node = |node| pool.on_nodes(&self.place.nodes, &[node]);
            let part = window.node.map(of_node).transpose()?;
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

/// A pool that grows step by step and hands out its newest pages first.
pub(super) struct Growing<'a> {
    pool: &'a Pool,
    base: u64,
    most: u64,
    had: u64,
}

impl Growing<'_> {
    pub fn by(&mut self, pages: u64) -> Result<u64, OsError> {
        let target = self.had.saturating_add(pages).min(self.most);
        self.pool.set_persistent(self.base.saturating_add(target))?;
        let had = self.pool.total()?.saturating_sub(self.base);
        let came = had.saturating_sub(self.had);
        self.had = had;
        Ok(came)
    }
}

/// A raised counter, which the drop lowers.
struct Open<'a> {
    lock: &'a PoolLock,
    pool: &'a Pool,
    window: Window,
}

impl Open<'_> {
    fn made(&self) -> Result<u64, OsError> {
        Ok(self.window.made(count(self.pool, self.window.counter)?))
    }

    /// Closes the window without lowering the counter.
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

/// `lock` creates the file, so `NotFound` means a missing directory.
fn elsewhere(error: &OsError) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, ReadOnlyFilesystem};
    matches!(error.kind(), NotFound | NotADirectory | ReadOnlyFilesystem)
}

#[cfg(test)]
mod tests;
