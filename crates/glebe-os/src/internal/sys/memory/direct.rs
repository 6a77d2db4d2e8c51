//! System calls for a library that takes over the C library's names.
//!
//! Errors are numbers, as in [`errno`](crate::internal::sys::errno). Source: syscall(2).
#![allow(unsafe_code)]

use std::io;

pub use libc::{
    MADV_DOFORK, MADV_DONTFORK, MADV_DONTNEED, MADV_HUGEPAGE, MADV_POPULATE_READ, MADV_REMOVE,
    MAP_ANONYMOUS, MAP_DENYWRITE, MAP_EXECUTABLE, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_HUGETLB,
    MAP_HUGE_MASK, MAP_HUGE_SHIFT, MAP_LOCKED, MAP_NONBLOCK, MAP_NORESERVE, MAP_POPULATE,
    MAP_PRIVATE, MAP_SHARED, MAP_SHARED_VALIDATE, MAP_STACK, MREMAP_DONTUNMAP, MREMAP_FIXED,
    MREMAP_MAYMOVE, PROT_EXEC, PROT_NONE, PROT_READ, PROT_WRITE,
};

/// As `MADV_DONTNEED`, also for locked pages (Linux 5.18).
pub const MADV_DONTNEED_LOCKED: i32 = 24;

/// What a call returned, or its error number.
pub type Answer = Result<usize, i32>;

pub(super) fn answer(returned: libc::c_long) -> Answer {
    match returned {
        -1 => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        value => Ok(value as usize),
    }
}

/// mmap(2).
///
/// # Safety
/// With `MAP_FIXED` the range is the caller's.
pub unsafe fn mmap(addr: usize, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> Answer {
    // SAFETY: the caller keeps the contract.
    answer(unsafe { libc::syscall(libc::SYS_mmap, addr, len, prot, flags, fd, offset) })
}

/// munmap(2).
///
/// # Safety
/// The range is the caller's.
pub unsafe fn munmap(addr: usize, len: usize) -> Answer {
    // SAFETY: the caller keeps the contract.
    answer(unsafe { libc::syscall(libc::SYS_munmap, addr, len) })
}

/// mremap(2).
///
/// # Safety
/// Both ranges are the caller's.
pub unsafe fn mremap(old: usize, old_len: usize, len: usize, flags: i32, new: usize) -> Answer {
    // SAFETY: the caller keeps the contract.
    answer(unsafe { libc::syscall(libc::SYS_mremap, old, old_len, len, flags, new) })
}

/// mprotect(2).
///
/// # Safety
/// The range is the caller's.
pub unsafe fn mprotect(addr: usize, len: usize, prot: i32) -> Answer {
    // SAFETY: the caller keeps the contract.
    answer(unsafe { libc::syscall(libc::SYS_mprotect, addr, len, prot) })
}

/// madvise(2).
///
/// # Safety
/// The range is the caller's.
pub unsafe fn madvise(addr: usize, len: usize, advice: i32) -> Answer {
    // SAFETY: the caller keeps the contract.
    answer(unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) })
}

/// Writes zeros.
///
/// # Safety
/// The range is the caller's, and may be written.
pub unsafe fn zero(addr: usize, len: usize) {
    // SAFETY: the caller keeps the contract.
    unsafe { libc::memset(std::ptr::with_exposed_provenance_mut(addr), 0, len) };
}

/// Copies bytes.
///
/// # Safety
/// `from` may be read, `to` may be written, and they do not overlap.
pub unsafe fn copy(from: usize, to: usize, len: usize) {
    let (from, to) =
        (std::ptr::with_exposed_provenance::<u8>(from), std::ptr::with_exposed_provenance_mut(to));
    // SAFETY: the caller keeps the contract.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

/// close(2).
///
/// # Safety
/// The descriptor is the caller's.
pub unsafe fn close(fd: i32) -> Answer {
    // SAFETY: the caller keeps the contract.
    answer(unsafe { libc::syscall(libc::SYS_close, fd) })
}

/// close_range(2).
///
/// # Safety
/// The descriptors are the caller's.
pub unsafe fn close_range(first: u32, last: u32, flags: u32) -> Answer {
    // SAFETY: the caller keeps the contract.
    answer(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) })
}

/// dup3(2).
///
/// # Safety
/// The descriptor `to` is the caller's.
pub unsafe fn dup3(from: i32, to: i32, flags: i32) -> Answer {
    // SAFETY: the caller keeps the contract.
    answer(unsafe { libc::syscall(libc::SYS_dup3, from, to, flags) })
}

/// dup2(2).
///
/// # Safety
/// The descriptor `to` is the caller's.
pub unsafe fn dup2(from: i32, to: i32) -> Answer {
    if from != to {
        // SAFETY: the caller keeps the contract.
        return unsafe { dup3(from, to, 0) };
    }
    // SAFETY: the call takes numbers.
    answer(unsafe { libc::syscall(libc::SYS_fcntl, from, libc::F_GETFD) }).map(|_| to as usize)
}

/// Ends the process at once.
pub fn end(status: i32) -> ! {
    // SAFETY: the call takes a number.
    unsafe { libc::_exit(status) }
}
