//! Calls for descriptors of huge pages, like those of [`direct`](super::direct).
//!
//! Source: memfd_create(2), open(2), ftruncate(2), fallocate(2), fstat(2), fcntl(2), sendmsg(2),
//! cmsg(3).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::RawFd;

pub use libc::{
    SYS_fallocate, AT_FDCWD, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, F_ADD_SEALS, F_GET_SEALS,
    F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, MFD_ALLOW_SEALING, MFD_CLOEXEC, MFD_HUGETLB,
    O_ACCMODE, O_CREAT, O_RDONLY, O_RDWR, O_TMPFILE, O_TRUNC, O_WRONLY,
};

use super::direct::{answer, dup3, Answer};

/// The seal of `MFD_NOEXEC_SEAL` (Linux 6.3).
pub const F_SEAL_EXEC: i32 = 0x20;

/// Which file a descriptor is open on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    device: u64,
    inode: u64,
}

/// memfd_create(2).
///
/// # Safety
/// The name ends with a zero byte.
pub unsafe fn memfd_create(name: usize, flags: u32) -> Answer {
    // SAFETY: the caller keeps the contract.
    answer(unsafe { libc::syscall(libc::SYS_memfd_create, name, flags) })
}

/// openat(2).
///
/// # Safety
/// The path ends with a zero byte.
pub unsafe fn openat(at: RawFd, path: usize, flags: i32, mode: u32) -> Answer {
    let mode = if flags & (O_CREAT | O_TMPFILE) != 0 { mode } else { 0 };
    // SAFETY: the caller keeps the contract.
    answer(unsafe { libc::syscall(libc::SYS_openat, at, path, flags, mode) })
}

/// ftruncate(2).
///
/// # Errors
/// See ftruncate(2).
pub fn ftruncate(fd: RawFd, len: i64) -> Answer {
    // SAFETY: the call takes numbers.
    answer(unsafe { libc::syscall(libc::SYS_ftruncate, fd, len) })
}

/// fallocate(2).
///
/// # Errors
/// See fallocate(2).
pub fn fallocate(fd: RawFd, mode: i32, offset: i64, len: i64) -> Answer {
    // SAFETY: the call takes numbers.
    answer(unsafe { libc::syscall(libc::SYS_fallocate, fd, mode, offset, len) })
}

/// Adds seals to a file.
///
/// # Errors
/// See `F_ADD_SEALS` in fcntl(2).
pub fn add_seals(fd: RawFd, seals: i32) -> Answer {
    // SAFETY: the call takes numbers.
    answer(unsafe { libc::syscall(libc::SYS_fcntl, fd, F_ADD_SEALS, seals) })
}

/// Returns a file's seals, or `F_SEAL_SEAL` for a file that cannot have any.
#[must_use]
pub fn seals(fd: RawFd) -> i32 {
    // SAFETY: the call takes numbers.
    let found = answer(unsafe { libc::syscall(libc::SYS_fcntl, fd, F_GET_SEALS, 0) });
    found.map_or(F_SEAL_SEAL, |seals| seals as i32)
}

/// Returns a file and its length, unless it is no regular one.
#[must_use]
pub fn file_of(fd: RawFd) -> Option<(FileId, u64)> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills the local, for which zeros are valid too.
    let status = unsafe {
        match libc::fstat(fd, status.as_mut_ptr()) {
            0 => status.assume_init(),
            _ => return None,
        }
    };
    let id = FileId { device: status.st_dev, inode: status.st_ino };
    let is_regular = status.st_mode & libc::S_IFMT == libc::S_IFREG;
    is_regular.then_some((id, status.st_size.unsigned_abs()))
}

/// Returns the size of the pages of a file on hugetlbfs.
#[must_use]
pub fn huge_page_of(fd: RawFd) -> Option<usize> {
    let mut told = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel fills the local, for which zeros are valid too.
    let told = unsafe {
        match libc::fstatfs(fd, told.as_mut_ptr()) {
            0 => told.assume_init(),
            _ => return None,
        }
    };
    (told.f_type == libc::HUGETLBFS_MAGIC).then_some(told.f_bsize as usize)
}

/// Returns a copy of a descriptor, with a number of at least `least` if there is one.
#[must_use]
pub fn copy_above(fd: RawFd, least: i32) -> Option<RawFd> {
    let copy = |least: i32| {
        // SAFETY: the call takes numbers.
        answer(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, least) })
    };
    copy(least).or_else(|_| copy(0)).ok().map(|fd| fd as RawFd)
}

/// Opens another file at the number of a descriptor, which keeps its `FD_CLOEXEC`.
///
/// # Safety
/// The descriptor `to` is the caller's.
pub unsafe fn replace(from: RawFd, to: RawFd) -> Answer {
    // SAFETY: the call takes numbers.
    let flags = answer(unsafe { libc::syscall(libc::SYS_fcntl, to, libc::F_GETFD) })?;
    let is_closed = flags as i32 & libc::FD_CLOEXEC != 0;
    // SAFETY: the caller keeps the contract.
    unsafe { dup3(from, to, if is_closed { libc::O_CLOEXEC } else { 0 }) }
}

/// sendmsg(2).
///
/// # Safety
/// See sendmsg(2).
pub unsafe fn sendmsg(socket: RawFd, message: usize, flags: i32) -> Answer {
    // SAFETY: the caller keeps the contract.
    answer(unsafe { libc::syscall(libc::SYS_sendmsg, socket, message, flags) })
}

/// Calls `each` for each descriptor that a message carries.
///
/// # Safety
/// The message is as for sendmsg(2).
pub unsafe fn each_sent(message: usize, mut each: impl FnMut(RawFd)) {
    let message = std::ptr::with_exposed_provenance::<libc::msghdr>(message);
    // SAFETY: the caller keeps the contract; the kernel reads the same bytes.
    unsafe {
        if message.is_null() || (*message).msg_control.is_null() {
            return;
        }
        let mut part = libc::CMSG_FIRSTHDR(message);
        while !part.is_null() {
            let is_files =
                (*part).cmsg_level == libc::SOL_SOCKET && (*part).cmsg_type == libc::SCM_RIGHTS;
            let (from, end) = (libc::CMSG_DATA(part), part.cast::<u8>().add((*part).cmsg_len));
            let count = end.offset_from(from).max(0) as usize / size_of::<RawFd>();
            for nth in 0..if is_files { count } else { 0 } {
                each(from.cast::<RawFd>().add(nth).read_unaligned());
            }
            part = libc::CMSG_NXTHDR(message, part);
        }
    }
}
