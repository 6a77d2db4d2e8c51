//! Reserves address space, and commits it part by part.
//!
//! Reserved addresses count only towards `RLIMIT_AS`, not towards `RLIMIT_DATA` or promised memory
//! (`vm.overcommit_memory=2`), and mlockall(2) neither populates nor locks them. Committed memory
//! counts. If the process locks its memory, each page is locked at its first touch.
//!
//! Lengths are bytes, whole pages. Source: mmap(2), mprotect(2), mlock(2), mlockall(2).
//!
//! # Safety
//! A fresh mapping has no other user. Only the owner of a reserved range commits it.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use crate::error::OsError;
use crate::internal::sys::call::{answer, call};
use crate::internal::sys::machine::limits;
use crate::internal::sys::memory::madvise::{advise, Advice};
use crate::internal::sys::memory::mmap::{
    clear, make_readable, make_writable, map, span, unmap, Backing,
};
use crate::internal::sys::page_size;
use crate::units::Bytes;

/// A reserved range. `locks` is true if committed pages must be locked.
#[derive(Clone, Copy, Debug)]
pub struct ReservedRange {
    pub addr: usize,
    pub locks: bool,
}

/// Reserves `len` bytes of addresses, which read as zeros if `readable`. Other touches raise
/// SIGSEGV.
///
/// # Errors
/// Fails if mmap(2) does: a limit on addresses, or on locked memory if the process locks its
/// memory.
pub fn reserve(len: Bytes, readable: bool) -> Result<ReservedRange, OsError> {
    let addr = map(len, Backing::Addresses)?;
    // SAFETY: the range is new, empty and unknown to other code.
    unsafe {
        let locks = is_locked(addr);
        let made = if locks { unlock(addr, len) } else { Ok(()) };
        let made =
            made.and_then(|()| if readable { make_readable(addr, len, true) } else { Ok(()) });
        if let Err(error) = made {
            let _ = unmap(addr, len);
            return Err(error);
        }
        Ok(ReservedRange { addr, locks })
    }
}

/// Maps memory that will stay mostly untouched; returns its address. Pages are locked at their
/// first touch if the process locks its memory.
///
/// # Errors
/// Fails if mmap(2) or mlock2(2) does: a limit on addresses, or on locked memory, where all of
/// `len` counts.
pub fn sparse(len: Bytes) -> Result<usize, OsError> {
    let ReservedRange { addr, locks } = reserve(len, false)?;
    // SAFETY: the range is new, empty and unknown to other code.
    unsafe {
        let made = commit(addr, len, locks);
        if made.is_err() {
            let _ = unmap(addr, len);
        }
        made.map(|()| addr)
    }
}

/// Makes reserved addresses readable and writable.
///
/// # Errors
/// Fails if mprotect(2) or mlock2(2) does: a limit. The range may be writable even so.
///
/// # Safety
/// The caller reserved the range and has not committed it: the call drops its first page.
pub unsafe fn commit(addr: usize, len: Bytes, locks: bool) -> Result<(), OsError> {
    // SAFETY: the caller owns the range, which is empty.
    unsafe {
        // mprotect would populate a locked range. The process may have locked it since `reserve`.
        let locks = locks || is_locked(addr);
        if locks {
            unlock(addr, len)?;
        }
        make_writable(addr, len)?;
        if locks {
            lock_as_it_comes(addr, len)?;
        }
    }
    Ok(())
}

/// Turns a range back into addresses that read as zeros, and frees its pages. A concurrent reader
/// finds the old bytes or zeros.
///
/// # Errors
/// Fails if mmap(2) does: too many mappings. The range then keeps its mapping.
///
/// # Safety
/// The caller owns the range; no thread writes there or relies on its bytes.
pub unsafe fn vacate(addr: usize, len: Bytes, locks: bool) -> Result<(), OsError> {
    // SAFETY: the caller owns the range and gives up its bytes.
    unsafe { clear(addr, len, true) }?;
    if locks {
        // SAFETY: the caller owns the range. A failure leaves it locked, without memory.
        let _ = unsafe { unlock(addr, len) };
    }
    Ok(())
}

/// Returns the address of a test page, unmapped again, if the process locks what it maps.
///
/// # Errors
/// Fails if mmap(2) does.
pub fn locked_page() -> Result<Option<usize>, OsError> {
    let page = page_size().bytes();
    let addr = map(page, Backing::Addresses)?;
    // SAFETY: the page is new and unknown to other code.
    unsafe {
        let locks = is_locked(addr);
        let _ = unmap(addr, page);
        Ok(locks.then_some(addr))
    }
}

/// Returns true if a page is locked: madvise(2) drops no locked page.
///
/// # Safety
/// The caller owns the page, which holds nothing.
unsafe fn is_locked(addr: usize) -> bool {
    // SAFETY: the caller owns the empty page.
    let dropped = unsafe { advise(addr, page_size().bytes(), Advice::DontNeed) };
    dropped.is_err_and(|error| error.errno() == Some(libc::EINVAL))
}

/// Unlocks a range.
///
/// # Safety
/// The caller owns the range.
pub unsafe fn unlock(addr: usize, len: Bytes) -> Result<(), OsError> {
    let at = ptr::with_exposed_provenance(addr);
    // SAFETY: the caller owns the range, and munlock keeps its contents.
    call("munlock", || span(addr, len), || unsafe { libc::munlock(at, len.as_usize()) })
}

/// Locks present pages now, and others at their first touch.
///
/// # Safety
/// The caller owns the range.
pub unsafe fn lock(addr: usize, len: Bytes) -> Result<(), OsError> {
    // SAFETY: the caller owns the range.
    unsafe { lock_as_it_comes(addr, len) }
}

unsafe fn lock_as_it_comes(addr: usize, len: Bytes) -> Result<(), OsError> {
    let at = ptr::with_exposed_provenance(addr);
    let done = answer("mlock2", || {
        // SAFETY: the caller owns the range, and mlock2 keeps its contents.
        unsafe { libc::mlock2(at, len.as_usize(), libc::MLOCK_ONFAULT) }
    });
    done.map(drop).map_err(|source| {
        // Other calls report the limit on locked memory as EAGAIN.
        let source = match source.raw_os_error() {
            Some(libc::ENOMEM) => io::Error::from_raw_os_error(libc::EAGAIN),
            _ => source,
        };
        limits::refused("mlock2", span(addr, len), source)
    })
}
