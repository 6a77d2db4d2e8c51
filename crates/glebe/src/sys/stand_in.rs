//! syscall(2) and sigaction(2) for a program in whose calls another function stands in for them.
//!
//! Owns the program's own handler of SIGBUS where one that stands in was installed instead of it.
//! Such a handler gets the kernel's words, except that the address of a touch may be rounded down
//! to its page. Invariant: the program is never told of the handler that stands in. No lock, no
//! memory: sigaction may be called in a signal handler. Cost: that of the C library's function.
//! Source: syscall(2), sigaction(2).
//!
//! # Safety
//! Callers vouch for what the C library asks of its callers. The program's handler is called with
//! what the kernel gave.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::mem::transmute;
use std::ptr;

use libc::siginfo_t;

use crate::sync::{MappedPtr, Ordering};
use crate::sys::page_size;

/// A handler as `SA_SIGINFO` wants it.
pub type Front = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void);

/// The program's handler; set before the one that stands in can be called.
static BEHIND: MappedPtr<()> = MappedPtr::new(ptr::null_mut());

/// The part of `siginfo_t` that a touch fills, as the kernel lays it out on 64-bit machines.
#[repr(C)]
struct Touch {
    signal: c_int,
    errno: c_int,
    code: c_int,
    /// Rounded up to the alignment of the next.
    addr: usize,
}

const _: () = assert!(std::mem::offset_of!(Touch, addr) == 16 && size_of::<usize>() == 8);

/// Makes a system call with as many arguments as any has; -1 and the thread's error number where
/// the kernel refuses.
///
/// # Safety
/// The call's own.
pub unsafe fn syscall(number: c_long, arguments: [c_long; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's.
    unsafe { libc::syscall(number, a, b, c, d, e, f) }
}

/// Does what sigaction(2) does. A handler of SIGBUS that wants the signal's details is kept, and
/// `front` installed with its flags and mask.
///
/// # Safety
/// As sigaction(2), of its `struct sigaction`; `front` is always the same, and calls [`pass_on`].
pub unsafe fn sigaction(
    signal: c_int,
    action: *const c_void,
    old: *mut c_void,
    front: Front,
) -> c_int {
    let (action, old) = (action.cast::<libc::sigaction>(), old.cast::<libc::sigaction>());
    if signal != libc::SIGBUS {
        // SAFETY: the caller's.
        return unsafe { libc::sigaction(signal, action, old) };
    }
    let (front, before) = (front as *const () as usize, BEHIND.load(Ordering::Acquire));
    // SAFETY: the caller's: null, or there is one to read.
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
    // SAFETY: as the caller's call, of this function's copy.
    let answer = unsafe { libc::sigaction(signal, new, old) };
    if answer != 0 {
        BEHIND.store(before, Ordering::Release);
    }
    // SAFETY: the caller's: null, or filled by the call that succeeded.
    if let Some(old) = unsafe { old.as_mut() }.filter(|_| answer == 0) {
        if old.sa_sigaction == front {
            old.sa_sigaction = before.expose_provenance();
        }
    }
    answer
}

/// Calls the program's handler. Where the page of a touch cannot be had (`BUS_ADRERR`) and `rounds`
/// says so of its address, the handler is told the page's first. Keeps errno for it.
///
/// # Safety
/// In the handler that stands in, with its arguments.
pub unsafe fn pass_on(
    signal: c_int,
    info: *mut c_void,
    context: *mut c_void,
    rounds: impl FnOnce(usize) -> bool,
) {
    // SAFETY: the kernel's `info`, which a handler gets whole; the C library's word of this thread.
    // The program's handler was stored before this one was installed, and is of this type.
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
