//! System calls that only the probe makes: each is an attempt that leaves nothing behind.
//!
//! # Safety
//! Every pointer handed over is to a local, to a constant string or into a [`Scratch`] page that
//! this file mapped and nobody else knows.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use crate::sys::uffd::Uffd;
use crate::sys::{page_size, pagemap};

/// Auxiliary vector: bytes of `struct rseq` that the kernel fills (`uapi/linux/auxvec.h`).
const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;
/// `MFD_HUGETLB` takes log2 of the page size from this bit on.
const MFD_HUGE_SHIFT: u32 = 26;
const MEMBARRIER_CMD_QUERY: libc::c_int = 0;
const MPOL_DEFAULT: libc::c_int = 0;

fn check(rc: libc::c_long) -> io::Result<libc::c_long> {
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

/// One private anonymous page for attempts, gone when dropped.
pub(super) struct Scratch {
    start: *mut u8,
    len: usize,
}

impl Scratch {
    pub(super) fn new() -> io::Result<Self> {
        let len = page_size().bytes().as_usize();
        // SAFETY: a new mapping at a place of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), len })
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Stores into the page, so that it is present.
    pub(super) fn touch(&self) {
        // SAFETY: mapped writable by `new`, and no reference to it exists.
        unsafe { self.start.write_volatile(1) };
    }

    pub(super) fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the page is ours and its contents matter to nobody.
        check(unsafe { libc::madvise(self.start.cast(), self.len, advice) }.into()).map(drop)
    }

    /// Sets the default memory policy on the page, which is what it has.
    pub(super) fn bind_default(&self) -> io::Result<()> {
        let none = ptr::null::<libc::c_ulong>();
        // SAFETY: the page is ours; an empty node mask is what MPOL_DEFAULT wants.
        let rc = unsafe {
            libc::syscall(libc::SYS_mbind, self.start, self.len, MPOL_DEFAULT, none, 0, 0)
        };
        check(rc).map(drop)
    }

    /// Ioctls, by bit, that a range registered for missing pages takes.
    pub(super) fn range_ioctls(&self, uffd: &Uffd) -> io::Result<u64> {
        // SAFETY: nobody touches the page again; unmapping it ends the registration.
        unsafe { uffd.register_missing(self.start, self.len) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, unmapped once.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// Whether the kernel knows `advice`: a call of length zero checks that and nothing else.
pub(super) fn advice_known(advice: libc::c_int) -> io::Result<()> {
    // SAFETY: a range of no bytes.
    check(unsafe { libc::madvise(ptr::null_mut(), 0, advice) }.into()).map(drop)
}

/// Regions that `PAGEMAP_SCAN` finds present in the scratch page: 1 where it works.
pub(super) fn pagemap_scan(file: &File, page: &Scratch) -> io::Result<u64> {
    let start = page.start() as u64;
    let range = start..start + page.len() as u64;
    let (found, _) =
        pagemap::scan(file, range, pagemap::PAGE_IS_PRESENT, &mut [pagemap::Region::default()])?;
    Ok(found as u64)
}

/// Commands, by bit, that membarrier(2) takes.
pub(super) fn membarrier_commands() -> io::Result<u64> {
    // SAFETY: a query changes nothing.
    let rc = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0) };
    check(rc).map(|mask| mask as u64)
}

/// Asks the kernel for rseq(2) in a way that registers nothing: EINVAL is the good answer.
pub(super) fn rseq_known() -> io::Result<()> {
    let null = ptr::null::<u8>();
    // SAFETY: flags of no meaning are refused before the pointer is looked at.
    match check(unsafe { libc::syscall(libc::SYS_rseq, null, 0, !0u32, 0) }) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}

/// `__rseq_size` of the C library: none where it has no such symbol, 0 where it did not register.
pub(super) fn rseq_size_of_libc() -> Option<u32> {
    const SYMBOL: &CStr = c"__rseq_size";
    // SAFETY: looks a constant name up.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SYMBOL.as_ptr()) };
    // SAFETY: where it exists it is a `const unsigned int`, set before main.
    (!symbol.is_null()).then(|| unsafe { *symbol.cast::<u32>() })
}

/// Bytes of `struct rseq` that the kernel fills; 0 before Linux 6.3, which fills 20.
pub(super) fn rseq_size_of_kernel() -> u64 {
    // SAFETY: reads the auxiliary vector.
    unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) }
}

/// Makes and drops an empty memfd; of huge pages of that size if one is given.
pub(super) fn memfd(huge_bytes: Option<u64>) -> io::Result<()> {
    let huge = match huge_bytes {
        Some(bytes) => libc::MFD_HUGETLB | (bytes.trailing_zeros() << MFD_HUGE_SHIFT),
        None => 0,
    };
    let name = c"glebe-probe";
    // SAFETY: a constant name; returns a descriptor or -1.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | huge) };
    check(fd.into())?;
    // SAFETY: the kernel just made it and nobody else has it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Soft and hard limit of locked memory in bytes; `None` is no limit.
pub(super) fn memlock_limits() -> io::Result<(Option<u64>, Option<u64>)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the local.
    check(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) }.into())?;
    let finite = |n| (n != libc::RLIM_INFINITY).then_some(n);
    Ok((finite(limit.rlim_cur), finite(limit.rlim_max)))
}

/// Whether the effective user could write `path`.
pub(super) fn access_write(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a path with its terminator; nothing is opened.
    let rc =
        unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) };
    check(rc.into()).map(drop)
}

/// Whether `file` lies in a real procfs, and not in a directory that stands for one.
pub(super) fn on_procfs(file: &File) -> bool {
    // SAFETY: an all-zero `statfs` is a valid one.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the local.
    let rc = unsafe { libc::fstatfs(file.as_raw_fd(), &mut stat) };
    rc == 0 && stat.f_type == libc::PROC_SUPER_MAGIC
}
