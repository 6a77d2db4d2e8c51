//! The reserve's bytes by page: the one place where a page position becomes an address.
//!
//! # Safety
//! The addresses of pages are those of the memory that is kept here, checked against its end; where
//! the reserve may grow, also those of the window in which it lies, which can always be read. Only
//! who holds a page writes there, and pages without memory are held by nobody.
//! What leaves here is for a block's owner and for the guarded fill, which say who may use them.
//! Nothing here is called in a forked child, where nothing is mapped.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::contig::Contig;
use crate::mapping::racy;
use crate::sync::prefetch_at;
use crate::units::PageSize;

/// Lines fetched ahead, and what a line is taken to be; a wrong guess costs time only.
const PREFETCH_LINES: usize = 8;
const LINE_BYTES: usize = 64;

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
