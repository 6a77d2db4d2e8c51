//! Mappings that are moved, joined, shortened, bound or shown from a file.
//!
//! # Safety
//! As the parent module: a mapping is changed by whoever owns it, whole, and a part that goes is
//! one that nobody can reach any more.
#![allow(unsafe_code)]

use std::fs::File;

use super::{Mapping, Visibility};
use crate::error::OsError;
use crate::sys::madvise::Advice;
use crate::sys::mmap::{map_file, set_aside, set_aside_at, unmap};
use crate::sys::numa::{self, Node};
use crate::units::{Bytes, PageSize};

impl Mapping {
    /// The first `len` bytes of a file whose pages are `page` large; a forked child has none. Those
    /// of huge pages that are shared are in no core dump unless the process asked for that.
    pub(crate) fn window(file: &File, len: Bytes, page: PageSize) -> Result<Self, OsError> {
        // SAFETY: at an address of the kernel's choice.
        let addr = unsafe { map_file(file, Bytes::ZERO, len, None) }?;
        let visibility = Visibility { in_child: false, in_core_dump: true };
        Self::owned(addr, len, page, None).shown(visibility)
    }

    /// Has the pages that are to come be of `node` alone.
    pub(crate) fn bind(&self, node: Node) -> Result<(), OsError> {
        // SAFETY: the range is this mapping's own.
        unsafe { numa::bind(self.addr, self.len, node) }
    }

    /// Makes huge pages of what is there, as far as the kernel can.
    pub(crate) fn collapse(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::Collapse)
    }

    /// Gives up what is beyond `len`, whole base pages; of a mapping of base pages.
    pub(crate) fn shorten(&mut self, len: Bytes) -> Result<(), OsError> {
        if len >= self.len {
            return Ok(());
        }
        // SAFETY: exclusive access, so that nobody uses the end; no access is beyond the new
        // length.
        unsafe { unmap(self.addr + len.as_usize(), self.len - len)? };
        self.len = len;
        if self.own.take().is_some() {
            self.own = Some(self.note());
        }
        Ok(())
    }

    /// Moves it to address space at a multiple of `align`.
    pub(crate) fn aligned_to(self, align: PageSize) -> Result<Self, OsError> {
        if self.addr % align.bytes().as_usize() == 0 {
            return Ok(self);
        }
        let to = set_aside(self.len, align)?;
        self.moved_to(to)
    }

    /// Moves it to `addr`, where nothing may be mapped.
    pub(crate) fn moved_to_free(self, addr: usize) -> Result<Self, OsError> {
        set_aside_at(addr, self.len)?;
        self.moved_to(addr)
    }
}
