//! The C library's names that this library takes over.
//!
//! # Safety
//! Exported for C: see the manual page of each.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::ptr;

use glebe_os::internal::sys::errno::{self, EBADF};
use glebe_os::internal::sys::memory::direct::{self, Answer};

use crate::view::View;
use crate::{advise, entry, files, moves, offers, own_files, unmap};

pub(crate) fn number(answer: Answer) -> c_int {
    answer.map_or_else(refused, |value| value as c_int)
}

fn refused(error: i32) -> c_int {
    errno::set(error);
    -1
}

pub(crate) fn pointer(answer: Answer) -> *mut c_void {
    match answer {
        Ok(address) => ptr::with_exposed_provenance_mut(address),
        Err(error) => ptr::without_provenance_mut(refused(error) as usize),
    }
}

/// mmap(2).
///
/// # Safety
/// See mmap(2).
#[no_mangle]
pub unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: c_long,
) -> *mut c_void {
    let addr = addr.expose_provenance();
    // SAFETY: the caller keeps the contract.
    pointer(unsafe { entry::mmap(View { addr, len, prot, flags, fd, offset }) })
}

/// mmap(2).
///
/// # Safety
/// See mmap(2).
#[no_mangle]
pub unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller keeps the contract.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

/// munmap(2).
///
/// # Safety
/// See munmap(2).
#[no_mangle]
pub unsafe extern "C" fn munmap(addr: *mut c_void, len: usize) -> c_int {
    // SAFETY: the caller keeps the contract.
    number(unsafe { unmap::munmap(addr.expose_provenance(), len) })
}

/// mremap(2). Its last argument is there only with `MREMAP_FIXED`, and is read only then.
///
/// # Safety
/// See mremap(2).
#[no_mangle]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let (old, new) = (old.expose_provenance(), new.expose_provenance());
    // SAFETY: the caller keeps the contract.
    pointer(unsafe { moves::mremap(old, old_len, len, flags, new) })
}

/// mprotect(2).
///
/// # Safety
/// See mprotect(2).
#[no_mangle]
pub unsafe extern "C" fn mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int {
    // SAFETY: the caller keeps the contract.
    number(unsafe { advise::mprotect(addr.expose_provenance(), len, prot) })
}

/// madvise(2).
///
/// # Safety
/// See madvise(2).
#[no_mangle]
pub unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller keeps the contract.
    number(unsafe { advise::madvise(addr.expose_provenance(), len, advice) })
}

/// Lets the daemon take private mappings: see the header `glebe_huge.h`.
///
/// # Safety
/// Exported for C.
#[no_mangle]
pub unsafe extern "C" fn glebe_huge_offer(addr: *mut c_void, len: usize) -> c_int {
    number(offers::offer(addr.expose_provenance(), len))
}

/// Keeps offered mappings: see the header `glebe_huge.h`.
///
/// # Safety
/// Exported for C.
#[no_mangle]
pub unsafe extern "C" fn glebe_huge_keep(addr: *mut c_void, len: usize) -> c_int {
    number(offers::keep(addr.expose_provenance(), len))
}

/// close(2). Own connections count as closed.
///
/// # Safety
/// See close(2).
#[no_mangle]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if own_files::has(fd) {
        return refused(EBADF);
    }
    // SAFETY: the caller keeps the contract.
    files::closing(fd, || number(unsafe { direct::close(fd) }))
}

/// close_range(2), except own connections.
///
/// # Safety
/// See close_range(2).
#[no_mangle]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: the caller keeps the contract.
    files::closing_many(|| unsafe { close_others(first, last, flags) })
}

unsafe fn close_others(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let mut first = first;
    while let Some(own) = own_files::lowest(first, last) {
        if own > first {
            // SAFETY: the caller keeps the contract.
            let closed = number(unsafe { direct::close_range(first, own - 1, flags as u32) });
            if closed != 0 {
                return closed;
            }
        }
        if own == last {
            return 0;
        }
        first = own + 1;
    }
    // SAFETY: the caller keeps the contract.
    number(unsafe { direct::close_range(first, last, flags as u32) })
}

/// closefrom(3), except own connections.
///
/// # Safety
/// See closefrom(3).
#[no_mangle]
pub unsafe extern "C" fn closefrom(least: c_int) {
    let _errno = errno::keep();
    // SAFETY: the caller keeps the contract.
    unsafe { close_range(least.max(0) as u32, u32::MAX, 0) };
}

/// dup2(2). Own connections cannot be replaced.
///
/// # Safety
/// See dup2(2).
#[no_mangle]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if own_files::has(to) {
        return refused(EBADF);
    }
    // SAFETY: the caller keeps the contract.
    files::closing(to, || number(unsafe { direct::dup2(from, to) }))
}

/// dup3(2). Own connections cannot be replaced.
///
/// # Safety
/// See dup3(2).
#[no_mangle]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if own_files::has(to) {
        return refused(EBADF);
    }
    // SAFETY: the caller keeps the contract.
    files::closing(to, || number(unsafe { direct::dup3(from, to, flags) }))
}
