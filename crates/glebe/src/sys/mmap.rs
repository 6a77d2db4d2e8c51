//! `mmap` and `munmap`: private anonymous memory, ordinary or of the hugetlb pool, and addresses.
//!
//! Lengths are in bytes. A hugetlb mapping is made without `MAP_NORESERVE`, so its pages are set
//! aside by the call or the call fails. Source: mmap(2).
//!
//! # Safety
//! Mapping at an address of the kernel's choice touches nobody's memory; unmapping does, and is
//! an `unsafe fn`.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ptr;

use crate::error::OsError;
use crate::sync::{Backoff, StaticMutex};
use crate::sys::fault::point;
use crate::sys::fork::ForkGuard;
use crate::sys::limits::refused;
use crate::sys::madvise::{advise, Advice};
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

/// Maps `len` bytes, readable, writable, private and anonymous; returns the address.
///
/// # Errors
/// What mmap(2) refuses: no such pool, a pool with too few free pages, a limit.
pub fn map(len: Bytes, backing: Backing) -> Result<usize, OsError> {
    let mut flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    match backing {
        Backing::Ordinary => {}
        Backing::Addresses => flags |= libc::MAP_NORESERVE,
        Backing::Hugetlb(size) => {
            // A shift is below 64.
            let shift = size.shift() as i32;
            flags |= libc::MAP_HUGETLB | (shift << libc::MAP_HUGE_SHIFT);
        }
    }
    let protection = match backing {
        Backing::Addresses => libc::PROT_NONE,
        _ => libc::PROT_READ | libc::PROT_WRITE,
    };
    let refused = |source| refused("mmap", format!("{len}, {backing}"), source);
    let bytes = usize::try_from(len.get())
        .map_err(|_| refused(io::Error::from_raw_os_error(libc::ENOMEM)))?;
    unmap_left();
    point("mmap").map_err(refused)?;
    // SAFETY: a null hint without MAP_FIXED makes the kernel choose an address not in use.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(refused(io::Error::last_os_error()));
    }
    Ok(at.expose_provenance())
}

/// Makes a mapped range addresses alone again. Where that is refused, what was there still is.
///
/// # Errors
/// What mmap(2) refuses: too many mappings.
///
/// # Safety
/// As [`unmap`].
pub(crate) unsafe fn clear(addr: usize, len: Bytes) -> Result<(), OsError> {
    let at = ptr::with_exposed_provenance_mut(addr);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let made = point("mmap").and_then(|()| {
        // SAFETY: passed on to the caller.
        match unsafe { libc::mmap(at, len.as_usize(), libc::PROT_NONE, flags, -1, 0) } {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    });
    made.map_err(|source| OsError::new("mmap", format!("{addr:#x}, {len}, to clear it"), source))
}

/// Makes addresses readable, so that they are a mapping of their own, or addresses alone again.
///
/// # Errors
/// What mprotect(2) refuses: too many mappings, never where two become one.
///
/// # Safety
/// The range is the caller's own, of addresses alone.
pub(crate) unsafe fn make_readable(addr: usize, len: Bytes, readable: bool) -> Result<(), OsError> {
    let at = ptr::with_exposed_provenance_mut(addr);
    let access = if readable { libc::PROT_READ } else { libc::PROT_NONE };
    let made = point("mprotect").and_then(|()| {
        // SAFETY: passed on to the caller.
        match unsafe { libc::mprotect(at, len.as_usize(), access) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    });
    made.map_err(|source| OsError::new("mprotect", format!("{addr:#x}, {len}"), source))
}

/// Maps `len` bytes of ordinary memory at a multiple of `align`. More addresses than `len` are
/// taken for a moment, but no more memory, which a process may be locking.
///
/// # Errors
/// As [`map`].
pub fn map_aligned(len: Bytes, align: PageSize) -> Result<usize, OsError> {
    let step = align.bytes();
    let Some(whole) = len.checked_add(step) else {
        let source = io::Error::from_raw_os_error(libc::ENOMEM);
        return Err(OsError::new("mmap", len.to_string(), source));
    };
    let at = map(whole, Backing::Addresses)?;
    let start = at.next_multiple_of(step.as_usize());
    let (end, whole_end) = (start + len.as_usize(), at + whole.as_usize());
    // SAFETY: both ends lie inside the mapping just made, of which nobody else knows. What cannot
    // be unmapped now holds no page, and is tried again.
    unsafe {
        if start > at {
            let _ = unmap(at, Bytes::new((start - at) as u64));
        }
        if whole_end > end {
            let _ = unmap(end, Bytes::new((whole_end - end) as u64));
        }
        let made = map_over(start, len);
        if made.is_err() {
            let _ = unmap(start, len);
        }
        made.map(|()| start)
    }
}

/// Maps `len` bytes of ordinary memory over addresses.
///
/// # Safety
/// The range is the caller's own, of addresses alone.
unsafe fn map_over(addr: usize, len: Bytes) -> Result<(), OsError> {
    let at = ptr::with_exposed_provenance_mut(addr);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let made = point("mmap").and_then(|()| {
        // SAFETY: passed on to the caller.
        match unsafe { libc::mmap(at, len.as_usize(), access, flags, -1, 0) } {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    });
    made.map_err(|source| refused("mmap", format!("{len}, {:?}", Backing::Ordinary), source))
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
    let unmapped =
        point("munmap").and_then(|()| match unsafe { libc::munmap(at, len.as_usize()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    unmapped.map_err(|source| OsError::new("munmap", format!("{addr:#x}, {len}"), source))
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
    use crate::sys::{page_size, real_time};

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
