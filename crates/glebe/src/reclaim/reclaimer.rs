//! [`Reclaimer`] keeps parts behind a lock.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::apply::Reclaimed;
use super::class::Class;
use super::clock::PAUSE_BLIND;
use super::keeper::{Keeper, Seen};
use super::policy::Policy;
use super::stats::{Counter, Counts, Stats};
use super::watch::{Bell, Watched};
use super::{Part, ReclaimError};
use crate::volatile::Refills;
use glebe_os::error::OsError;
use glebe_os::internal::stats::Histogram;
use glebe_os::internal::sync::{lock, MappedWord, Mutex, Ordering};
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::internal::sys::processes::thread;
use glebe_os::units::{Bytes, Pages};

/// A `Reclaimer` takes memory from a program's parts before the kernel kills it.
///
/// ```
/// use std::sync::Arc;
/// use glebe::reclaim::{Part, Policy, Reclaimer};
/// use glebe::units::Bytes;
/// use glebe::volatile::Region;
/// use glebe::zpool::{AtLimit, ObjectPool};
///
/// let region = Arc::new(Region::new(Bytes::mib(1))?);
/// let pool = Arc::new(ObjectPool::options().at_limit(AtLimit::EvictOldest).build()?);
///
/// let reclaimer = Reclaimer::new(Policy::default())?;
/// reclaimer.add(&region)?;
/// reclaimer.add(&pool)?;
/// reclaimer.start()?; // or call `poll` when its descriptor is readable
/// println!("{}", reclaimer.stats());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In a forked child, calls that can fail return [`ReclaimError::Forked`], and a drop does nothing.
#[derive(Debug)]
pub struct Reclaimer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    keeper: Mutex<Keeper>,
    bell: Bell,
    refills: Refills,
    is_stopped: MappedWord,
    counts: Counts,
    poll_ns: Histogram,
    last: Mutex<Seen>,
    guard: ForkGuard,
}

const _: () = {
    const fn shareable<T: Send + Sync>() {}
    shareable::<Reclaimer>();
};

impl Reclaimer {
    /// Creates a reclaimer without parts.
    ///
    /// # Errors
    /// [`ReclaimError::Blind`]; [`ReclaimError::Os`] if the kernel refuses a descriptor or the list
    /// of groups.
    pub fn new(policy: Policy) -> Result<Self, ReclaimError> {
        Self::below(Path::new("/"), policy)
    }

    /// Creates a reclaimer that reads the groups of `dirs` and the machine.
    ///
    /// # Errors
    /// Like [`Reclaimer::new`]; [`ReclaimError::Os`] if a directory is no memory cgroup.
    pub fn of_groups(dirs: &[PathBuf], policy: Policy) -> Result<Self, ReclaimError> {
        Self::made(Path::new("/"), dirs, policy)
    }

    pub(crate) fn below(root: &Path, policy: Policy) -> Result<Self, ReclaimError> {
        Self::made(root, &[], policy)
    }

    fn made(root: &Path, groups: &[PathBuf], policy: Policy) -> Result<Self, ReclaimError> {
        let (bell, refills) = (Bell::new()?, Refills::new());
        let keeper = Keeper::new(policy, root, groups, &bell, refills.clone())?;
        bell.wake_after(Duration::ZERO)?;
        let shared = Shared {
            keeper: Mutex::new(keeper),
            bell,
            refills,
            is_stopped: MappedWord::new(0),
            counts: Counts::new(),
            poll_ns: Histogram::new(),
            last: Mutex::new(Seen::default()),
            guard: ForkGuard::new(),
        };
        Ok(Self { shared: Arc::new(shared), thread: Mutex::new(None) })
    }

    /// Adds a part without keeping it alive.
    ///
    /// # Errors
    /// [`ReclaimError::Taken`]; [`ReclaimError::Reserve`], [`ReclaimError::Volatile`] or
    /// [`ReclaimError::Pool`] if the part cannot shed; [`ReclaimError::Os`] if the kernel refuses
    /// the timer; [`ReclaimError::Forked`].
    pub fn add(&self, part: impl Into<Part>) -> Result<(), ReclaimError> {
        let shared = self.alive()?;
        lock(&shared.keeper).add(part.into())?;
        Ok(shared.bell.wake_after(Duration::ZERO)?)
    }

    /// Returns the flag that keeps caches from refilling during a shortage and a while after.
    #[must_use]
    pub fn refills(&self) -> Refills {
        self.shared.refills.clone()
    }

    /// Looks at memory and sheds the shortage. Call this when the descriptor is readable.
    ///
    /// # Errors
    /// [`ReclaimError::Blind`] or [`ReclaimError::Os`], and the descriptor becomes readable a
    /// second later; [`ReclaimError::Forked`].
    pub fn poll(&self) -> Result<Reclaimed, ReclaimError> {
        self.alive()?.look(false)
    }

    /// Sheds about `target` bytes in the order of [`Class`], even without a shortage.
    ///
    /// # Errors
    /// [`ReclaimError::Blind`], [`ReclaimError::Forked`].
    pub fn shed(&self, target: Bytes) -> Result<Reclaimed, ReclaimError> {
        let shared = self.alive()?;
        lock(&shared.keeper).shed(target)
    }

    /// Waits until the next poll is due, at most `time`.
    ///
    /// # Errors
    /// [`ReclaimError::Forked`], [`ReclaimError::Os`].
    pub fn wait(&self, time: Duration) -> Result<(), ReclaimError> {
        self.alive()?.bell.wait(Some(time))?;
        Ok(())
    }

    /// Starts a thread that polls when due, until the reclaimer is dropped.
    ///
    /// # Errors
    /// [`ReclaimError::Started`], [`ReclaimError::Forked`], [`ReclaimError::Os`].
    pub fn start(&self) -> Result<(), ReclaimError> {
        self.alive()?;
        let mut thread = lock(&self.thread);
        if thread.is_some() {
            return Err(ReclaimError::Started);
        }
        let shared = Arc::clone(&self.shared);
        let started = thread::start_joined("glebe-reclaim", move || shared.work());
        *thread = Some(started.map_err(|e| OsError::new("clone", "a thread that reclaims", e))?);
        Ok(())
    }

    /// Returns the watched limit, and the kernel's sources of notices about usage and stalls.
    ///
    /// # Errors
    /// [`ReclaimError::Forked`].
    pub fn watched(&self) -> Result<Watched, ReclaimError> {
        Ok(lock(&self.alive()?.keeper).watched())
    }

    /// Returns the statistics; zeros in a forked child.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.alive().map_or_else(|_| Stats::default(), Shared::stats)
    }

    fn alive(&self) -> Result<&Shared, ReclaimError> {
        if self.shared.guard.is_child() {
            return Err(ReclaimError::Forked);
        }
        Ok(&self.shared)
    }
}

impl Shared {
    fn work(&self) {
        while self.is_stopped.load(Ordering::Acquire) == 0 {
            let was_told = self.bell.wait(None).unwrap_or_else(|_| {
                // The kernel may refuse the wait for lack of memory.
                std::thread::sleep(PAUSE_BLIND / 100);
                false
            });
            if self.is_stopped.load(Ordering::Acquire) == 0 {
                // `look` counts failures.
                let _ = self.look(was_told);
            }
        }
    }

    fn look(&self, was_told: bool) -> Result<Reclaimed, ReclaimError> {
        let begin = Instant::now();
        let mut keeper = lock(&self.keeper);
        self.counts.add(Counter::Polls, 1);
        let seen = keeper.look(&self.bell, was_told).inspect_err(|_| {
            self.counts.add(Counter::Blind, 1);
            let _ = self.bell.wake_after(PAUSE_BLIND);
        })?;
        self.counts.add(Counter::Notices, u64::from(seen.was_told));
        self.count(&seen);
        *lock(&self.last) = seen;
        drop(keeper);
        self.poll_ns.record(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        Ok(seen.reclaimed)
    }

    fn count(&self, seen: &Seen) {
        let pages = |bytes: Bytes| bytes.pages_up(page_size()).get();
        let done = &seen.reclaimed;
        self.counts.add(Counter::Withheld, seen.withheld.into());
        self.counts.add(Counter::Failed, done.failed);
        if done.asked == Bytes::ZERO {
            return;
        }
        self.counts.add(Counter::Sheds, 1);
        self.counts.add(Counter::Asked, pages(done.asked));
        self.counts.add(Counter::Measured, pages(done.measured));
        for class in Class::all() {
            let counter = match class {
                Class::Volatile(_) => Counter::FreedVolatile,
                Class::Waste => Counter::FreedWaste,
                Class::Objects => Counter::FreedObjects,
                Class::Budgets => Counter::AskedBudgets,
                Class::Reserve => Counter::FreedReserve,
            };
            self.counts.add(counter, pages(done.freed_of(class)));
        }
    }

    fn stats(&self) -> Stats {
        let last = *lock(&self.last);
        let pages = |bytes: Bytes| -> Pages { bytes.pages_down(page_size()) };
        Stats {
            limit: pages(last.pressure.limit),
            room: pages(last.pressure.room()),
            free: pages(last.pressure.free()),
            margin: pages(last.margin),
            marked: pages(last.marked),
            poll_ns: self.poll_ns.snapshot(),
            ..self.counts.sum()
        }
    }
}

impl AsFd for Reclaimer {
    /// Returns a descriptor that is readable while [`Reclaimer::poll`] is due. Do not read from it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        let thread = lock(&self.thread).take();
        if self.shared.guard.is_child() {
            // A child lacks the thread, which may have held the lock, so the state leaks.
            std::mem::forget(thread);
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        self.shared.is_stopped.store(1, Ordering::Release);
        self.shared.bell.stop();
        if let Some(thread) = thread {
            // A panic of the thread was printed already.
            let _ = thread.join();
        }
    }
}
