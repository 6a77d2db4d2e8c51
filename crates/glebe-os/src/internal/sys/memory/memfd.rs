//! [`MemFile`] is a file in memory whose pages can be mapped at several places at once.
//!
//! A `MemFile` seals the length of a file that it creates, so nobody can cut the file. Other owners
//! of an *adopted* file may punch or cut that file: a touch of a removed page then raises SIGBUS or
//! finds zeros.
//!
//! Source: memfd_create(2) (Linux 3.17; hugetlb 4.14, its seals 4.16), F_ADD_SEALS in fcntl(2).
#![allow(unsafe_code)]

pub(in crate::internal::sys) mod parents;

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::error::OsError;
use crate::internal::sys::call::{answer, call};
use crate::internal::sys::files::file;
use crate::internal::sys::machine::limits;
use crate::internal::sys::memory::mmap::{map_file_over, set_aside, try_file, unmap};
use crate::internal::sys::page_size;
use crate::internal::sys::processes::fork::ForkGuard;
use crate::units::{Bytes, PageSize};
use parents::Parents;

/// A file in memory. Dropping a created file frees its pages, even if a child has the descriptor.
#[derive(Debug)]
pub struct MemFile {
    // Declared first, so that it drops before the descriptor closes.
    parents: Option<Parents>,
    file: File,
    page: PageSize,
    /// `None` if the length is not sealed.
    len: Option<Bytes>,
    guard: ForkGuard,
}

fn refused(
    source: impl Into<io::Error>,
    call: &'static str,
    subject: impl Into<String>,
) -> OsError {
    OsError::new(call, subject, source.into())
}

impl MemFile {
    /// Creates a file of `len` zero bytes in base pages, rounded up. Allocates no page yet.
    ///
    /// # Errors
    /// If memfd_create(2), ftruncate(2) or fcntl(2) fails; EINVAL for a length of zero or beyond
    /// `i64::MAX`, EFBIG beyond `RLIMIT_FSIZE`.
    pub fn new(len: Bytes) -> Result<Self, OsError> {
        Self::create(len, None)
    }

    /// Creates a file of hugetlb pages of size `page`. Mapping the file reserves the pages.
    ///
    /// # Errors
    /// See [`MemFile::new`]; ENOENT or ENODEV without such a pool.
    pub fn hugetlb(len: Bytes, page: PageSize) -> Result<Self, OsError> {
        Self::create(len, Some(page))
    }

    fn create(len: Bytes, huge: Option<PageSize>) -> Result<Self, OsError> {
        let page = huge.unwrap_or_else(page_size);
        let errno = io::Error::from_raw_os_error;
        let whole = len.pages_up(page).checked_bytes(page);
        let size = whole.and_then(|len| i64::try_from(len.get()).ok()).filter(|size| *size > 0);
        let (Some(whole), Some(size)) = (whole, size) else {
            return Err(refused(errno(libc::EINVAL), "ftruncate", len.to_string()));
        };
        if limits::limit(libc::RLIMIT_FSIZE).is_some_and(|limit| whole > limit) {
            return Err(refused(errno(libc::EFBIG), "ftruncate", len.to_string()));
        }
        let file = make(huge).map_err(|e| refused(e, "memfd_create", page.bytes().to_string()))?;
        // SAFETY: the descriptor is open.
        let sized = || unsafe { libc::ftruncate(file.as_raw_fd(), size) };
        call("ftruncate", || len.to_string(), sized)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the descriptor is open.
        let sealed = || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        call("fcntl", || "F_ADD_SEALS".into(), sealed)?;
        Ok(Self { parents: None, file, page, len: Some(whole), guard: ForkGuard::new() })
    }

    /// Makes forked children close the file, because they would keep its pages if this process is
    /// killed.
    ///
    /// # Errors
    /// If fork handlers cannot be added.
    pub fn not_for_children(mut self) -> Result<Self, OsError> {
        self.parents = Some(Parents::note(self.file.as_raw_fd())?);
        Ok(self)
    }

    /// Adopts another owner's file on tmpfs or hugetlbfs, such as a memfd. Dropping the result
    /// keeps the pages.
    ///
    /// # Errors
    /// If fstatfs(2) fails; EINVAL for another kind of file; EPERM for a file that is sealed
    /// against writes, because the kernel would refuse its mappings.
    pub fn adopt(descriptor: OwnedFd) -> Result<Self, OsError> {
        let file: File = descriptor.into();
        let mut stat = MaybeUninit::<libc::statfs>::zeroed();
        // SAFETY: the descriptor is open; the kernel fills the local.
        let told = || unsafe { libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) };
        call("fstatfs", || "a descriptor".into(), told)?;
        // SAFETY: the kernel filled the structure; zeros are valid too.
        let stat = unsafe { stat.assume_init() };
        let page = match stat.f_type {
            libc::TMPFS_MAGIC => Some(page_size()),
            libc::HUGETLBFS_MAGIC => u64::try_from(stat.f_bsize).ok().and_then(PageSize::new),
            _ => None,
        };
        let Some(page) = page else {
            let what = format!("a file system of type {:#x}, not memory", stat.f_type);
            let source = io::Error::from_raw_os_error(libc::EINVAL);
            return Err(refused(source, "fstatfs", what));
        };
        refuse_sealed(&file)?;
        Ok(Self { parents: None, file, page, len: None, guard: ForkGuard::new() })
    }

    /// Returns the size of the file's pages.
    #[must_use]
    pub fn page(&self) -> PageSize {
        self.page
    }

    /// Returns the current length in bytes, rounded down to whole pages.
    ///
    /// # Errors
    /// If fstat(2) fails, for an adopted file.
    pub fn len(&self) -> Result<Bytes, OsError> {
        if let Some(len) = self.len {
            return Ok(len);
        }
        let told = file::metadata(&self.file).map_err(|e| refused(e, "fstat", "a descriptor"))?;
        Ok(Bytes::new(told.len()).pages_down(self.page).bytes(self.page))
    }

    /// Returns true if the file has no whole page.
    ///
    /// # Errors
    /// See [`MemFile::len`].
    pub fn is_empty(&self) -> Result<bool, OsError> {
        Ok(self.len()? == Bytes::ZERO)
    }

    /// Maps the whole file, shared, at a multiple of `align`.
    pub fn map(&self, align: PageSize) -> Result<usize, OsError> {
        let len = self.len()?;
        let at = set_aside(len, align.max(self.page))?;
        // SAFETY: nothing else uses the new addresses.
        unsafe {
            let mapped = self.map_over(at, Bytes::ZERO, len);
            if mapped.is_err() {
                let _ = unmap(at, len);
            }
            mapped.map(|()| at)
        }
    }

    /// Maps `len` bytes from `offset`, shared, over whatever is at `addr`. That stays if the pool
    /// has too few pages. Pages that are set aside for the mapping stay so after another failure.
    ///
    /// # Safety
    /// The caller owns `addr..addr + len`, in whole pages, and nothing refers to it.
    #[inline]
    pub unsafe fn map_over(&self, addr: usize, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        if self.len.is_none() {
            refuse_sealed(&self.file)?;
        }
        if self.page != page_size() {
            try_file(&self.file, offset, len)?;
        }
        // SAFETY: the caller keeps the contract.
        unsafe { map_file_over(&self.file, offset, len, addr) }
    }

    /// Removes pages from the file. Their mappings then read as zero.
    pub fn punch(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (from, bytes) = (offset.get() as i64, len.get() as i64);
        let subject = || format!("{:#x}, {len}", offset.get());
        // SAFETY: the descriptor is open.
        call("fallocate", subject, || unsafe {
            libc::fallocate(self.file.as_raw_fd(), mode, from, bytes)
        })
    }
}

/// Refuses a file that is sealed against writes. mmap refuses it too, but first unmaps what was at
/// the address.
fn refuse_sealed(file: &File) -> Result<(), OsError> {
    // SAFETY: the descriptor is open.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    // -1 for a file that cannot have seals.
    if seals >= 0 && seals & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) != 0 {
        let source = io::Error::from_raw_os_error(libc::EPERM);
        return Err(refused(source, "fcntl", "a file that is sealed against writes"));
    }
    Ok(())
}

impl Drop for MemFile {
    fn drop(&mut self) {
        // Frees the pages now, because a forked child's descriptor would keep them. If the kernel
        // refuses, the last close frees them.
        if let Some(len) = self.len.filter(|_| !self.guard.is_child()) {
            let _ = self.punch(Bytes::ZERO, len);
        }
    }
}

pub(in crate::internal::sys) fn make(huge: Option<PageSize>) -> io::Result<File> {
    let huge = huge.map_or(0, |page| libc::MFD_HUGETLB | (page.shift() << libc::MFD_HUGE_SHIFT));
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | huge;
    let make = |flags| {
        // SAFETY: the name is a constant.
        answer("memfd_create", || unsafe { libc::memfd_create(c"glebe".as_ptr(), flags) })
    };
    // The sysctl vm.memfd_noexec may require this flag, which kernels before 6.3 reject.
    let fd = match make(flags | libc::MFD_NOEXEC_SEAL) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => make(flags)?,
        other => other?,
    };
    // SAFETY: nothing else owns the new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    use crate::internal::sys::memory::mmap::munmap;

    #[test]
    fn a_file_that_is_sealed_against_writes_is_refused() {
        let len = page_size().bytes();
        for seal in [libc::F_SEAL_WRITE, libc::F_SEAL_FUTURE_WRITE] {
            let file = make(None).unwrap();
            file.set_len(len.get()).unwrap();
            let adopted = MemFile::adopt(file.try_clone().unwrap().into()).unwrap();
            let at = adopted.map(page_size()).unwrap();
            // SAFETY: nothing else uses the mapping.
            unsafe { munmap(at, len).unwrap() };
            // SAFETY: the descriptor is open.
            let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seal) };
            assert_eq!(sealed, 0);
            let refused = adopted.map(page_size()).unwrap_err();
            assert!(refused.to_string().contains("sealed against writes"), "{refused}");
            assert!(MemFile::adopt(file.into()).is_err());
        }
    }

    #[test]
    fn two_mappings_of_a_file_are_the_same_bytes() {
        let page = page_size().bytes();
        let file = MemFile::new(Bytes::new(page.get() * 3 + 1)).unwrap();
        let len = file.len().unwrap();
        assert_eq!(len, Bytes::new(page.get() * 4));
        assert!(!file.is_empty().unwrap());
        let (one, two) = (file.map(page_size()).unwrap(), file.map(page_size()).unwrap());
        let at = |addr| ptr::with_exposed_provenance_mut::<u8>(addr);
        // SAFETY: within the mappings, which only this test uses.
        unsafe {
            at(one + 5).write_volatile(7);
            assert_eq!(at(two + 5).read_volatile(), 7);
            file.punch(Bytes::ZERO, page).unwrap();
            assert_eq!(at(two + 5).read_volatile(), 0);
            munmap(one, len).unwrap();
            munmap(two, len).unwrap();
        }
    }

    #[test]
    fn nothing_too_long_and_other_files_are_refused() {
        for len in [Bytes::ZERO, Bytes::new(u64::MAX), Bytes::new(i64::MAX.unsigned_abs())] {
            assert_eq!(MemFile::new(len).unwrap_err().errno(), Some(libc::EINVAL), "{len}");
        }
        let other = File::open("/proc/self/status").unwrap();
        let error = MemFile::adopt(other.into()).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    }
}
