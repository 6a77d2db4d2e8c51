//! Wraps mmap(2), mprotect(2) and munmap(2).
//!
//! Hugetlb mappings lack `MAP_NORESERVE`, so the call reserves their pages or fails.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use crate::error::OsError;
use crate::internal::sync::{Backoff, StaticMutex};
use crate::internal::sys::call::{answer, call};
use crate::internal::sys::machine::limits;
use crate::internal::sys::memory::madvise::{advise, Advice};
use crate::internal::sys::page_size;
use crate::internal::sys::processes::fork::ForkGuard;
use crate::units::{Bytes, PageSize};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    Ordinary,
    /// Reserved addresses: a touch raises SIGSEGV.
    Addresses,
    Hugetlb(PageSize),
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backing::Ordinary => f.write_str("ordinary memory"),
            Backing::Addresses => f.write_str("addresses alone"),
            Backing::Hugetlb(size) => write!(f, "huge pages of {}", size.bytes()),
        }
    }
}

const NO_ACCESS: libc::c_int = libc::PROT_NONE;
const ALL_ACCESS: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const ADDRESSES: libc::c_int = ANONYMOUS | libc::MAP_NORESERVE;

pub(in crate::internal::sys) fn span(addr: usize, len: Bytes) -> String {
    format!("{addr:#x}, {len}")
}

/// # Safety
/// With `MAP_FIXED`, the caller owns `addr..addr + len`, and nothing refers to it.
#[inline]
unsafe fn raw(
    addr: usize,
    len: Bytes,
    (access, flags): (libc::c_int, libc::c_int),
    file: Option<(&File, Bytes)>,
    subject: impl FnOnce() -> String,
) -> Result<usize, OsError> {
    let errno = io::Error::from_raw_os_error;
    let at = ptr::with_exposed_provenance_mut(addr);
    let (file, offset) = file.map_or((-1, 0), |(file, at)| (file.as_raw_fd(), at.get()));
    let made = usize::try_from(len.get()).map_err(|_| errno(libc::ENOMEM)).and_then(|len| {
        let offset = libc::off_t::try_from(offset).map_err(|_| errno(libc::EOVERFLOW))?;
        answer("mmap", || {
            // SAFETY: the address is unused, or the caller owns the range.
            let mapped = unsafe { libc::mmap(at, len, access, flags, file, offset) };
            mapped.expose_provenance() as isize
        })
    });
    let refused = |source| limits::refused("mmap", subject(), source);
    made.map(|mapped| mapped as usize).map_err(refused)
}

pub fn map(len: Bytes, backing: Backing) -> Result<usize, OsError> {
    let how = match backing {
        Backing::Ordinary => (ALL_ACCESS, ANONYMOUS),
        Backing::Addresses => (NO_ACCESS, ADDRESSES),
        Backing::Hugetlb(size) => {
            let size = (size.shift() as i32) << libc::MAP_HUGE_SHIFT; // a shift is below 64
            (ALL_ACCESS, ANONYMOUS | libc::MAP_HUGETLB | size)
        }
    };
    unmap_left();
    // SAFETY: the kernel chooses an unused address.
    unsafe { raw(0, len, how, None, || format!("{len}, {backing}")) }
}

pub fn set_aside(len: Bytes, align: PageSize) -> Result<usize, OsError> {
    aside(len, align, (NO_ACCESS, ADDRESSES))
}

fn aside(len: Bytes, align: PageSize, how: (libc::c_int, libc::c_int)) -> Result<usize, OsError> {
    let too_long =
        || OsError::new("mmap", len.to_string(), io::Error::from_raw_os_error(libc::ENOMEM));
    let whole = len.checked_add(align.bytes()).ok_or_else(too_long)?;
    unmap_left();
    let subject = || format!("{whole}, {}", Backing::Addresses);
    // SAFETY: the kernel chooses unused addresses, and nothing else uses them.
    unsafe { raw(0, whole, how, None, subject).map(|base| cut(base, whole, len, align)) }
}

/// Unmaps a range except `len` bytes at its first multiple of `align`, and returns their address.
///
/// # Safety
/// See [`unmap`].
pub unsafe fn cut(base: usize, whole: Bytes, len: Bytes, align: PageSize) -> usize {
    let start = base.next_multiple_of(align.bytes().as_usize());
    // SAFETY: the caller keeps the contract.
    unsafe {
        unmap_between(base, start);
        unmap_between(start + len.as_usize(), base + whole.as_usize());
    }
    start
}

/// # Safety
/// See [`unmap`].
pub unsafe fn unmap_between(from: usize, to: usize) {
    if from < to {
        // SAFETY: the caller keeps the contract.
        let _ = unsafe { unmap(from, Bytes::new((to - from) as u64)) };
    }
}

/// Reserves addresses at `addr`. Fails if something is mapped there.
pub fn set_aside_at(addr: usize, len: Bytes) -> Result<(), OsError> {
    let how = (NO_ACCESS, ADDRESSES | libc::MAP_FIXED_NOREPLACE);
    let subject = || format!("{addr:#x}, {len}, addresses alone");
    // SAFETY: the call replaces no mapping.
    unsafe { raw(addr, len, how, None, subject) }.map(drop)
}

/// Maps zeros at `addr`. Fails if something is mapped there.
pub fn zeros_at(addr: usize, len: Bytes) -> Result<(), OsError> {
    let how = (ALL_ACCESS, ADDRESSES | libc::MAP_FIXED_NOREPLACE);
    // SAFETY: the call replaces no mapping.
    unsafe { raw(addr, len, how, None, || format!("{addr:#x}, {len}, zeros")) }.map(drop)
}

/// Turns a range into reserved addresses, which read as zero if `readable`. A concurrent reader
/// sees the old mapping or the new one. On an error the old mapping stays.
///
/// # Safety
/// The caller owns the range, and nobody writes to it or relies on its bytes.
pub unsafe fn clear(addr: usize, len: Bytes, readable: bool) -> Result<(), OsError> {
    let how = (access_of(readable), ADDRESSES | libc::MAP_FIXED);
    // SAFETY: the caller keeps the contract.
    unsafe { raw(addr, len, how, None, || format!("{addr:#x}, {len}, to clear it")) }.map(drop)
}

fn access_of(readable: bool) -> libc::c_int {
    if readable {
        libc::PROT_READ
    } else {
        NO_ACCESS
    }
}

/// Makes reserved addresses readable or inaccessible. Fails at the limit on mappings, unless
/// mappings merge.
///
/// # Safety
/// The caller owns the reserved addresses.
pub unsafe fn make_readable(addr: usize, len: Bytes, readable: bool) -> Result<(), OsError> {
    // SAFETY: the caller keeps the contract.
    unsafe { protect(addr, len, access_of(readable)) }
}

/// # Safety
/// The caller owns the range.
pub(in crate::internal::sys) unsafe fn make_writable(
    addr: usize,
    len: Bytes,
) -> Result<(), OsError> {
    // SAFETY: the caller keeps the contract.
    unsafe { protect(addr, len, ALL_ACCESS) }
}

/// # Safety
/// The caller owns the range, and nobody uses it in a way that is now forbidden.
pub(in crate::internal::sys) unsafe fn protect(
    addr: usize,
    len: Bytes,
    access: libc::c_int,
) -> Result<(), OsError> {
    let at = ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the caller keeps the contract.
    let made = answer("mprotect", || unsafe { libc::mprotect(at, len.as_usize(), access) });
    made.map(drop).map_err(|source| limits::refused("mprotect", span(addr, len), source))
}

/// Maps ordinary memory at a multiple of `align`. Cuts surplus addresses before it maps memory,
/// because a process that locks its memory populates all that it maps.
///
/// Before Linux 6.12, mmap(MAP_FIXED) unmaps the old addresses even if it fails, and another thread
/// can get them. mprotect keeps them. It charges the memory, unless the addresses were mapped with
/// `MAP_NORESERVE`.
pub fn map_aligned(len: Bytes, align: PageSize) -> Result<usize, OsError> {
    let start = aside(len, align, (NO_ACCESS, ANONYMOUS))?;
    // SAFETY: nothing else uses the new addresses.
    unsafe {
        let at = ptr::with_exposed_provenance_mut(start);
        let made = answer("mprotect", || libc::mprotect(at, len.as_usize(), ALL_ACCESS));
        made.map(|_| start).map_err(|source| {
            let _ = unmap(start, len);
            limits::refused("mmap", format!("{len}, {}", Backing::Ordinary), source)
        })
    }
}

/// Maps part of a file, shared, and fills the page tables.
pub fn map_file(file: &File, offset: Bytes, len: Bytes) -> Result<usize, OsError> {
    map_file_as(file, offset, len, libc::MAP_POPULATE)
}

/// Maps part of a file, shared, without filling the page tables.
pub fn map_file_lazily(file: &File, offset: Bytes, len: Bytes) -> Result<usize, OsError> {
    map_file_as(file, offset, len, 0)
}

fn map_file_as(file: &File, offset: Bytes, len: Bytes, flag: i32) -> Result<usize, OsError> {
    let how = (ALL_ACCESS, libc::MAP_SHARED | flag);
    let subject = || format!("{len} of a file from {offset} on");
    // SAFETY: the kernel chooses an unused address.
    unsafe { raw(0, len, how, Some((file, offset)), subject) }
}

/// Maps part of a file, shared, at `addr`. If the file refuses, the range may be unmapped, and
/// another thread can get the addresses: call [`try_file`] before.
///
/// # Safety
/// See [`unmap`].
#[inline]
pub unsafe fn map_file_over(
    file: &File,
    offset: Bytes,
    len: Bytes,
    addr: usize,
) -> Result<(), OsError> {
    let how = (ALL_ACCESS, libc::MAP_SHARED | libc::MAP_FIXED);
    let subject = || format!("{addr:#x}, {len} of a file from {offset} on");
    // SAFETY: the caller keeps the contract.
    unsafe { raw(addr, len, how, Some((file, offset)), subject) }.map(drop)
}

/// Maps part of a file elsewhere for a moment. The kernel then has hugetlb pages for the part until
/// it is removed from the file, so [`map_file_over`] does not fail for want of pages. Needs `len`
/// free addresses.
pub fn try_file(file: &File, offset: Bytes, len: Bytes) -> Result<(), OsError> {
    let subject = || format!("{len} of a file from {offset} on");
    // Without access, so that nothing populates the pages, also under mlockall(2).
    let (how, what) = ((NO_ACCESS, libc::MAP_SHARED), Some((file, offset)));
    // SAFETY: nothing else uses the new mapping.
    unsafe { unmap(raw(0, len, how, what, subject)?, len) }
}

/// Maps a file without access, only to keep it open.
pub(in crate::internal::sys) fn map_unreadable(file: &File, len: Bytes) -> Result<usize, OsError> {
    let (how, what) = ((NO_ACCESS, libc::MAP_SHARED), Some((file, Bytes::ZERO)));
    unmap_left();
    // SAFETY: nothing else uses the new mapping.
    unsafe {
        let addr = raw(0, len, how, what, || format!("{len} of a file, to hold it"))?;
        let kept = advise(addr, len, Advice::DontFork);
        if kept.is_err() {
            let _ = unmap(addr, len);
        }
        kept.map(|()| addr)
    }
}

/// Maps a page that reads as zeros in a forked child (Linux 4.14).
pub(in crate::internal::sys) fn wiped_page() -> Result<usize, OsError> {
    let len = page_size().bytes();
    let addr = map(len, Backing::Ordinary)?;
    // SAFETY: nothing else uses the new page.
    unsafe {
        let wiped = advise(addr, len, Advice::WipeOnFork);
        if wiped.is_err() {
            let _ = munmap(addr, len);
        }
        wiped.map(|()| addr)
    }
}

/// Unmaps a range. If the kernel refuses, frees the range's pages, and later calls try again.
///
/// # Safety
/// The caller owns the mapping, and nothing refers to it any more.
pub unsafe fn unmap(addr: usize, len: Bytes) -> Result<(), OsError> {
    unmap_left();
    // SAFETY: the caller keeps the contract.
    unsafe {
        let unmapped = munmap(addr, len);
        if unmapped.is_err() {
            let _ = advise(addr, len, Advice::DontNeed);
            leave(Left { addr, len, guard: ForkGuard::new() });
        }
        unmapped
    }
}

/// Unmaps a range once.
///
/// # Safety
/// See [`unmap`].
pub(in crate::internal::sys) unsafe fn munmap(addr: usize, len: Bytes) -> Result<(), OsError> {
    let at = ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the caller keeps the contract.
    call("munmap", || span(addr, len), || unsafe { libc::munmap(at, len.as_usize()) })
}

#[derive(Debug)]
struct Left {
    addr: usize,
    len: Bytes,
    guard: ForkGuard,
}

static LEFT: StaticMutex<Vec<Left>> = StaticMutex::new(Vec::new());

/// Most attempts of [`leave`], about 0.1 s in all.
const LEAVE_TRIES: u32 = 100;

/// Keeps a range for [`unmap_left`]. Gives up after a while, because in a forked child the lock's
/// owner may not exist.
fn leave(left: Left) {
    let mut backoff = Backoff::default();
    for _ in 0..LEAVE_TRIES {
        if let Ok(mut all) = LEFT.try_lock() {
            return all.push(left);
        }
        backoff.wait();
    }
}

/// Unmaps the ranges in [`LEFT`], unless another thread has the lock. A forked child only forgets
/// its parent's ranges, because other memory may be there.
fn unmap_left() {
    let Ok(mut all) = LEFT.try_lock() else { return };
    // SAFETY: the owner gave the range up, and the range has stayed mapped since.
    all.retain(|left| !left.guard.is_child() && unsafe { munmap(left.addr, left.len) }.is_err());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::internal::sync::lock;
    use glebe_testing::real_time;

    #[test]
    fn a_real_time_thread_leaves_a_range_while_another_has_the_lock() {
        let len = page_size().bytes();
        let hold = |inside: &dyn Fn()| {
            let _all = lock(&LEFT);
            inside();
        };
        let leaves = || {
            let addr = map(len, Backing::Ordinary).unwrap();
            leave(Left { addr, len, guard: ForkGuard::new() });
            assert_eq!(lock(&LEFT).len(), 1, "the range is lost");
            unmap_left();
            assert_eq!(lock(&LEFT).len(), 0, "the range stays mapped");
        };
        let name = "internal::sys::memory::mmap::tests::\
            a_real_time_thread_leaves_a_range_while_another_has_the_lock";
        real_time::waits(name, hold, leaves);
    }
}
