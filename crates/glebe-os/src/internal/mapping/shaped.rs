//! These [`Mapping`] methods map, move, shorten, bind or collapse.
#![allow(unsafe_code)]

use std::fs::File;

use super::{Mapping, Visibility};
use crate::error::OsError;
use crate::internal::sys::machine::numa::{self, Node};
use crate::internal::sys::memory::madvise::Advice;
use crate::internal::sys::memory::mmap::{map_file, set_aside, set_aside_at, unmap};
use crate::units::{Bytes, PageSize};

impl Mapping {
    /// Maps the first `len` bytes of a file. Forked children do not get the mapping.
    pub fn window(file: &File, len: Bytes, page: PageSize) -> Result<Self, OsError> {
        let addr = map_file(file, Bytes::ZERO, len)?;
        let visibility = Visibility { in_child: false, in_core_dump: true };
        Self::owned(addr, len, page, None).shown(visibility)
    }

    pub fn bind(&self, nodes: &[Node]) -> Result<(), OsError> {
        // SAFETY: the mapping owns the range.
        unsafe { numa::bind(self.addr, self.len, nodes) }
    }

    pub fn collapse(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::Collapse)
    }

    /// Unmaps everything beyond `len`, which is whole base pages. After an error, a later call of
    /// [`unmap`] unmaps it, so the mapping is shorter all the same.
    pub fn shorten(&mut self, len: Bytes) -> Result<(), OsError> {
        if len >= self.len {
            return Ok(());
        }
        let beyond = self.len - len;
        self.len = len;
        if self.own.take().is_some() {
            self.own = Some(self.note());
        }
        // SAFETY: the part beyond `len` belongs to the mapping no more, and `&mut self` excludes
        // other users of it.
        unsafe { unmap(self.addr + len.as_usize(), beyond) }
    }

    pub fn aligned_to(self, align: PageSize) -> Result<Self, OsError> {
        if self.addr % align.bytes().as_usize() == 0 {
            return Ok(self);
        }
        let to = set_aside(self.len, align)?;
        self.moved_to(to)
    }

    /// Fails if something is mapped at `addr`.
    pub fn moved_to_free(self, addr: usize) -> Result<Self, OsError> {
        set_aside_at(addr, self.len)?;
        self.moved_to(addr)
    }
}
