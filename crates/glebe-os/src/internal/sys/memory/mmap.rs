//! Wraps `mmap`, `mprotect` and `munmap` for private anonymous memory (ordinary or hugetlb),
//! reserved addresses and files.
//!
//! Lengths are in bytes. A hugetlb mapping is made without `MAP_NORESERVE`: the call reserves its
//! pages or fails. Source: mmap(2), mprotect(2).
//!
//! # Safety
//! Mapping at an address of the kernel's choice is safe; unmapping is not.
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

/// The memory behind a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Ordinary memory in base pages, or transparent huge pages if advised.
    Ordinary,
    /// Reserved addresses: a touch raises SIGSEGV until something is mapped over them.
    Addresses,
    /// The hugetlb pool of this page size.
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

/// Makes one mmap(2), of a file from an offset if given.
///
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
            // SAFETY: the kernel chooses an unused address, or the caller owns the range.
            let mapped = unsafe { libc::mmap(at, len, access, flags, file, offset) };
            mapped.expose_provenance() as isize
        })
    });
    let refused = |source| limits::refused("mmap", subject(), source);
    made.map(|mapped| mapped as usize).map_err(refused)
}

/// Maps `len` bytes: readable, writable, private, anonymous. Returns the address.
///
/// # Errors
/// If mmap(2) fails: no such pool, too few free pages in the pool, a limit.
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

/// Reserves `len` bytes of addresses at a multiple of `align`.
///
/// # Errors
/// If mmap(2) fails.
pub fn set_aside(len: Bytes, align: PageSize) -> Result<usize, OsError> {
    let too_long =
        || OsError::new("mmap", len.to_string(), io::Error::from_raw_os_error(libc::ENOMEM));
    let whole = len.checked_add(align.bytes()).ok_or_else(too_long)?;
    let base = map(whole, Backing::Addresses)?;
    // SAFETY: nothing else uses the range, reserved just now.
    Ok(unsafe { cut(base, whole, len, align) })
}

/// Unmaps a range except `len` bytes at its first multiple of `align`, whose address it returns. If
/// the kernel refuses, a later mapping tries again.
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

/// Unmaps `from..to`. If the kernel refuses, a later call tries again.
///
/// # Safety
/// See [`unmap`].
pub unsafe fn unmap_between(from: usize, to: usize) {
    if from < to {
        // SAFETY: the caller keeps the contract.
        let _ = unsafe { unmap(from, Bytes::new((to - from) as u64)) };
    }
}

/// Reserves addresses at `addr`, if nothing is mapped there.
///
/// # Errors
/// If mmap(2) fails: something is mapped there, or `addr` is no multiple of a page.
pub fn set_aside_at(addr: usize, len: Bytes) -> Result<(), OsError> {
    let how = (NO_ACCESS, ADDRESSES | libc::MAP_FIXED_NOREPLACE);
    let subject = || format!("{addr:#x}, {len}, addresses alone");
    // SAFETY: the call replaces no mapping.
    unsafe { raw(addr, len, how, None, subject) }.map(drop)
}

/// Maps zeros at `addr`, readable and writable, if nothing is mapped there.
///
/// # Errors
/// If mmap(2) fails: something is mapped there, or `addr` is no multiple of a page.
pub fn zeros_at(addr: usize, len: Bytes) -> Result<(), OsError> {
    let how = (ALL_ACCESS, ADDRESSES | libc::MAP_FIXED_NOREPLACE);
    // SAFETY: the call replaces no mapping.
    unsafe { raw(addr, len, how, None, || format!("{addr:#x}, {len}, zeros")) }.map(drop)
}

/// Frees the pages of a range and turns it into reserved addresses, which read as zero if
/// `readable`. A concurrent reader sees the old mapping or the new one. On an error the old mapping
/// stays.
///
/// # Errors
/// If mmap(2) fails: too many mappings.
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

/// Makes reserved addresses readable, and so a mapping (VMA) of their own, or inaccessible again.
///
/// # Errors
/// If mprotect(2) fails: too many mappings; never if two mappings merge.
///
/// # Safety
/// The caller owns the range of reserved addresses.
pub unsafe fn make_readable(addr: usize, len: Bytes, readable: bool) -> Result<(), OsError> {
    // SAFETY: the caller keeps the contract.
    unsafe { protect(addr, len, access_of(readable)) }
}

/// Allows loads and stores.
///
/// # Safety
/// The caller owns the range.
pub(in crate::internal::sys) unsafe fn make_writable(
    addr: usize,
    len: Bytes,
) -> Result<(), OsError> {
    // SAFETY: the caller keeps the contract.
    unsafe { protect(addr, len, ALL_ACCESS) }
}

/// Makes one mprotect(2).
///
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

/// Maps `len` bytes of ordinary memory at a multiple of `align`. Reserves more addresses for a
/// moment, but maps no more memory, since the process may lock all its mappings.
///
/// # Errors
/// See [`map`].
pub fn map_aligned(len: Bytes, align: PageSize) -> Result<usize, OsError> {
    let start = set_aside(len, align)?;
    let how = (ALL_ACCESS, ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: nothing else uses the addresses, reserved just now.
    unsafe {
        let made = raw(start, len, how, None, || format!("{len}, {}", Backing::Ordinary));
        if made.is_err() {
            let _ = unmap(start, len);
        }
        made
    }
}

/// Maps `len` bytes of a file from `offset` on: readable, writable and shared. Replaces whatever is
/// at `over`. Without `over`, the kernel chooses the address and fills the page tables with the
/// pages that the file has.
///
/// # Errors
/// If mmap(2) fails.
///
/// # Safety
/// With `over`, see [`unmap`].
#[inline]
pub unsafe fn map_file(
    file: &File,
    offset: Bytes,
    len: Bytes,
    over: Option<usize>,
) -> Result<usize, OsError> {
    let flag = if over.is_some() { libc::MAP_FIXED } else { libc::MAP_POPULATE };
    let how = (ALL_ACCESS, libc::MAP_SHARED | flag);
    let addr = over.unwrap_or(0);
    let subject = || format!("{addr:#x}, {len} of a file from {offset} on");
    // SAFETY: the caller keeps the contract.
    unsafe { raw(addr, len, how, Some((file, offset)), subject) }
}

/// Maps the first `len` bytes of a file without access and not for forked children, only to keep
/// the file open.
///
/// # Errors
/// If mmap(2) or madvise(2) fails.
pub(in crate::internal::sys) fn map_unreadable(file: &File, len: Bytes) -> Result<usize, OsError> {
    let (how, what) = ((NO_ACCESS, libc::MAP_SHARED), Some((file, Bytes::ZERO)));
    unmap_left();
    // SAFETY: nothing else uses the new mapping, at an address of the kernel's choice.
    unsafe {
        let addr = raw(0, len, how, what, || format!("{len} of a file, to hold it"))?;
        let kept = advise(addr, len, Advice::DontFork);
        if kept.is_err() {
            let _ = unmap(addr, len);
        }
        kept.map(|()| addr)
    }
}

/// Maps a page that reads as zeros in a forked child. It is never unmapped.
///
/// # Errors
/// If mmap(2) or madvise(2) fails, as before Linux 4.14.
pub(in crate::internal::sys) fn wiped_page() -> Result<usize, OsError> {
    let len = page_size().bytes();
    let addr = map(len, Backing::Ordinary)?;
    // SAFETY: nothing else uses the page mapped just now.
    unsafe {
        let wiped = advise(addr, len, Advice::WipeOnFork);
        if wiped.is_err() {
            let _ = munmap(addr, len);
        }
        wiped.map(|()| addr)
    }
}

/// Unmaps a range. If the kernel refuses, its pages are at least freed, and the next call of
/// [`map`] or of this function unmaps it.
///
/// # Errors
/// If munmap(2) fails: a range not aligned to its pages, too many mappings.
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

/// Unmaps a range; if the kernel refuses, leaves it unchanged.
///
/// # Safety
/// See [`unmap`].
pub(in crate::internal::sys) unsafe fn munmap(addr: usize, len: Bytes) -> Result<(), OsError> {
    let at = ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the caller keeps the contract.
    call("munmap", || span(addr, len), || unsafe { libc::munmap(at, len.as_usize()) })
}

/// An unowned range that the kernel refused to unmap.
#[derive(Debug)]
struct Left {
    addr: usize,
    len: Bytes,
    guard: ForkGuard,
}

static LEFT: StaticMutex<Vec<Left>> = StaticMutex::new(Vec::new());

/// Attempts of [`leave`], in about 0.1 s. Others hold the lock for a few system calls.
const LEAVE_TRIES: u32 = 100;

/// Keeps a range for the next attempt. Gives up after a while: in a forked child the lock may
/// belong to a thread that does not exist there.
fn leave(left: Left) {
    let mut backoff = Backoff::default();
    for _ in 0..LEAVE_TRIES {
        if let Ok(mut all) = LEFT.try_lock() {
            return all.push(left);
        }
        backoff.wait();
    }
}

/// Unmaps the ranges that could not be unmapped before. In a forked child the parent's entries may
/// name something else, so they are dropped.
fn unmap_left() {
    let Ok(mut all) = LEFT.try_lock() else { return };
    // SAFETY: the owner gave the range up, and it stayed mapped since.
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
