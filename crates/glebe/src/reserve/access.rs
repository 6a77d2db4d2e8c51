//! The bytes of the reserve's pages: where they are ([`Frames`], the one place where a page
//! position becomes an address), and how a tenant's stores are kept out of a page that first class
//! takes ([`Critical`]): by restartable sequences, or, where the kernel or the C library has none,
//! by counting the writers of a granule.
//!
//! [`Critical::Restartable`]: every change that a tenant makes runs as a sequence guarded by the
//! granule word; closing the granule and one [`Critical::barrier`] ends them all, also those of
//! threads that do not run. [`Critical::Counted`]: the tenant stands in the granule word's
//! `writers` while it copies, and first class takes another run or waits.
//!
//! # Safety
//! The addresses of pages are those of the memory that is kept here, checked against its end; where
//! the reserve may grow, also those of the window in which it lies, which can always be read. Only
//! who holds a page writes there, and pages without memory are held by nobody. What leaves here is
//! for a block's owner and for the guarded fill, whose caller vouches for the bytes. Nothing here
//! is called in a forked child, where nothing is mapped.
#![allow(unsafe_code)]

use std::io::ErrorKind;
use std::sync::Arc;

use crate::contig::Contig;
use crate::error::OsError;
use crate::mapping::racy;
use crate::sync::{fence, prefetch_at, AtomicU64, Backoff, Ordering};
use crate::sys::{membarrier, rseq};
use crate::units::PageSize;
pub(crate) use rseq::{Fill, Guard, Outcome, META_WORDS};

/// Attempts at a barrier for which the kernel lacks memory.
const BARRIER_TRIES: u32 = 8;

/// Lines fetched ahead, and what a line is taken to be; a wrong guess costs time only.
const PREFETCH_LINES: usize = 8;
const LINE_BYTES: usize = 64;

/// How a tenant stores.
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
    unsafe { racy::copy(fill.to, fill.from, fill.len) };
    fill.target.store(fill.commit, Ordering::Release);
    Outcome::Done
}

/// The reserve's bytes by page.
#[derive(Debug)]
pub(crate) struct Frames {
    /// The address of the first page, read here and not through two more cold lines.
    base: usize,
    pages: usize,
    page: PageSize,
    contig: Arc<Contig>,
}

impl Frames {
    /// Room for `pages`, of which `contig` has the first. Of the rest the addresses follow, and can
    /// be read.
    pub(crate) fn new(contig: Arc<Contig>, pages: usize, page: PageSize) -> Self {
        let base = contig.mapping().as_ptr().expose_provenance();
        Self { base, pages, page, contig }
    }

    pub(crate) fn contig(&self) -> &Contig {
        &self.contig
    }

    #[inline]
    pub(crate) fn page(&self) -> PageSize {
        self.page
    }

    /// The address of `page`.
    #[inline]
    pub(crate) fn at(&self, page: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.base.wrapping_add(page << self.page.shift()))
    }

    /// The address of `len` bytes from the start of `page`, all of them mapped to be read.
    #[inline]
    fn checked(&self, page: usize, len: usize) -> *mut u8 {
        let pages = len.div_ceil(1 << self.page.shift());
        let fits = page.checked_add(pages).is_some_and(|end| end <= self.pages);
        assert!(fits, "{len} bytes from page {page} of {}", self.pages);
        self.at(page)
    }

    /// Starts to fetch the first lines of a page.
    #[inline]
    pub(crate) fn prefetch(&self, page: usize) {
        for line in 0..PREFETCH_LINES {
            prefetch_at(self.at(page).wrapping_add(line * LINE_BYTES));
        }
    }

    /// Copies bytes of a page out, from `offset` on; a tenant or an owner may be writing them.
    #[inline]
    pub(crate) fn read(&self, page: usize, offset: usize, buf: &mut [u8]) {
        let at = self.checked(page, offset.saturating_add(buf.len()));
        // SAFETY: `checked` says that the source is mapped; `buf` is a slice.
        unsafe { racy::copy(buf.as_mut_ptr(), at.wrapping_add(offset), buf.len()) }
    }

    /// Sets `count` pages to zero.
    pub(crate) fn zero(&self, page: usize, count: usize) {
        let len = count << self.page.shift();
        let at = self.checked(page, len);
        // SAFETY: `checked` says that the target is mapped, and first class, which holds it, that
        // there is memory.
        unsafe { racy::zero(at, len) }
    }
}

#[cfg(test)]
mod tests;
