//! [`Brick`] is a file of hugetlb pages that another process may hold.
//!
//! No holder can lengthen the file. Only [`Brick::cut`] shortens it for good: a mapping of any
//! process then raises SIGBUS. A cut brick is never filled again, because a holder's mapping would
//! then see the new pages. Source: memfd_create(2), F_ADD_SEALS in fcntl(2) (F_SEAL_FUTURE_WRITE:
//! Linux 5.1), hugetlbfs in the kernel's fs/hugetlbfs/inode.c.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::error::OsError;
use crate::internal::sys::call::call;
use crate::internal::sys::files::file;
use crate::internal::sys::memory::memfd::make;
use crate::internal::sys::memory::memfd::parents::Parents;
use crate::units::{Bytes, PageSize};

/// A brick. Its pages end when this process, and every holder, has closed or unmapped the file.
#[derive(Debug)]
pub struct Brick {
    /// Declared first, so that it drops before the descriptor closes.
    _parents: Parents,
    file: File,
    len: Bytes,
    page: PageSize,
}

impl Brick {
    /// Creates a brick of `len` bytes without pages; mapping it reserves them.
    ///
    /// # Errors
    /// If memfd_create(2), ftruncate(2) or fcntl(2) fails.
    pub fn new(len: Bytes, page: PageSize) -> Result<Self, OsError> {
        let refused = |call, source: io::Error| OsError::new(call, len.to_string(), source);
        let file = make(Some(page)).map_err(|e| refused("memfd_create", e))?;
        let parents = Parents::note(file.as_raw_fd())?;
        file::set_len(&file, len.get()).map_err(|e| refused("ftruncate", e))?;
        let brick = Self { _parents: parents, file, len, page };
        brick.add_seals(libc::F_SEAL_GROW)?;
        Ok(brick)
    }

    /// Allocates the brick's pages, which the kernel zeroes.
    ///
    /// # Errors
    /// ENOSPC if the pool has no free page that nobody has reserved.
    pub fn fill(&self) -> Result<(), OsError> {
        let len = self.len.get() as i64; // `set_len` accepted it
                                         // SAFETY: the descriptor is open.
        call(
            "fallocate",
            || self.len.to_string(),
            || unsafe { libc::fallocate(self.file.as_raw_fd(), 0, 0, len) },
        )
    }

    /// Frees the pages for good, the last first. Every touch of a mapping then raises SIGBUS.
    ///
    /// # Errors
    /// If ftruncate(2) fails.
    pub fn cut(&self) -> Result<(), OsError> {
        let page = self.page.bytes().get();
        for pages in (1..self.len.get() / page).rev() {
            // Fails if the brick is shorter already.
            let _ = file::set_len(&self.file, pages * page);
        }
        file::set_len(&self.file, 0).map_err(|e| OsError::new("ftruncate", "a brick", e))
    }

    /// Lets nobody map the brick for writing any more, or punch holes. Present mappings stay.
    ///
    /// # Errors
    /// EINVAL before Linux 5.1.
    pub fn seal(&self) -> Result<(), OsError> {
        const FUTURE_WRITE: libc::c_int = 0x10;
        self.add_seals(FUTURE_WRITE | libc::F_SEAL_SEAL)
    }

    fn add_seals(&self, seals: libc::c_int) -> Result<(), OsError> {
        // SAFETY: the descriptor is open.
        call(
            "fcntl",
            || "F_ADD_SEALS".into(),
            || unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_ADD_SEALS, seals) },
        )
    }

    #[must_use]
    pub fn len(&self) -> Bytes {
        self.len
    }

    #[must_use]
    pub fn page(&self) -> PageSize {
        self.page
    }

    pub(in crate::internal) fn file(&self) -> &File {
        &self.file
    }
}

impl AsFd for Brick {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
