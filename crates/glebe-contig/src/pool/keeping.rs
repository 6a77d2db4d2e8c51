//! [`Keeping`] makes surplus pages persistent until dropped, so that freed pages stay in the pool.
//!
//! The threads of a process share one: the first takes the [`PoolLock`], and the last frees it. So
//! a thread can free pages at once, and another thread fills them again later.

use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::{lower, Counter, PoolLock, Window};
use glebe_os::error::OsError;
use glebe_os::internal::sync::StaticMutex;
use glebe_os::internal::sys::files::file::check_writable;
use glebe_os::internal::sys::machine::hugetlb::{Pool, ROOT};
use glebe_os::internal::sys::processes::atfork;
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::units::PageSize;

/// Time between two looks for the share of another thread.
const STEP: Duration = Duration::from_millis(20);

/// A share in the right to free pages of a pool without losing them.
#[derive(Debug)]
pub struct Keeping {
    lock: PoolLock,
    pool: Pool,
    window: Window,
    guard: ForkGuard,
}

static SHARED: StaticMutex<Weak<Keeping>> = StaticMutex::new(Weak::new());

fn with_shared<T>(work: impl FnOnce(&mut Weak<Keeping>) -> T) -> T {
    atfork::without_forks(|| work(&mut SHARED.lock().unwrap_or_else(PoisonError::into_inner)))
}

impl Keeping {
    /// Returns a share, or `None` if this process may not change the pool.
    ///
    /// # Errors
    /// If the lock cannot be had within `patience`; a counter that cannot be changed; a lack of
    /// descriptors or memory.
    pub fn of(page: PageSize, patience: Duration) -> Result<Option<Arc<Self>>, OsError> {
        let Some(pool) = changeable(page)? else { return Ok(None) };
        let fits = |it: &Arc<Self>| it.window.size == page && !it.guard.is_child();
        let begin = Instant::now();
        loop {
            // Another thread of this process may have got the lock meanwhile.
            if let Some(shared) = with_shared(|shared| shared.upgrade()).filter(fits) {
                return Ok(Some(shared));
            }
            let left = patience.saturating_sub(begin.elapsed());
            match PoolLock::within(left.min(STEP)) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut && left > STEP => {}
                lock => {
                    let own = Arc::new(Self::begun(lock?, pool)?);
                    with_shared(|shared| *shared = Arc::downgrade(&own));
                    return Ok(Some(own));
                }
            }
        }
    }

    fn begun(lock: PoolLock, pool: Pool) -> Result<Self, OsError> {
        let counts = pool.counts()?;
        let (before, by) = (counts.persistent(), counts.surplus);
        let window = Window { size: pool.size(), counter: Counter::Pages, before, by, node: None };
        let keeping = Self { lock, pool, window, guard: ForkGuard::new() };
        if by > 0 {
            keeping.lock.note(window)?;
            keeping.pool.set_persistent(before.saturating_add(by))?;
        }
        Ok(keeping)
    }
}

/// Returns `None` if the kernel has no such pool, or lets only others change it.
fn changeable(page: PageSize) -> Result<Option<Pool>, OsError> {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let Some(pool) = Pool::find(Path::new(ROOT), page)? else { return Ok(None) };
    match check_writable(&pool.path()) {
        Ok(()) => Ok(Some(pool)),
        Err(why) if matches!(why.kind(), PermissionDenied | ReadOnlyFilesystem) => Ok(None),
        Err(why) => Err(why),
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        let is_open = self.window.by > 0 && !self.guard.is_child();
        if is_open && lower(&self.pool, self.window).is_ok() {
            let _ = self.lock.end(self.window);
        }
    }
}
