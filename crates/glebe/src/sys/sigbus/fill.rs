//! Filling a missing page, in a signal handler: of an armed range by two ioctls of userfaultfd; of
//! a file that has lost it by memory of the process's own.
//!
//! Takes a bare descriptor, since a handler owns nothing; allocates nothing and makes no error
//! value but the number. Lengths are in bytes, multiples of the page. A page appears whole or not
//! at all, so nobody reads half of it. Source: ioctl_userfaultfd(2), `UFFDIO_ZEROPAGE`,
//! `UFFDIO_COPY` (Linux 4.3).
//!
//! # Safety
//! The kernel checks both ranges and writes missing pages only, of ranges that the descriptor has
//! registered; the structures are laid out as the kernel's.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

/// `_UFFDIO` ioctl type.
const TYPE: u32 = 0xAA;
/// A change of the mappings is under way in another thread: how often that is met before EAGAIN
/// is the answer.
const TRIES: u32 = 1000;

/// `struct uffdio_zeropage`.
#[repr(C)]
struct ZeroPage {
    start: u64,
    len: u64,
    mode: u64,
    /// Written by the kernel: bytes done, or the error number, negative.
    done: i64,
}

/// `struct uffdio_copy`.
#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    /// As above.
    done: i64,
}

const _: () = assert!(size_of::<ZeroPage>() == 32 && size_of::<Copy>() == 40);

/// Fills missing pages with zeros. A page that is there is kept, the rest is filled.
///
/// # Errors
/// The error number: ENOENT for a range that is not (or no more) registered, EINVAL for one that is
/// not of whole pages, ENOMEM, EAGAIN, and what ioctl_userfaultfd(2) lists besides.
///
/// # Safety
/// The descriptor is a userfaultfd's and `page` the size of a page of the range. In the program no
/// reference to the missing pages exists.
pub unsafe fn zero(fd: RawFd, to: usize, len: usize, page: usize) -> Result<(), i32> {
    fill(len, page, |at, len| {
        let (start, len) = (to.wrapping_add(at) as u64, len as u64);
        let mut arg = ZeroPage { start, len, mode: 0, done: 0 };
        // SAFETY: the kernel reads and writes one `ZeroPage`.
        let rc = unsafe { libc::ioctl(fd, libc::_IOWR::<ZeroPage>(TYPE, 4), &mut arg) };
        (rc, arg.done)
    })
}

/// Fills missing pages with a copy of `from`. A page that is there is kept, the rest is filled.
///
/// # Errors
/// As [`zero`]; EFAULT where `from` is lost or unmapped.
///
/// # Safety
/// As [`zero`].
pub unsafe fn copy(
    fd: RawFd,
    to: usize,
    from: *const u8,
    len: usize,
    page: usize,
) -> Result<(), i32> {
    fill(len, page, |at, len| {
        let (to, from) = (to.wrapping_add(at) as u64, from.addr().wrapping_add(at) as u64);
        let mut arg = Copy { to, from, len: len as u64, mode: 0, done: 0 };
        // SAFETY: the kernel reads and writes one `Copy`, and checks the addresses in it.
        let rc = unsafe { libc::ioctl(fd, libc::_IOWR::<Copy>(TYPE, 3), &mut arg) };
        (rc, arg.done)
    })
}

/// Maps zeros of the process's own in the place of what is mapped.
///
/// # Errors
/// The error number: ENOMEM for too many mappings.
///
/// # Safety
/// The range is whole pages of the caller's mapping, of which nothing in the program is a reference
/// but to atomics; what is written there is seen by nobody else.
pub unsafe fn replace(at: usize, len: usize) -> Result<(), i32> {
    let (access, fixed) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
    let flags = fixed | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let addr = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: passed on to the caller.
    let mapped = unsafe { libc::mmap(addr, len, access, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        // SAFETY: the C library's own word of this thread.
        return Err(unsafe { *libc::__errno_location() });
    }
    Ok(())
}

/// Calls `once` with the offset and length of what is left until nothing is. The kernel fills
/// pages of one mapping in a call: where the program has split it, a part of the length is tried.
fn fill(
    len: usize,
    page: usize,
    mut once: impl FnMut(usize, usize) -> (i32, i64),
) -> Result<(), i32> {
    let (mut at, mut most, mut tries) = (0, len, 0);
    while at < len {
        let now = most.min(len - at);
        let (rc, done) = once(at, now);
        if rc == 0 {
            (at, most) = (at + now, longer(now));
            continue;
        }
        // SAFETY: the C library's own word of this thread, which the call has just set.
        let errno = unsafe { *libc::__errno_location() };
        match (errno, usize::try_from(done)) {
            (libc::EAGAIN, Ok(some @ 1..)) => at += some,
            (libc::EAGAIN | libc::EINTR, _) if tries < TRIES => tries += 1,
            // Somebody else was first: its page is as good.
            (libc::EEXIST, _) => at += page,
            (libc::ENOENT, _) if now > page => most = shorter(now, page),
            _ => return Err(errno),
        }
    }
    Ok(())
}

/// Half of a length, in whole pages, one at least: to be tried where the kernel refuses all of it.
pub(crate) fn shorter(len: usize, page: usize) -> usize {
    (len / 2 / page * page).max(page)
}

/// The length to be tried after one was done.
pub(crate) fn longer(len: usize) -> usize {
    len.saturating_mul(2)
}
