//! How a tenant's stores are kept out of a page that first class takes: by restartable sequences,
//! or, where the kernel or the C library has none, by counting the writers of a granule.
//!
//! [`Critical::Restartable`]: every change that a tenant makes runs as a sequence guarded by the
//! granule word; closing the granule and one [`Critical::barrier`] ends them all, also those of
//! threads that do not run. [`Critical::Counted`]: the tenant stands in the granule word's
//! `writers` while it copies, and first class takes another run or waits.
#![allow(unsafe_code)] // Safety: forwards to sys::rseq; the caller of `fill` vouches for the bytes.

use std::io::ErrorKind;

use crate::error::OsError;
use crate::sync::{fence, AtomicU64, Backoff, Ordering};
use crate::sys::{membarrier, rseq};
pub(crate) use rseq::{Fill, Guard, Outcome, META_WORDS};

/// Attempts at a barrier for which the kernel lacks memory.
const BARRIER_TRIES: u32 = 8;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Critical {
    /// By restartable sequences.
    Restartable(rseq::Rseq),
    /// By counting writers.
    Counted,
}

impl Critical {
    /// Restartable where this machine can, or why not.
    pub(crate) fn find() -> Result<Self, String> {
        let rseq = rseq::Rseq::find()?;
        membarrier::register_rseq().map_err(|e: OsError| e.to_string())?;
        membarrier::rseq_barrier().map_err(|e| e.to_string())?;
        Ok(Self::Restartable(rseq))
    }

    pub(crate) fn counts_writers(&self) -> bool {
        matches!(self, Self::Counted)
    }

    /// After this no tenant acts on a guard word that it read before.
    ///
    /// # Errors
    /// `find` registered the process and tried the call, so only for want of the kernel's own
    /// memory, which is tried again, or where a filter denies it since. To go on would let a
    /// tenant write into a block.
    pub(crate) fn barrier(&self) -> Result<(), OsError> {
        if let Self::Restartable(_) = self {
            let (mut made, mut backoff) = (membarrier::rseq_barrier(), Backoff::default());
            for _ in 1..BARRIER_TRIES {
                if !made.as_ref().is_err_and(|why| why.kind() == ErrorKind::OutOfMemory) {
                    break;
                }
                backoff.wait();
                made = membarrier::rseq_barrier();
            }
            made?;
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Exchanges `target` while the guard matches.
    #[inline]
    pub(crate) fn exchange(
        &self,
        guard: Guard<'_>,
        target: &AtomicU64,
        old: u64,
        new: u64,
    ) -> Outcome {
        match self {
            Self::Restartable(rseq) => rseq.compare_exchange(guard, target, old, new),
            // The caller stands in `writers`, which keeps the guard as it is.
            Self::Counted => {
                match target.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => Outcome::Done,
                    Err(_) => Outcome::Lost,
                }
            }
        }
    }

    /// Fills a claimed page while the guard matches.
    ///
    /// # Safety
    /// As [`rseq::Rseq::fill`].
    #[inline]
    pub(crate) unsafe fn fill(&self, guard: Guard<'_>, fill: &Fill<'_>) -> Outcome {
        match self {
            // SAFETY: forwarded to the caller.
            Self::Restartable(rseq) => unsafe { rseq.fill(guard, fill) },
            // SAFETY: forwarded to the caller; the writer count keeps first class out.
            Self::Counted => unsafe { counted_fill(fill) },
        }
    }
}

/// # Safety
/// As [`rseq::Rseq::fill`].
unsafe fn counted_fill(fill: &Fill<'_>) -> Outcome {
    if fill.target.load(Ordering::Relaxed) != fill.claim {
        return Outcome::Lost;
    }
    fence(Ordering::SeqCst); // the claim before the bytes
    for (at, word) in fill.meta_at.iter().zip(fill.meta) {
        at.store(word, Ordering::Relaxed);
    }
    // SAFETY: both pointers are good for `len` bytes and disjoint, says the caller.
    unsafe { crate::mapping::racy::copy(fill.to, fill.from, fill.len) };
    fill.target.store(fill.commit, Ordering::Release);
    Outcome::Done
}

#[cfg(test)]
mod tests;
