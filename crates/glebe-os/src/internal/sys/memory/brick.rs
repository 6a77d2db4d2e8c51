//! [`Brick`] is a file of hugetlb pages that another process may hold.
//!
//! [`Brick::cut`] frees the pages, and touches of mappings raise SIGBUS. No holder can prevent
//! that, because the brick is sealed against further seals. A holder can cut or punch its own
//! brick. A holder that maps a cut brick again lengthens it, and gets new pages of the pool, if any
//! are free. So a cut brick is never filled again. Source: memfd_create(2), F_ADD_SEALS in
//! fcntl(2), the kernel's fs/hugetlbfs/inode.c.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, ErrorKind};
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
        let seals = libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the descriptor is open.
        let sealed = || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        call("fcntl", || "F_ADD_SEALS".into(), sealed)?;
        Ok(Self { _parents: parents, file, len, page })
    }

    /// Allocates a page, which the kernel zeroes.
    ///
    /// # Errors
    /// ENOSPC if the pool has no free page that nobody has reserved.
    pub fn fill(&self, nth: u64) -> Result<(), OsError> {
        self.allocate(0, nth)
    }

    /// Frees a page. The brick keeps its length.
    ///
    /// # Errors
    /// If the brick was cut, or the kernel lacks memory.
    pub fn punch(&self, nth: u64) -> Result<(), OsError> {
        self.allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, nth)
    }

    fn allocate(&self, mode: libc::c_int, nth: u64) -> Result<(), OsError> {
        let each = self.page.bytes().get();
        let (at, len) = ((nth * each) as i64, each as i64); // `set_len` accepted the sum
        let subject = || format!("page {nth} of {}", self.len);
        // SAFETY: the descriptor is open.
        let allocate = || unsafe { libc::fallocate(self.file.as_raw_fd(), mode, at, len) };
        loop {
            match call("fallocate", subject, allocate) {
                // A signal came before the kernel changed the page.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Frees the pages from the nth on. Touches of mappings then raise SIGBUS.
    pub fn cut(&self, from: u64) {
        // Fails if the brick is shorter already.
        let _ = file::set_len(&self.file, from * self.page.bytes().get());
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
