//! [`reserve`] reserves addresses, and [`commit`] makes parts of them memory.
//!
//! Reserved addresses count only towards `RLIMIT_AS`, and stay unlocked under mlockall(2). If the
//! process locks its memory, each committed page is locked at its first touch. Lengths are bytes,
//! whole pages. Source: mprotect(2), mlock(2), mlockall(2).
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

/// `locks` is true if committed pages must be locked.
#[derive(Clone, Copy, Debug)]
pub struct ReservedRange {
    pub addr: usize,
    pub locks: bool,
}

/// Reserves addresses, which read as zeros if `readable`. Other accesses raise SIGSEGV.
pub fn reserve(len: Bytes, readable: bool) -> Result<ReservedRange, OsError> {
    let addr = map(len, Backing::Addresses)?;
    // SAFETY: nobody else knows the new range.
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

/// Maps memory that stays mostly untouched. Under mlockall(2), the whole length counts as locked.
pub fn sparse(len: Bytes) -> Result<usize, OsError> {
    let ReservedRange { addr, locks } = reserve(len, false)?;
    // SAFETY: nobody else knows the new range.
    unsafe {
        let made = commit(addr, len, locks);
        if made.is_err() {
            let _ = unmap(addr, len);
        }
        made.map(|()| addr)
    }
}

/// Makes reserved addresses readable and writable. After an error, a part may be writable.
///
/// # Safety
/// The caller reserved the range and has not committed it, because the call may drop the first
/// page.
pub unsafe fn commit(addr: usize, len: Bytes, locks: bool) -> Result<(), OsError> {
    // SAFETY: the caller owns the range, which is empty.
    unsafe {
        // mprotect would populate a locked range, and the process may have locked its memory
        // since `reserve`.
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

/// Frees the pages of a range, which then reads as zeros. A concurrent reader finds the old bytes
/// or zeros. On an error nothing changes.
///
/// # Safety
/// The caller owns the range; no thread writes there or relies on its bytes.
pub unsafe fn vacate(addr: usize, len: Bytes, locks: bool) -> Result<(), OsError> {
    // SAFETY: the caller owns the range and gives up its bytes.
    unsafe { clear(addr, len, true) }?;
    if locks {
        // SAFETY: the caller owns the range.
        let _ = unsafe { unlock(addr, len) };
    }
    Ok(())
}

/// Returns a test page's address, for an error message, if the process locks new memory.
pub fn locked_page() -> Result<Option<usize>, OsError> {
    let page = page_size().bytes();
    let addr = map(page, Backing::Addresses)?;
    // SAFETY: nobody else knows the new page.
    unsafe {
        let locks = is_locked(addr);
        let _ = unmap(addr, page);
        Ok(locks.then_some(addr))
    }
}

/// Tests with madvise(2), which refuses a locked page with EINVAL.
///
/// # Safety
/// The caller owns the page, which holds nothing.
unsafe fn is_locked(addr: usize) -> bool {
    // SAFETY: the caller owns the empty page.
    let dropped = unsafe { advise(addr, page_size().bytes(), Advice::DontNeed) };
    dropped.is_err_and(|error| error.errno() == Some(libc::EINVAL))
}

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
