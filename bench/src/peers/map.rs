//! [`Map`]: anonymous memory that is unmapped when dropped. Only mapped and populated, never read
//! or written through here.
//!
//! # Safety
//! A `Map` owns the address range it was given by mmap and hands out its address as a number, so
//! no reference into it can exist; what is unmapped in drop is exactly what was mapped.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use glebe::error::OsError;
use glebe::units::Bytes;

/// An owned private anonymous mapping.
#[derive(Debug)]
pub(super) struct Map {
    base: usize,
    mapped: usize,
    /// The part in use: aligned where that was asked for.
    start: usize,
    len: usize,
}

impl Map {
    /// Base pages.
    pub(super) fn anonymous(len: Bytes) -> Result<Self, OsError> {
        Self::new(len.get() as usize, 0)
    }

    /// Pages of the hugetlb pool of `huge` bytes each; `len` is rounded up to whole ones. The
    /// kernel takes them from the pool, surplus included, here: a shortage is seen now.
    pub(super) fn hugetlb(len: Bytes, huge: Bytes) -> Result<Self, OsError> {
        let log2 = huge.get().trailing_zeros() as libc::c_int;
        let len = len.get().next_multiple_of(huge.get()) as usize;
        Self::new(len, libc::MAP_HUGETLB | log2 << libc::MAP_HUGE_SHIFT)
    }

    /// Memory that starts at a multiple of `align`; up to that much address space goes unused.
    pub(super) fn aligned(len: Bytes, align: Bytes) -> Result<Self, OsError> {
        let (len, align) = (len.get() as usize, align.get() as usize);
        let mut map = Self::new(len + align, libc::MAP_NORESERVE)?;
        map.start = map.base.next_multiple_of(align);
        map.len = len;
        Ok(map)
    }

    fn new(len: usize, flags: libc::c_int) -> Result<Self, OsError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without a fixed address the kernel picks a range that nothing else uses.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            return Err(OsError::new("mmap", Bytes::new(len as u64).to_string(), error));
        }
        let base = base as usize;
        Ok(Self { base, mapped: len, start: base, len })
    }

    /// Address of the first byte in use.
    pub(super) fn address(&self) -> usize {
        self.start
    }

    /// Asks for transparent hugepages.
    pub(super) fn advise_hugepages(&self) -> Result<(), OsError> {
        self.advise("madvise MADV_HUGEPAGE", libc::MADV_HUGEPAGE)
    }

    /// Makes every page present and writable.
    pub(super) fn populate(&self) -> Result<(), OsError> {
        self.advise("madvise MADV_POPULATE_WRITE", libc::MADV_POPULATE_WRITE)
    }

    fn advise(&self, call: &'static str, advice: libc::c_int) -> Result<(), OsError> {
        // SAFETY: the range lies in the owned mapping, and neither advice changes contents.
        let rc = unsafe { libc::madvise(self.start as *mut libc::c_void, self.len, advice) };
        if rc == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        Err(OsError::new(call, Bytes::new(self.len as u64).to_string(), error))
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly the range that mmap gave, and no reference into it was ever made.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.mapped) };
    }
}
