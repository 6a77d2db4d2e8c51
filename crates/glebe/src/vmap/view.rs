//! [`View`]: pages that are mapped side by side.
//!
//! Offsets are bytes from its start. Others may change the bytes, through the file or another view,
//! so they are copied: a copy that races with another gives bytes of both and nothing worse. Others
//! may also take pages away, and a page that was never touched may not be had. So the kernel
//! copies, at a system call each: a page that is not there is an error and no signal.
//!
//! # Safety
//! The addresses are this view's from its making to its drop, checked against its end, and asked
//! in a forked child before they are used.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use super::space::{Inner, Taken};
use super::{Error, MemFile};
use crate::sys::peek::{peek, poke};
use crate::units::{Bytes, Pages};

/// Pages of a file, side by side until this is dropped.
#[derive(Debug)]
pub struct View {
    space: Arc<Inner>,
    /// Its pages would go with the last owner of the file.
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

    /// Bytes in it.
    #[must_use]
    pub fn len(&self) -> Bytes {
        self.len
    }

    /// Its first byte. What is done through the pointer is the caller's to order and to bound; the
    /// touch of a page that is not to be had is SIGBUS; in a forked child nothing is mapped there.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.addr)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::BeyondView`], [`Error::Forked`]; [`Error::Lost`], with what is before it copied;
    /// [`Error::Os`] where a filter denies such copies.
    pub fn read(&self, offset: Bytes, buf: &mut [u8]) -> Result<(), Error> {
        let addr = self.checked(offset, buf.len())?;
        self.whole(offset, buf.len(), peek(addr, buf)?)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// As [`View::read`].
    pub fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<(), Error> {
        let addr = self.checked(offset, bytes.len())?;
        // SAFETY: `checked` says that the target is this view's, of which no slice is made.
        let copied = unsafe { poke(addr, bytes)? };
        self.whole(offset, bytes.len(), copied)
    }

    fn whole(&self, offset: Bytes, asked: usize, copied: usize) -> Result<(), Error> {
        if copied == asked {
            return Ok(());
        }
        Err(Error::Lost { offset: offset + Bytes::new(copied as u64) })
    }

    /// The address of `offset`, where `len` bytes from it are this view's.
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

    /// Whether this is a forked child, which has no such view.
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
