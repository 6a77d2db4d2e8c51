//! [`Frames`] turns page positions into addresses. [`Critical`] keeps tenants' stores out of pages
//! that first class takes.
//!
//! [`Critical::Restartable`]: a tenant changes pages in a restartable sequence, which tests that
//! the granule's word is open. First class closes the word and calls [`Critical::barrier`].
//!
//! [`Critical::Counted`]: the granule's word counts tenants that copy or drop pages. First class
//! waits for these tenants, takes another run, or fails.
//!
//! # Safety
//! `checked` keeps reads and zeroing inside the readable pages of `Frames`. Only a page's holder
//! writes to the page, and pages that were given back have no holder. A forked child has nothing
//! mapped and calls nothing here.
#![allow(unsafe_code)]

use std::io::ErrorKind;
use std::sync::Arc;

use crate::contig::Contig;
use glebe_os::error::OsError;
use glebe_os::internal::mapping::racy;
use glebe_os::internal::sync::{fence, prefetch_at, AtomicU64, Backoff, Ordering};
use glebe_os::internal::sys::processes::membarrier;
use glebe_os::internal::sys::processes::rseq;
use glebe_os::units::PageSize;
pub(crate) use rseq::{Fill, Guard, Outcome, META_WORDS};

const BARRIER_TRIES: u32 = 8;

const PREFETCH_LINES: usize = 8;
const LINE_BYTES: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Critical {
    Restartable(rseq::Rseq),
    Counted,
}

impl Critical {
    pub(crate) fn find() -> Result<Self, String> {
        let rseq = rseq::Rseq::find()?;
        membarrier::register_rseq().map_err(|e: OsError| e.to_string())?;
        membarrier::rseq_barrier().map_err(|e| e.to_string())?;
        Ok(Self::Restartable(rseq))
    }

    pub(crate) fn counts_writers(&self) -> bool {
        matches!(self, Self::Counted)
    }

    /// Aborts all restartable sequences, so no tenant acts on a guard word that it read before.
    /// After an error the caller must take no page, because a tenant could still write to it.
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
            Self::Counted => {
                match target.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => Outcome::Done,
                    Err(_) => Outcome::Lost,
                }
            }
        }
    }

    /// # Safety
    /// See [`rseq::Rseq::fill`].
    #[inline]
    pub(crate) unsafe fn fill(&self, guard: Guard<'_>, fill: &Fill<'_>) -> Outcome {
        match self {
            // SAFETY: the caller upholds the contract.
            Self::Restartable(rseq) => unsafe { rseq.fill(guard, fill) },
            // SAFETY: the caller upholds the contract; the writer count keeps first class out.
            Self::Counted => unsafe { counted_fill(fill) },
        }
    }
}

/// # Safety
/// See [`rseq::Rseq::fill`].
unsafe fn counted_fill(fill: &Fill<'_>) -> Outcome {
    if fill.target.load(Ordering::Relaxed) != fill.claim {
        return Outcome::Lost;
    }
    fence(Ordering::SeqCst); // orders the claim before the bytes
    for (at, word) in fill.meta_at.iter().zip(fill.meta) {
        at.store(word, Ordering::Relaxed);
    }
    // SAFETY: the caller guarantees that both pointers are valid for `len` bytes and disjoint.
    unsafe { racy::copy(fill.to, fill.from, fill.len) };
    fill.target.store(fill.commit, Ordering::Release);
    Outcome::Done
}

#[derive(Debug)]
pub(crate) struct Frames {
    base: usize,
    pages: usize,
    page: PageSize,
    contig: Arc<Contig>,
}

impl Frames {
    /// Addresses beyond `contig`, up to `pages`, must be readable.
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

    #[inline]
    pub(crate) fn at(&self, page: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.base.wrapping_add(page << self.page.shift()))
    }

    #[inline]
    fn checked(&self, page: usize, len: usize) -> *mut u8 {
        let pages = len.div_ceil(1 << self.page.shift());
        let fits = page.checked_add(pages).is_some_and(|end| end <= self.pages);
        assert!(fits, "{len} bytes from page {page} of {}", self.pages);
        self.at(page)
    }

    #[inline]
    pub(crate) fn prefetch(&self, page: usize) {
        for line in 0..PREFETCH_LINES {
            prefetch_at(self.at(page).wrapping_add(line * LINE_BYTES));
        }
    }

    #[inline]
    pub(crate) fn read(&self, page: usize, offset: usize, buf: &mut [u8]) {
        let at = self.checked(page, offset.saturating_add(buf.len()));
        // SAFETY: `checked` says that the source is mapped; `buf` is a slice.
        unsafe { racy::copy(buf.as_mut_ptr(), at.wrapping_add(offset), buf.len()) }
    }

    pub(crate) fn zero(&self, page: usize, count: usize) {
        let len = count << self.page.shift();
        let at = self.checked(page, len);
        // SAFETY: `checked` says that the target is mapped; first class holds the pages, so they
        // have memory.
        unsafe { racy::zero(at, len) }
    }
}

#[cfg(test)]
mod tests;
