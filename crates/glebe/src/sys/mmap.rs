//! `mmap`, `mprotect` and `munmap`: private anonymous memory, ordinary or of the hugetlb pool,
//! addresses alone, and files.
//!
//! Lengths are in bytes. A hugetlb mapping is made without `MAP_NORESERVE`, so its pages are set
//! aside by the call or the call fails. Source: mmap(2), mprotect(2).
//!
//! # Safety
//! Mapping at an address of the kernel's choice touches nobody's memory; unmapping does, and is
//! an `unsafe fn`.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use crate::error::OsError;
use crate::sync::{Backoff, StaticMutex};
use crate::sys::call::{answer, call};
use crate::sys::fork::ForkGuard;
use crate::sys::limits;
use crate::sys::madvise::{advise, Advice};
use crate::sys::page_size;
use crate::units::{Bytes, PageSize};

/// Which memory a mapping draws from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Ordinary memory in base pages, or transparent huge pages where advised.
    Ordinary,
    /// Addresses alone: a touch is SIGSEGV until something is mapped over them.
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

/// A range as errors name it.
pub(super) fn span(addr: usize, len: Bytes) -> String {
    format!("{addr:#x}, {len}")
}

/// One mmap(2), of a file from an offset where there is one. Addresses without `MAP_FIXED` are the
/// kernel's choice.
///
/// # Safety
/// With `MAP_FIXED`, `addr..addr + len` is the caller's own, and nothing refers to it.
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
            // SAFETY: the kernel chooses an address not in use, or the caller names his own.
            let mapped = unsafe { libc::mmap(at, len, access, flags, file, offset) };
            mapped.expose_provenance() as isize
        })
    });
    let refused = |source| limits::refused("mmap", subject(), source);
    made.map(|mapped| mapped as usize).map_err(refused)
}

/// Maps `len` bytes, readable, writable, private and anonymous; returns the address.
///
/// # Errors
/// What mmap(2) refuses: no such pool, a pool with too few free pages, a limit.
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
    // SAFETY: at an address of the kernel's choice.
    unsafe { raw(0, len, how, None, || format!("{len}, {backing}")) }
}

/// Sets address space aside that can be neither read nor written, at a multiple of `align`.
///
/// # Errors
/// What mmap(2) refuses.
pub fn set_aside(len: Bytes, align: PageSize) -> Result<usize, OsError> {
    let too_long =
        || OsError::new("mmap", len.to_string(), io::Error::from_raw_os_error(libc::ENOMEM));
    let whole = len.checked_add(align.bytes()).ok_or_else(too_long)?;
    let base = map(whole, Backing::Addresses)?;
    // SAFETY: set aside just now, and nobody else knows of it.
    Ok(unsafe { cut(base, whole, len, align) })
}

/// Unmaps what of a range lies before and behind `len` bytes at its first multiple of `align`,
/// whose address this returns. What is refused now is tried again by a later mapping.
///
/// # Safety
/// As [`unmap`].
pub(crate) unsafe fn cut(base: usize, whole: Bytes, len: Bytes, align: PageSize) -> usize {
    let start = base.next_multiple_of(align.bytes().as_usize());
    // SAFETY: passed on to the caller.
    unsafe {
        unmap_between(base, start);
        unmap_between(start + len.as_usize(), base + whole.as_usize());
    }
    start
}

/// Unmaps from an address up to another; what cannot be unmapped now is tried again.
///
/// # Safety
/// As [`unmap`].
pub(crate) unsafe fn unmap_between(from: usize, to: usize) {
    if from < to {
        // SAFETY: passed on to the caller.
        let _ = unsafe { unmap(from, Bytes::new((to - from) as u64)) };
    }
}

/// Sets address space aside at `addr`, if nothing is mapped there.
///
/// # Errors
/// What mmap(2) refuses: something is mapped there, the address is no multiple of a page.
pub fn set_aside_at(addr: usize, len: Bytes) -> Result<(), OsError> {
    let how = (NO_ACCESS, ADDRESSES | libc::MAP_FIXED_NOREPLACE);
    let subject = || format!("{addr:#x}, {len}, addresses alone");
    // SAFETY: over nothing that is mapped.
    unsafe { raw(addr, len, how, None, subject) }.map(drop)
}

/// Maps zeros at `addr`, readable and writable, if nothing is mapped there.
///
/// # Errors
/// What mmap(2) refuses: something is mapped there, the address is no multiple of a page.
pub(crate) fn zeros_at(addr: usize, len: Bytes) -> Result<(), OsError> {
    let how = (ALL_ACCESS, ADDRESSES | libc::MAP_FIXED_NOREPLACE);
    // SAFETY: over nothing that is mapped.
    unsafe { raw(addr, len, how, None, || format!("{addr:#x}, {len}, zeros")) }.map(drop)
}

/// Makes a mapped range addresses alone again, which read as zero where `readable`; the kernel has
/// its pages back. Every reader finds the one or the other. Where that is refused, what was there
/// still is.
///
/// # Errors
/// What mmap(2) refuses: too many mappings.
///
/// # Safety
/// The range is the caller's own, and nobody writes there or relies on its bytes.
pub(crate) unsafe fn clear(addr: usize, len: Bytes, readable: bool) -> Result<(), OsError> {
    let how = (access_of(readable), ADDRESSES | libc::MAP_FIXED);
    // SAFETY: passed on to the caller.
    unsafe { raw(addr, len, how, None, || format!("{addr:#x}, {len}, to clear it")) }.map(drop)
}

fn access_of(readable: bool) -> libc::c_int {
    if readable {
        libc::PROT_READ
    } else {
        NO_ACCESS
    }
}

/// Makes addresses readable, so that they are a mapping of their own, or addresses alone again.
///
/// # Errors
/// What mprotect(2) refuses: too many mappings, never where two become one.
///
/// # Safety
/// The range is the caller's own, of addresses alone.
pub(crate) unsafe fn make_readable(addr: usize, len: Bytes, readable: bool) -> Result<(), OsError> {
    // SAFETY: passed on to the caller.
    unsafe { protect(addr, len, access_of(readable)) }
}

/// Makes a range readable and writable.
///
/// # Safety
/// The range is the caller's own.
pub(super) unsafe fn make_writable(addr: usize, len: Bytes) -> Result<(), OsError> {
    // SAFETY: passed on to the caller.
    unsafe { protect(addr, len, ALL_ACCESS) }
}

/// One mprotect(2).
///
/// # Safety
/// The range is the caller's own, and nobody uses it in a way that is forbidden from now on.
pub(super) unsafe fn protect(addr: usize, len: Bytes, access: libc::c_int) -> Result<(), OsError> {
    let at = ptr::with_exposed_provenance_mut(addr);
    // SAFETY: passed on to the caller.
    let made = answer("mprotect", || unsafe { libc::mprotect(at, len.as_usize(), access) });
    made.map(drop).map_err(|source| limits::refused("mprotect", span(addr, len), source))
}

/// Maps `len` bytes of ordinary memory at a multiple of `align`. More addresses than `len` are
/// taken for a moment, but no more memory, which a process may be locking.
///
/// # Errors
/// As [`map`].
pub fn map_aligned(len: Bytes, align: PageSize) -> Result<usize, OsError> {
    let start = set_aside(len, align)?;
    let how = (ALL_ACCESS, ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: over the addresses set aside just now, of which nobody else knows.
    unsafe {
        let made = raw(start, len, how, None, || format!("{len}, {}", Backing::Ordinary));
        if made.is_err() {
            let _ = unmap(start, len);
        }
        made
    }
}

/// Maps `len` bytes of a file from `offset` on, readable, writable and shared: over whatever is at
/// an address; or, without one, at an address of the kernel's choice, and then the pages that the
/// file has are in the page tables when this returns.
///
/// # Errors
/// What mmap(2) refuses.
///
/// # Safety
/// As [`unmap`], where there is an address.
#[inline]
pub(crate) unsafe fn map_file(
    file: &File,
    offset: Bytes,
    len: Bytes,
    over: Option<usize>,
) -> Result<usize, OsError> {
    let flag = if over.is_some() { libc::MAP_FIXED } else { libc::MAP_POPULATE };
    let how = (ALL_ACCESS, libc::MAP_SHARED | flag);
    let addr = over.unwrap_or(0);
    let subject = || format!("{addr:#x}, {len} of a file from {offset} on");
    // SAFETY: passed on to the caller.
    unsafe { raw(addr, len, how, Some((file, offset)), subject) }
}

/// Maps the first bytes of a file so that no touch reaches them and no forked child has them: for
/// what the mapping itself keeps.
///
/// # Errors
/// What mmap(2) or madvise(2) refuses.
pub(super) fn map_unreadable(file: &File, len: Bytes) -> Result<usize, OsError> {
    let (how, what) = ((NO_ACCESS, libc::MAP_SHARED), Some((file, Bytes::ZERO)));
    unmap_left();
    // SAFETY: at an address of the kernel's choice; then mapped just now, and nobody knows of it.
    unsafe {
        let addr = raw(0, len, how, what, || format!("{len} of a file, to hold it"))?;
        let kept = advise(addr, len, Advice::DontFork);
        if kept.is_err() {
            let _ = unmap(addr, len);
        }
        kept.map(|()| addr)
    }
}

/// A page that is zeros in a forked child; it is never unmapped.
///
/// # Errors
/// What mmap(2) or madvise(2) refuses, as before Linux 4.14.
pub(super) fn wiped_page() -> Result<usize, OsError> {
    let len = page_size().bytes();
    let addr = map(len, Backing::Ordinary)?;
    // SAFETY: mapped just now, and nobody else knows of it.
    unsafe {
        let wiped = advise(addr, len, Advice::WipeOnFork);
        if wiped.is_err() {
            let _ = munmap(addr, len);
        }
        wiped.map(|()| addr)
    }
}

/// Unmaps a range. Where the kernel refuses that, its pages are given back at least, and the next
/// call of [`map`] or of this function unmaps it.
///
/// # Errors
/// What munmap(2) refuses: a range not aligned to its pages, too many mappings.
///
/// # Safety
/// The range is the caller's own mapping and nothing refers to it any more.
pub unsafe fn unmap(addr: usize, len: Bytes) -> Result<(), OsError> {
    unmap_left();
    // SAFETY: passed on to the caller.
    unsafe {
        let unmapped = munmap(addr, len);
        if unmapped.is_err() {
            let _ = advise(addr, len, Advice::DontNeed);
            leave(Left { addr, len, guard: ForkGuard::new() });
        }
        unmapped
    }
}

/// As [`unmap`], but what is refused is left as it is.
///
/// # Safety
/// As [`unmap`].
pub(super) unsafe fn munmap(addr: usize, len: Bytes) -> Result<(), OsError> {
    let at = ptr::with_exposed_provenance_mut(addr);
    // SAFETY: passed on to the caller.
    call("munmap", || span(addr, len), || unsafe { libc::munmap(at, len.as_usize()) })
}

/// A range that could not be unmapped and belongs to nobody else.
#[derive(Debug)]
struct Left {
    addr: usize,
    len: Bytes,
    guard: ForkGuard,
}

static LEFT: StaticMutex<Vec<Left>> = StaticMutex::new(Vec::new());

/// How often [`leave`] tries, in about a tenth of a second: others hold the lock for a system call
/// or a few.
const LEAVE_TRIES: u32 = 100;

/// Keeps a range for the next attempt. Never waits for ever, as a thread would in a child if
/// another stood here at the fork: then the range stays mapped.
fn leave(left: Left) {
    let mut backoff = Backoff::default();
    for _ in 0..LEAVE_TRIES {
        if let Ok(mut all) = LEFT.try_lock() {
            return all.push(left);
        }
        backoff.wait();
    }
}

/// Unmaps what could not be unmapped before. A child drops its parent's entries: what they name
/// may be something else there.
fn unmap_left() {
    let Ok(mut all) = LEFT.try_lock() else { return };
    // SAFETY: an entry is a range whose owner gave it up and which was never unmapped since.
    all.retain(|left| !left.guard.is_child() && unsafe { munmap(left.addr, left.len) }.is_err());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::lock;
    use crate::sys::real_time;

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
        let name = "sys::mmap::tests::a_real_time_thread_leaves_a_range_while_another_has_the_lock";
        real_time::waits(name, hold, leaves);
    }
}
