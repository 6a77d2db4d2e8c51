//! [`Map`]: memory that is unmapped when dropped, anonymous or of a hugetlb file. Only mapped and
//! populated, never read or written through here.
//!
//! # Safety
//! A `Map` owns the address range it was given by mmap and hands out its address as a number, so
//! no reference into it can exist; what is unmapped in drop is exactly what was mapped.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::ptr;

use glebe::error::OsError;
use glebe::units::Bytes;

const NO_FILE: RawFd = -1;
const ANONYMOUS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// A file without a name, of `len` bytes of hugetlb pages of `huge` each; none of them is there
/// before it is populated.
pub(super) fn hugetlb_file(len: Bytes, huge: Bytes) -> Result<File, OsError> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | huge.get().trailing_zeros() << SIZE_SHIFT;
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"glebe-bench".as_ptr(), flags) };
    if fd < 0 {
        return Err(OsError::new("memfd_create", "hugetlb", io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new and nobody else's.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len.get()).map_err(|e| OsError::new("ftruncate", len.to_string(), e))?;
    Ok(file)
}

/// Where memfd_create(2) keeps log2 of the page size.
const SIZE_SHIFT: u32 = libc::MAP_HUGE_SHIFT as u32;

/// An owned mapping.
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
        Self::new(len.get() as usize, ANONYMOUS, NO_FILE)
    }

    /// Pages of the hugetlb pool of `huge` bytes each; `len` is rounded up to whole ones. The
    /// kernel takes them from the pool, surplus included, here: a shortage is seen now.
    pub(super) fn hugetlb(len: Bytes, huge: Bytes) -> Result<Self, OsError> {
        let log2 = huge.get().trailing_zeros() as libc::c_int;
        let len = len.get().next_multiple_of(huge.get()) as usize;
        Self::new(len, ANONYMOUS | libc::MAP_HUGETLB | log2 << libc::MAP_HUGE_SHIFT, NO_FILE)
    }

    /// Memory that starts at a multiple of `align`; up to that much address space goes unused.
    pub(super) fn aligned(len: Bytes, align: Bytes) -> Result<Self, OsError> {
        let (len, align) = (len.get() as usize, align.get() as usize);
        let mut map = Self::new(len + align, ANONYMOUS | libc::MAP_NORESERVE, NO_FILE)?;
        map.start = map.base.next_multiple_of(align);
        map.len = len;
        Ok(map)
    }

    /// The first `len` bytes of a file of `huge`-byte pages, rounded up to whole ones.
    pub(super) fn of_file(file: &File, len: Bytes, huge: Bytes) -> Result<Self, OsError> {
        let len = len.get().next_multiple_of(huge.get()) as usize;
        Self::new(len, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn new(len: usize, flags: libc::c_int, fd: RawFd) -> Result<Self, OsError> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without a fixed address the kernel picks a range that nothing else uses.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, 0) };
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
