//! [`syscall`] and [`sigaction`] serve a library that replaces these functions of a program.
//!
//! Where a program installs a SIGBUS handler with `SA_SIGINFO`, [`sigaction`] installs the
//! library's handler `front`, and hides `front`. Signal handlers may call [`sigaction`], which
//! takes no lock and allocates nothing. Source: syscall(2), sigaction(2).
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::mem::transmute;
use std::ptr;

use libc::siginfo_t;

use crate::internal::sync::{MappedPtr, Ordering};
use crate::internal::sys::page_size;

pub type Front = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void);

/// The program's handler, set before `front` runs.
static BEHIND: MappedPtr<()> = MappedPtr::new(ptr::null_mut());

/// Part of `siginfo_t`, in the kernel's 64-bit layout.
#[repr(C)]
struct Touch {
    signal: c_int,
    errno: c_int,
    code: c_int,
    addr: usize,
}

const _: () = assert!(std::mem::offset_of!(Touch, addr) == 16 && size_of::<usize>() == 8);

/// # Safety
/// The arguments satisfy the system call.
pub unsafe fn syscall(number: c_long, arguments: [c_long; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller keeps the contract.
    unsafe { libc::syscall(number, a, b, c, d, e, f) }
}

/// Calls sigaction(2). A SIGBUS handler with `SA_SIGINFO` is only stored, and `front` is installed
/// with that handler's flags and mask.
///
/// # Safety
/// The conditions of sigaction(2) hold. `front` is always the same function and calls [`pass_on`].
pub unsafe fn sigaction(
    signal: c_int,
    action: *const c_void,
    old: *mut c_void,
    front: Front,
) -> c_int {
    let (action, old) = (action.cast::<libc::sigaction>(), old.cast::<libc::sigaction>());
    if signal != libc::SIGBUS {
        // SAFETY: the caller keeps the contract.
        return unsafe { libc::sigaction(signal, action, old) };
    }
    let (front, before) = (front as *const () as usize, BEHIND.load(Ordering::Acquire));
    // SAFETY: the caller's `action` is null or readable.
    let mut new = unsafe { action.as_ref() }.copied();
    if let Some(new) = &mut new {
        let is_handler = ![libc::SIG_DFL, libc::SIG_IGN, front].contains(&new.sa_sigaction);
        if is_handler && new.sa_flags & libc::SA_SIGINFO != 0 {
            let behind = ptr::with_exposed_provenance_mut(new.sa_sigaction);
            BEHIND.store(behind, Ordering::Release);
            new.sa_sigaction = front;
        }
    }
    let new = new.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the arguments are the caller's, with a copy of `action`.
    let answer = unsafe { libc::sigaction(signal, new, old) };
    if answer != 0 {
        BEHIND.store(before, Ordering::Release);
    }
    // SAFETY: `old` is null or filled by the successful call.
    if let Some(old) = unsafe { old.as_mut() }.filter(|_| answer == 0) {
        if old.sa_sigaction == front {
            old.sa_sigaction = before.expose_provenance();
        }
    }
    answer
}

/// Calls the program's handler, with errno kept. If a page cannot be provided (`BUS_ADRERR`) and
/// `rounds` returns true for the address, the handler gets the page's first address.
///
/// # Safety
/// Called in `front`, with its arguments.
pub unsafe fn pass_on(
    signal: c_int,
    info: *mut c_void,
    context: *mut c_void,
    rounds: impl FnOnce(usize) -> bool,
) {
    // SAFETY: the kernel passed `info`, and the program's handler has this type.
    unsafe {
        let mut told = info.cast::<siginfo_t>().read();
        let touch = ptr::from_mut(&mut told).cast::<Touch>();
        let errno = libc::__errno_location();
        let kept = *errno;
        if (*touch).code == libc::BUS_ADRERR && rounds((*touch).addr) {
            (*touch).addr -= (*touch).addr % page_size().bytes().as_usize();
        }
        *errno = kept;
        let behind = BEHIND.load(Ordering::Acquire);
        let handler = transmute::<*mut (), unsafe extern "C" fn(_, *mut siginfo_t, _)>(behind);
        handler(signal, &mut told, context);
    }
}
