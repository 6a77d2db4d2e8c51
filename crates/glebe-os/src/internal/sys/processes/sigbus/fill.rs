//! Fills a missing page in a signal handler: in an armed range by ioctls of userfaultfd, in a
//! mapped file by private memory.
//!
//! The functions take a bare descriptor, allocate nothing and return errors as numbers. Lengths are
//! bytes, multiples of the page. A page appears whole or not at all, so nobody reads half of it.
//! Source: ioctl_userfaultfd(2), `UFFDIO_ZEROPAGE`, `UFFDIO_COPY` (Linux 4.3).
//!
//! # Safety
//! The kernel checks both ranges and writes only missing pages of ranges registered with the
//! descriptor. The structures have its layout.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

/// `_UFFDIO` ioctl type.
const TYPE: u32 = 0xAA;
/// Most retries after EAGAIN or EINTR. EAGAIN means that another thread is changing the mappings.
const TRIES: u32 = 1000;

/// `struct uffdio_zeropage`.
#[repr(C)]
struct ZeroPage {
    start: u64,
    len: u64,
    mode: u64,
    /// Written by the kernel: bytes done, or a negative error number.
    done: i64,
}

/// `struct uffdio_copy`.
#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    /// Like `ZeroPage::done`.
    done: i64,
}

const _: () = assert!(size_of::<ZeroPage>() == 32 && size_of::<Copy>() == 40);

/// Fills missing pages with zeros and keeps present ones.
///
/// # Errors
/// The error number: ENOENT if the range is not (or no longer) registered, EINVAL if it is not
/// whole pages, ENOMEM, EAGAIN, and others of ioctl_userfaultfd(2).
///
/// # Safety
/// `fd` is a userfaultfd, `page` is the range's page size, and the program has no reference to the
/// missing pages.
pub unsafe fn zero(fd: RawFd, to: usize, len: usize, page: usize) -> Result<(), i32> {
    fill(len, page, |at, len| {
        let (start, len) = (to.wrapping_add(at) as u64, len as u64);
        let mut arg = ZeroPage { start, len, mode: 0, done: 0 };
        // SAFETY: the kernel reads and writes one `ZeroPage`.
        let rc = unsafe { libc::ioctl(fd, libc::_IOWR::<ZeroPage>(TYPE, 4), &mut arg) };
        (rc, arg.done)
    })
}

/// Fills missing pages with a copy of `from` and keeps present ones.
///
/// # Errors
/// The errors of [`zero`]; EFAULT if `from` is missing or unmapped.
///
/// # Safety
/// See [`zero`].
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
        // SAFETY: the kernel reads and writes one `Copy`, and checks its addresses.
        let rc = unsafe { libc::ioctl(fd, libc::_IOWR::<Copy>(TYPE, 3), &mut arg) };
        (rc, arg.done)
    })
}

/// Replaces a mapping by private zeros.
///
/// # Errors
/// The error number: ENOMEM for too many mappings.
///
/// # Safety
/// The range is whole pages of the caller's mapping, and the program has no reference to it except
/// to atomics. No other process sees what is written there afterwards.
pub unsafe fn replace(at: usize, len: usize) -> Result<(), i32> {
    let (access, fixed) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
    let flags = fixed | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let addr = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: the caller guarantees it.
    let mapped = unsafe { libc::mmap(addr, len, access, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        // SAFETY: errno is this thread's own.
        return Err(unsafe { *libc::__errno_location() });
    }
    Ok(())
}

/// Calls `once` with the offset and length of the rest until all is done. The kernel fills pages of
/// one VMA per call: if the program has split the range, this tries shorter lengths.
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
        // SAFETY: errno is this thread's own.
        let errno = unsafe { *libc::__errno_location() };
        match (errno, usize::try_from(done)) {
            (libc::EAGAIN, Ok(some @ 1..)) => at += some,
            (libc::EAGAIN | libc::EINTR, _) if tries < TRIES => tries += 1,
            // Another thread was first: its page is as good.
            (libc::EEXIST, _) => at += page,
            (libc::ENOENT, _) if now > page => most = shorter(now, page),
            _ => return Err(errno),
        }
    }
    Ok(())
}

/// Returns half of `len`, in whole pages, to try after a refusal.
pub fn shorter(len: usize, page: usize) -> usize {
    (len / 2 / page * page).max(page)
}

/// Returns the length to try after a success.
pub fn longer(len: usize) -> usize {
    len.saturating_mul(2)
}
