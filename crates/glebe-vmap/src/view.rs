//! [`View`] copies a file's mapped pages by system calls, so a race only mixes bytes, and a missing
//! page raises no signal.
//!
//! # Safety
//! A live view owns its addresses. `checked` compares an access with the view's end, and refuses in
//! a forked child.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use super::space::{Inner, Taken};
use super::{Error, MemFile};
use glebe_os::internal::sys::memory::peek::{peek, poke};
use glebe_os::units::{Bytes, Pages};

/// Pages of a file, mapped side by side.
#[derive(Debug)]
pub struct View {
    space: Arc<Inner>,
    /// Keeps the file's pages, which its last owner frees.
    _file: Arc<MemFile>,
    taken: Taken,
    addr: usize,
    len: Bytes,
}

impl View {
    pub(super) fn new(space: Arc<Inner>, file: Arc<MemFile>, taken: Taken, pages: u64) -> Self {
        let (addr, len) = (space.addr(&taken), Pages::new(pages).bytes(space.page()));
        Self { space, _file: file, taken, addr, len }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> Bytes {
        self.len
    }

    /// Returns the address of the first byte. The caller must order and bound accesses. Touching a
    /// missing page raises SIGBUS. A forked child has nothing mapped there.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.addr)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::BeyondView`], [`Error::Forked`]; [`Error::Lost`] after copying the bytes before a
    /// missing page; [`Error::Os`] if a seccomp filter denies copies.
    pub fn read(&self, offset: Bytes, buf: &mut [u8]) -> Result<(), Error> {
        let addr = self.checked(offset, buf.len())?;
        self.whole(offset, buf.len(), peek(addr, buf)?)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// Like [`View::read`].
    pub fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<(), Error> {
        let addr = self.checked(offset, bytes.len())?;
        // SAFETY: `checked` found the target in this view, and no slice of a view exists.
        let copied = unsafe { poke(addr, bytes)? };
        self.whole(offset, bytes.len(), copied)
    }

    fn whole(&self, offset: Bytes, asked: usize, copied: usize) -> Result<(), Error> {
        if copied == asked {
            return Ok(());
        }
        Err(Error::Lost { offset: offset + Bytes::new(copied as u64) })
    }

    fn checked(&self, offset: Bytes, len: usize) -> Result<usize, Error> {
        let end = offset.checked_add(Bytes::new(len as u64));
        if end.is_none_or(|end| end > self.len) {
            return Err(Error::BeyondView { offset, len, all: self.len });
        }
        if self.is_lost_by_fork() {
            return Err(Error::Forked);
        }
        Ok(self.addr + offset.as_usize())
    }

    /// Returns true in a forked child, where nothing is mapped.
    #[must_use]
    pub fn is_lost_by_fork(&self) -> bool {
        self.space.is_lost_by_fork()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if !self.is_lost_by_fork() {
            self.space.drop_view(self.taken);
        }
    }
}
