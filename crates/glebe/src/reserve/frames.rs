//! The reserve's bytes by page: the one place where a page position becomes an address.
//!
//! # Safety
//! Copies go through [`Mapping`](crate::mapping::Mapping), which checks them; the addresses that
//! leave here are for a block's owner and for the guarded fill, which say who may use them.

use crate::contig::Contig;
use crate::units::{Bytes, PageSize, Pages};

#[derive(Debug)]
pub(crate) struct Frames {
    contig: Contig,
    page: PageSize,
}

impl Frames {
    pub(crate) fn new(contig: Contig, page: PageSize) -> Self {
        Self { contig, page }
    }

    pub(crate) fn contig(&self) -> &Contig {
        &self.contig
    }

    pub(crate) fn page(&self) -> PageSize {
        self.page
    }

    fn offset(&self, page: usize) -> Bytes {
        Pages::new(page as u64).bytes(self.page)
    }

    /// The address of `page`.
    #[inline]
    pub(crate) fn at(&self, page: usize) -> *mut u8 {
        self.contig.mapping().as_ptr().wrapping_add(page << self.page.shift())
    }

    /// Copies a page out; a tenant or an owner may be writing it.
    #[inline]
    pub(crate) fn read(&self, page: usize, buf: &mut [u8]) {
        self.contig.mapping().read(self.offset(page), buf);
    }

    /// Sets `count` pages to zero.
    pub(crate) fn zero(&self, page: usize, count: usize) {
        let len = Pages::new(count as u64).bytes(self.page);
        self.contig.mapping().zero(self.offset(page), len);
    }
}
