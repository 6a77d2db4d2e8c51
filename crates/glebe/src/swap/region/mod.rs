//! [`Region`]: ordinary memory of which no more than a budget is resident.
//!
//! The program uses addresses, and pages come and go beneath them: [`fetch`] says how they come,
//! [`evict`] how they go, [`inner`] what there is, [`pins`] what keeps them, [`hints`] what the
//! program says of them. A touch of a page that is not there raises SIGBUS, which the handler
//! settles in the thread that touched.

mod cold;
mod evict;
mod fetch;
mod hints;
mod inner;
mod leaving;
mod pins;
mod stats;

pub use pins::Resident;

use evict::Asker;
use inner::Inner;

use super::error::Error;
use super::options::Options;
use super::stats::Stats;
use crate::sync::lock;
use crate::sys::sigbus::{Handler, Watch};
use crate::sys::{signal_frame, signals};
use crate::units::Bytes;

/// Bytes that an alternate signal stack must have beside what the kernel puts on it.
const STACK: usize = 2 << 10;

/// Memory that a program uses by address, of which no more than a budget is resident.
///
/// The rest is compressed, in a pool or a file, as in a [`Store`](super::Store). A touch of what is
/// not there brings it back, in the thread that touched, in some microseconds. Needs
/// userfaultfd(2), no privilege; far more addresses than memory, twice the length of the region;
/// and 32 bytes for each page that was ever touched, 4 KiB of them at a time.
///
/// The program may say which pages it [will need](Region::will_need), which are
/// [cold](Region::cold), and which it wants no more ([discard](Region::discard)).
///
/// Safe code copies in and out ([`Region::read_at`], [`Region::write_at`]) or has part of it
/// [kept in memory](Region::resident) as a slice. What else is done through [`Region::as_ptr`] is
/// unsafe code's to answer for:
/// - System calls and devices get `EFAULT` of what is not there: they need [`Region::resident`].
///   So does a [view](crate::vmap::View), which copies by system calls.
/// - A thread that blocks SIGBUS is killed by a touch: see [`Region::arm_thread`]. The handler runs
///   on the thread's alternate stack if it has one.
/// - A touch of a page whose copy is damaged or unreadable is SIGBUS to the handler that was there
///   before, with the address in `si_addr` and the error number in `si_errno`.
/// - Where nothing can leave memory (no room in pool and file), a touch goes over the budget, which
///   [`Stats`] tells; calls are refused.
/// - A forked child does not have the memory: a touch there is SIGSEGV. Calls are
///   [`Error::Forked`].
/// - The program may advise on parts (madvise(2)), lock and protect them. What it locks or makes
///   read-only may stay in memory, over the budget if it must. Where the process locks all that it
///   maps (mlockall(2)), pages are locked as they come; twice the region's length counts against
///   `RLIMIT_MEMLOCK`.
/// - Memory of a region serves no allocator, and is touched under no lock that an allocator takes.
/// - Where the kernel has no `UFFDIO_MOVE` (before 6.8), devices may not write to what is not kept
///   in memory, and no part may be made unreadable.
#[derive(Debug)]
pub struct Region {
    // Before what it points to.
    _watch: Watch,
    inner: Box<Inner>,
}

/// The handler of SIGBUS, which nobody has covered by another.
fn first_handler() -> Result<Handler, Error> {
    let handler = Handler::install()?;
    handler.is_first()?.then_some(handler).ok_or(Error::HandlerCovered)
}

impl Region {
    /// Makes a region of zeros.
    pub(super) fn new(options: &Options, len: Bytes, budget: Bytes) -> Result<Self, Error> {
        let handler = first_handler()?;
        let inner = Box::new(Inner::new(options, len, budget)?);
        let start = inner.home.addr();
        let range = start..start + inner.home.len().as_usize();
        let watch = fetch::watch(handler, range, &inner)?;
        Ok(Self { _watch: watch, inner })
    }

    fn inner(&self) -> &Inner {
        &self.inner
    }

    /// The first byte. What is done through it must stay within [`Region::len`] and be ordered by
    /// the program.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.home.as_ptr()
    }

    /// Bytes of addresses.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> Bytes {
        self.inner.home.len()
    }

    /// The budget.
    #[must_use]
    pub fn budget(&self) -> Bytes {
        self.inner.offset_of(self.inner.budget())
    }

    /// Whether pages are moved out of the program's reach before they are compressed; else they are
    /// protected from being written, and wait in no window.
    #[must_use]
    pub fn moves_pages(&self) -> bool {
        self.inner.pager.moves()
    }

    /// Changes the budget. Where more is in memory, pages leave it.
    ///
    /// # Errors
    /// [`Error::NoBudget`] for less than a page; [`Error::BudgetBelowPinned`], [`Error::Full`],
    /// [`Error::Os`] (the kernel keeps pages in place for a device) where not enough can leave, and
    /// then the budget is as it was; [`Error::Forked`].
    pub fn set_budget(&self, budget: Bytes) -> Result<(), Error> {
        let inner = self.inner();
        inner.alive()?;
        let _changes = lock(&inner.changes);
        let before = inner.swap_budget(budget)?;
        let shed = inner.shed(0..0, Asker::Call, || inner.charged() <= inner.budget());
        shed.map_err(|refused| {
            inner.restore_budget(before);
            let pinned = inner.offset_of(inner.pinned());
            refused.unwrap_or(Error::BudgetBelowPinned { given: budget, pinned })
        })
    }

    /// Readies the calling thread to touch the region through addresses: makes the buffers that its
    /// first touch would make in the signal handler, and tests what would end the process there.
    ///
    /// # Errors
    /// [`Error::SignalBlocked`]; [`Error::SignalStack`] for an alternate stack that is too small;
    /// [`Error::HandlerCovered`]; [`Error::Forked`].
    pub fn arm_thread(&self) -> Result<(), Error> {
        let inner = self.inner();
        inner.alive()?;
        if signals::is_sigbus_blocked() {
            return Err(Error::SignalBlocked);
        }
        first_handler()?;
        let least = Bytes::new((signal_frame::len() + STACK) as u64);
        match signals::alternate_stack() {
            Some(len) if (len as u64) < least.get() => {
                Err(Error::SignalStack { given: Bytes::new(len as u64), least })
            }
            _ => {
                inner.warm_up();
                Ok(())
            }
        }
    }

    /// The statistics now: O(pages); zeros in a forked child.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }
}
