//! These [`Mapping`] methods move, shorten, bind or collapse a mapping.
//!
//! # Safety
//! Only the owner changes a mapping, and nobody can reach a part that is unmapped.
#![allow(unsafe_code)]

use std::fs::File;

use super::{Mapping, Visibility};
use crate::error::OsError;
use crate::internal::sys::machine::numa::{self, Node};
use crate::internal::sys::memory::madvise::Advice;
use crate::internal::sys::memory::mmap::{map_file, set_aside, set_aside_at, unmap};
use crate::units::{Bytes, PageSize};

impl Mapping {
    /// Maps the first `len` bytes of a file, not for forked children.
    pub fn window(file: &File, len: Bytes, page: PageSize) -> Result<Self, OsError> {
        // SAFETY: at an address of the kernel's choice.
        let addr = unsafe { map_file(file, Bytes::ZERO, len, None) }?;
        let visibility = Visibility { in_child: false, in_core_dump: true };
        Self::owned(addr, len, page, None).shown(visibility)
    }

    /// Binds pages allocated from now on.
    pub fn bind(&self, node: Node) -> Result<(), OsError> {
        // SAFETY: the mapping owns the range.
        unsafe { numa::bind(self.addr, self.len, node) }
    }

    pub fn collapse(&self) -> Result<(), OsError> {
        self.advise(Bytes::ZERO, self.len, Advice::Collapse)
    }

    /// Unmaps all beyond `len`, in whole base pages.
    pub fn shorten(&mut self, len: Bytes) -> Result<(), OsError> {
        if len >= self.len {
            return Ok(());
        }
        // SAFETY: exclusive access, so nobody uses the part beyond `len`.
        unsafe { unmap(self.addr + len.as_usize(), self.len - len)? };
        self.len = len;
        if self.own.take().is_some() {
            self.own = Some(self.note());
        }
        Ok(())
    }

    pub fn aligned_to(self, align: PageSize) -> Result<Self, OsError> {
        if self.addr % align.bytes().as_usize() == 0 {
            return Ok(self);
        }
        let to = set_aside(self.len, align)?;
        self.moved_to(to)
    }

    /// Moves the mapping to `addr`, where nothing may be mapped.
    pub fn moved_to_free(self, addr: usize) -> Result<Self, OsError> {
        set_aside_at(addr, self.len)?;
        self.moved_to(addr)
    }
}
