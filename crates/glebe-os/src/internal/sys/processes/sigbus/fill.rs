//! Fills missing pages in a signal handler: by ioctls in a range registered with userfaultfd, by
//! private memory in a mapped file.
//!
//! The functions allocate nothing and return error numbers. Lengths are bytes, multiples of the
//! page. A page appears whole or not at all. Source: ioctl_userfaultfd(2).
#![allow(unsafe_code)]

use std::os::fd::RawFd;

const TYPE: u32 = 0xAA;
/// Most retries after EINTR or EAGAIN.
const TRIES: u32 = 1000;

#[repr(C)]
struct ZeroPage {
    start: u64,
    len: u64,
    mode: u64,
    /// Kernel's result: bytes or negative error number.
    done: i64,
}

#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    done: i64,
}

const _: () = assert!(size_of::<ZeroPage>() == 32 && size_of::<Copy>() == 40);

/// Fills missing pages with zeros. Fails with ENOENT if the range is not registered.
///
/// # Safety
/// `fd` is a userfaultfd, `page` is the range's page size, and the program has no reference to the
/// missing pages.
pub unsafe fn zero(fd: RawFd, to: usize, len: usize, page: usize) -> Result<(), i32> {
    fill(len, page, |at, len| {
        let (start, len) = (to.wrapping_add(at) as u64, len as u64);
        let mut arg = ZeroPage { start, len, mode: 0, done: 0 };
        // SAFETY: the kernel accesses one `ZeroPage`.
        let rc = unsafe { libc::ioctl(fd, libc::_IOWR::<ZeroPage>(TYPE, 4), &mut arg) };
        (rc, arg.done)
    })
}

/// Fills missing pages with a copy of `from`. Fails with EFAULT if a page of `from` is missing.
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
        // SAFETY: the kernel accesses one `Copy`, and checks its addresses.
        let rc = unsafe { libc::ioctl(fd, libc::_IOWR::<Copy>(TYPE, 3), &mut arg) };
        (rc, arg.done)
    })
}

/// Replaces a mapping by zeros that are private to the process.
///
/// # Safety
/// The range is whole pages of the caller's mapping, and the program has no reference to it except
/// to atomics.
pub unsafe fn replace(at: usize, len: usize) -> Result<(), i32> {
    let (access, fixed) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
    let flags = fixed | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let addr = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: the caller keeps the contract.
    let mapped = unsafe { libc::mmap(addr, len, access, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        // SAFETY: errno is this thread's own.
        return Err(unsafe { *libc::__errno_location() });
    }
    Ok(())
}

/// Calls `once` until `len` bytes are filled. The kernel fills pages of one VMA per call, so `fill`
/// tries shorter lengths if the program has split the range.
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
            // Another thread filled this page first.
            (libc::EEXIST, _) => at += page,
            (libc::ENOENT, _) if now > page => most = shorter(now, page),
            _ => return Err(errno),
        }
    }
    Ok(())
}

pub fn shorter(len: usize, page: usize) -> usize {
    (len / 2 / page * page).max(page)
}

pub fn longer(len: usize) -> usize {
    len.saturating_mul(2)
}
