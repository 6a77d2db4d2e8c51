//! Address space that is reserved first, and committed part by part.
//!
//! What is reserved is no memory: it counts neither as data of the process (`RLIMIT_DATA`), nor as
//! promised memory where the machine promises no more than it has (`vm.overcommit_memory=2`), and a
//! process that locks its memory (mlockall(2)) neither populates nor locks it. It does count as
//! addresses (`RLIMIT_AS`). What is committed may be touched. It counts from then on, and where the
//! process locks its memory each page is locked as it comes.
//!
//! Lengths are bytes, whole pages. Source: mmap(2), mprotect(2), mlock(2), mlockall(2).
//!
//! # Safety
//! A fresh mapping is nobody's; committing is for the owner of a reserved range.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use crate::error::OsError;
use crate::sys::call::{answer, call};
use crate::sys::limits;
use crate::sys::madvise::{advise, Advice};
use crate::sys::mmap::{clear, make_readable, make_writable, map, span, unmap, Backing};
use crate::sys::page_size;
use crate::units::Bytes;

/// Addresses, and whether what is committed there is locked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) addr: usize,
    pub(crate) locks: bool,
}

/// Reserves `len` bytes of addresses. Where `readable`, a read finds zeros; else each touch is
/// SIGSEGV.
///
/// # Errors
/// What mmap(2) refuses: a limit on addresses, or on locked memory where the process locks all.
pub(crate) fn reserve(len: Bytes, readable: bool) -> Result<Addresses, OsError> {
    let addr = map(len, Backing::Addresses)?;
    // SAFETY: mapped just now; nobody else knows of it, and it holds nothing.
    unsafe {
        let locks = is_locked(addr);
        let made = if locks { unlock(addr, len) } else { Ok(()) };
        let made =
            made.and_then(|()| if readable { make_readable(addr, len, true) } else { Ok(()) });
        if let Err(error) = made {
            let _ = unmap(addr, len);
            return Err(error);
        }
        Ok(Addresses { addr, locks })
    }
}

/// Maps memory of which far more is mapped than will be touched at once; returns the address.
/// Pages come as they are touched, locked where the process locks its memory.
///
/// # Errors
/// What mmap(2) or mlock2(2) refuses: a limit on addresses, or on locked memory, where all of `len`
/// counts.
pub(crate) fn sparse(len: Bytes) -> Result<usize, OsError> {
    let Addresses { addr, locks } = reserve(len, false)?;
    // SAFETY: reserved just now; nobody else knows of it, and it holds nothing.
    unsafe {
        let made = commit(addr, len, locks);
        if made.is_err() {
            let _ = unmap(addr, len);
        }
        made.map(|()| addr)
    }
}

/// Makes a part of what was reserved readable and writable.
///
/// # Errors
/// What mprotect(2) or mlock2(2) refuses: a limit. The part may be writable nevertheless.
///
/// # Safety
/// The range is part of what the caller reserved, and was not committed: its first page is dropped.
pub(crate) unsafe fn commit(addr: usize, len: Bytes, locks: bool) -> Result<(), OsError> {
    // SAFETY: passed on to the caller.
    unsafe {
        // All of a locked mapping would be populated. It may have been locked since.
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

/// Puts addresses that read as zero in the place of what is mapped in a range, whose pages the
/// kernel has back. Every reader finds the one or the other.
///
/// # Errors
/// What mmap(2) refuses: too many mappings. Then what was there still is.
///
/// # Safety
/// The range is the caller's own, and nobody writes there or relies on its bytes.
pub(crate) unsafe fn vacate(addr: usize, len: Bytes, locks: bool) -> Result<(), OsError> {
    // SAFETY: passed on to the caller.
    unsafe { clear(addr, len, true) }?;
    if locks {
        // SAFETY: as above. What is refused stays locked, without memory.
        let _ = unsafe { unlock(addr, len) };
    }
    Ok(())
}

/// Tells whether the process locks what it maps, by the address of a page that came locked.
///
/// # Errors
/// What mmap(2) refuses.
pub(crate) fn locked_page() -> Result<Option<usize>, OsError> {
    let page = page_size().bytes();
    let addr = map(page, Backing::Addresses)?;
    // SAFETY: mapped just now, and nobody else knows of it.
    unsafe {
        let locks = is_locked(addr);
        let _ = unmap(addr, page);
        Ok(locks.then_some(addr))
    }
}

/// Whether a page without memory is locked: the kernel drops no pages of what is.
///
/// # Safety
/// The page is the caller's and holds nothing.
unsafe fn is_locked(addr: usize) -> bool {
    // SAFETY: passed on to the caller.
    let dropped = unsafe { advise(addr, page_size().bytes(), Advice::DontNeed) };
    dropped.is_err_and(|error| error.errno() == Some(libc::EINVAL))
}

/// Unlocks a range.
///
/// # Safety
/// The range is the caller's own.
pub(crate) unsafe fn unlock(addr: usize, len: Bytes) -> Result<(), OsError> {
    let at = ptr::with_exposed_provenance(addr);
    // SAFETY: it changes no contents; passed on to the caller.
    call("munlock", || span(addr, len), || unsafe { libc::munlock(at, len.as_usize()) })
}

/// Locks what of a range is present, and the rest as it comes.
///
/// # Safety
/// The range is the caller's own.
#[cfg(feature = "encrypt")]
pub(crate) unsafe fn lock(addr: usize, len: Bytes) -> Result<(), OsError> {
    // SAFETY: passed on to the caller.
    unsafe { lock_as_it_comes(addr, len) }
}

unsafe fn lock_as_it_comes(addr: usize, len: Bytes) -> Result<(), OsError> {
    let at = ptr::with_exposed_provenance(addr);
    let done = answer("mlock2", || {
        // SAFETY: it changes no contents; passed on to the caller.
        unsafe { libc::mlock2(at, len.as_usize(), libc::MLOCK_ONFAULT) }
    });
    done.map(drop).map_err(|source| {
        // The limit on locked memory is ENOMEM here, and EAGAIN elsewhere.
        let source = match source.raw_os_error() {
            Some(libc::ENOMEM) => io::Error::from_raw_os_error(libc::EAGAIN),
            _ => source,
        };
        limits::refused("mlock2", span(addr, len), source)
    })
}
