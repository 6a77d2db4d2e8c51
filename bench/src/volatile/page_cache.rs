//! [`Cached`]: which pages of a file the page cache holds. Unit: pages. Source: mincore(2), which
//! tells that of a mapping of the file, to its owner.
//!
//! # Safety
//! The mapping is never touched, only asked about, and unmapped when dropped.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use glebe::error::OsError;
use glebe::sys::page_size;
use glebe::units::Bytes;

/// A file's mapping.
#[derive(Debug)]
pub(super) struct Cached {
    base: usize,
    len: usize,
}

impl Cached {
    /// Of the first `len` bytes of a file.
    ///
    /// # Errors
    /// What mmap(2) refuses.
    pub(super) fn of(file: &File, len: Bytes) -> Result<Self, OsError> {
        let (size, prot, fd) = (len.as_usize(), libc::PROT_READ, file.as_raw_fd());
        // SAFETY: without a fixed address the kernel picks a range that nothing else uses.
        let base = unsafe { libc::mmap(ptr::null_mut(), size, prot, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(OsError::new("mmap", len.to_string(), io::Error::last_os_error()));
        }
        Ok(Self { base: base as usize, len: size })
    }

    /// Pages of a part that are not in memory.
    ///
    /// # Errors
    /// What mincore(2) refuses.
    ///
    /// # Panics
    /// If the part is not inside.
    pub(super) fn absent(&self, at: Bytes, len: Bytes) -> Result<u64, OsError> {
        let end = at.checked_add(len).expect("no overflow");
        assert!(end.as_usize() <= self.len, "{at} + {len} of {}", self.len);
        let mut pages = vec![0_u8; len.pages_up(page_size()).get() as usize];
        let addr = (self.base + at.as_usize()) as *mut libc::c_void;
        // SAFETY: inside the mapping; the vector has a byte for each page.
        let rc = unsafe { libc::mincore(addr, len.as_usize(), pages.as_mut_ptr()) };
        if rc != 0 {
            return Err(OsError::new("mincore", at.to_string(), io::Error::last_os_error()));
        }
        Ok(pages.iter().filter(|page| **page & 1 == 0).count() as u64)
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        // SAFETY: exactly the range that mmap gave, of which no reference was ever made.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::pressure::nameless;

    #[test]
    fn what_was_read_is_in_memory_and_what_was_not_is_absent() {
        let len = Bytes::mib(1);
        let file = nameless(&std::env::temp_dir(), len).unwrap();
        let cached = Cached::of(&file, len).unwrap();
        let pages = len.pages_down(page_size()).get();
        assert_eq!(cached.absent(Bytes::ZERO, len).unwrap(), pages);
        file.read_exact_at(&mut vec![0; len.as_usize()], 0).unwrap();
        assert_eq!(cached.absent(Bytes::ZERO, len).unwrap(), 0);
        assert_eq!(cached.absent(page_size().bytes(), page_size().bytes()).unwrap(), 0);
    }
}
