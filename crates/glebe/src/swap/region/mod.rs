//! [`Region`] serves touches of absent pages in its SIGBUS handler, in the touching thread.

mod cold;
mod evict;
mod fetch;
mod hints;
mod inner;
mod leaving;
mod pins;
mod stats;
#[cfg(all(test, not(loom)))]
mod tests;

pub use pins::Resident;

use evict::Asker;
use inner::RegionCore;

use super::error::SwapError;
use super::options::SwapOptions;
use super::stats::Stats;
use glebe_os::internal::sync::lock;
use glebe_os::internal::sys::processes::sigbus::{Handler, Watch};
use glebe_os::internal::sys::processes::signal_frame;
use glebe_os::internal::sys::processes::signals;
use glebe_os::units::Bytes;

/// Stack bytes that the handler needs beyond the kernel's signal frame.
const STACK: usize = 2 << 10;

/// `Region` is memory that a program uses by address, with at most a budget of it resident.
///
/// The rest is compressed, as in a [`Store`](super::Store). A touch of an absent page takes some
/// microseconds. A region needs userfaultfd(2), addresses of twice its length, and 32 bytes per
/// page ever touched.
///
/// Safe code copies in and out ([`Region::read_at`], [`Region::write_at`]) or [keeps a part in
/// memory](Region::resident). Unsafe code uses [`Region::as_ptr`] and must obey these rules:
/// - System calls, devices and a [view](crate::vmap::View) get `EFAULT` for absent pages and need
///   [`Region::resident`]. They get it even there for a page that the program discarded by
///   madvise(2) and has not touched since; [`Region::discard`] has no such effect.
/// - A touch by a thread that blocks SIGBUS kills the process: see [`Region::arm_thread`]. The
///   handler runs on the thread's alternate stack, if any.
/// - A touch of a damaged or unreadable page calls the earlier SIGBUS handler, with `si_addr` and
///   the error number in `si_errno`.
/// - If compressed pages fill pool and file, a touch exceeds the budget, and calls are refused.
/// - In a forked child, a touch raises SIGSEGV, and calls return [`SwapError::Forked`].
/// - The program may advise on parts (madvise(2)), lock and protect them. Locked and read-only
///   pages may exceed the budget. After mlockall(2), twice the region's length
///   counts against `RLIMIT_MEMLOCK`.
/// - No code may touch a region under an allocator's lock, because the handler may allocate.
/// - Without `UFFDIO_MOVE` (before Linux 6.8), devices may write only to resident parts, and no
///   part may be made unreadable.
#[derive(Debug)]
pub struct Region {
    // The watch points to `inner`, so the watch is dropped first.
    _watch: Watch,
    inner: Box<RegionCore>,
}

fn first_handler() -> Result<Handler, SwapError> {
    let handler = Handler::install()?;
    handler.is_first()?.then_some(handler).ok_or(SwapError::HandlerCovered)
}

impl Region {
    pub(super) fn new(options: &SwapOptions, len: Bytes, budget: Bytes) -> Result<Self, SwapError> {
        let handler = first_handler()?;
        let inner = Box::new(RegionCore::new(options, len, budget)?);
        let start = inner.home.addr();
        let range = start..start + inner.home.len().as_usize();
        let watch = fetch::watch(handler, range, &inner)?;
        Ok(Self { _watch: watch, inner })
    }

    fn inner(&self) -> &RegionCore {
        &self.inner
    }

    /// Returns the first byte's address. The program must order concurrent accesses and stay in
    /// bounds.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.home.as_ptr()
    }

    /// Returns the length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // a region is never empty
    pub fn len(&self) -> Bytes {
        self.inner.home.len()
    }

    /// Returns the budget.
    #[must_use]
    pub fn budget(&self) -> Bytes {
        self.inner.offset_of(self.inner.budget())
    }

    /// Returns true if pages move out of the program's reach before compression, false if they are
    /// write-protected in place.
    #[must_use]
    pub fn moves_pages(&self) -> bool {
        self.inner.pager.moves()
    }

    /// Changes the budget, and evicts pages if necessary.
    ///
    /// # Errors
    /// `NoBudget`, `Forked`; `BudgetBelowPinned`, `Full`, `FileFull`, `Os` or `Pool` if too few
    /// pages can leave. An error keeps the budget.
    pub fn set_budget(&self, budget: Bytes) -> Result<(), SwapError> {
        let inner = self.inner();
        inner.alive()?;
        let _changes = lock(&inner.changes);
        let before = inner.swap_budget(budget)?;
        let shed = match inner.pinned() > inner.pinned_max() {
            true => Err(None),
            false => inner.shed(0..0, Asker::Call, || inner.charged() <= inner.budget()),
        };
        shed.map_err(|refused| {
            inner.restore_budget(before);
            let pinned = inner.offset_of(inner.pinned());
            refused.unwrap_or(SwapError::BudgetBelowPinned { given: budget, pinned })
        })
    }

    /// Allocates buffers for the thread's touches, and tests if a touch would end the process.
    ///
    /// # Errors
    /// `SignalBlocked`, `SignalStack`, `HandlerCovered`, `Forked`.
    pub fn arm_thread(&self) -> Result<(), SwapError> {
        let inner = self.inner();
        inner.alive()?;
        if signals::is_sigbus_blocked() {
            return Err(SwapError::SignalBlocked);
        }
        first_handler()?;
        let least = Bytes::new((signal_frame::len() + STACK) as u64);
        match signals::alternate_stack() {
            Some(len) if (len as u64) < least.get() => {
                Err(SwapError::SignalStack { given: Bytes::new(len as u64), least })
            }
            _ => {
                inner.warm_up();
                Ok(())
            }
        }
    }

    /// Returns the statistics; zeros in a forked child. Cost: O(pages).
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }
}
