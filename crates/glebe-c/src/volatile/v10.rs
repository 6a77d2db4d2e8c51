//! What `glebe_vrange.h` has stand in for the C library's `syscall` and `sigaction`.
//!
//! In a program built with that header the patches' system call is `glebe_vrange`, and tells errors
//! as a system call does. Every other one goes to the kernel as it came. A handler of SIGBUS that
//! wants a touch's address is told that of the page, for pages that the patches' call made
//! volatile. `syscall` has any number of arguments. All places where one may be are read, as the C
//! library does: the header names the machines where they are those of other functions.
//! Source: syscall(2), sigaction(2).
//!
//! # Safety
//! The callers' own calls and handlers, passed on.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};

use glebe::sys::{errno, peek, stand_in};

use super::adopted::is_volatile;
use super::vrange::as_patches;
use crate::boundary::{call_or_errno, Out};

/// The number that the patches give their call.
const VRANGE: c_long = 314;
/// On x86-64 the number is that of sched_setattr(2) today. Its first argument is a process, of
/// which the kernel has at most so many; no program has memory below that.
const PROCESSES_MAX: usize = 1 << 22;

#[no_mangle]
pub extern "C" fn glebe_vrange_syscall(
    number: c_long,
    start: usize,
    length: usize,
    mode: c_long,
    purged: Out<c_int>,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    if number != VRANGE || start < PROCESSES_MAX {
        let purged = purged.addr() as c_long;
        let arguments = [start as c_long, length as c_long, mode, purged, fifth, sixth];
        // SAFETY: the caller's call, with what it passed.
        return unsafe { stand_in::syscall(number, arguments) };
    }
    let before = errno::get();
    // An `int` is the lower half of its register.
    let done = call_or_errno(-1, || as_patches(start, length, mode as c_int, purged));
    if done >= 0 {
        errno::set(before);
    }
    done.into()
}

#[no_mangle]
pub extern "C" fn glebe_vrange_sigaction(
    signal: c_int,
    action: *const c_void,
    old: *mut c_void,
) -> c_int {
    // SAFETY: the caller's call; the handler is always the same.
    unsafe { stand_in::sigaction(signal, action, old, on_sigbus) }
}

unsafe extern "C" fn on_sigbus(signal: c_int, info: *mut c_void, context: *mut c_void) {
    // SAFETY: the kernel's own arguments.
    unsafe { stand_in::pass_on(signal, info, context, is_lost) }
}

/// Whether the touch was of a page that a call of the patches lets go. One that is there again has
/// been made non-volatile by another thread meanwhile.
fn is_lost(addr: usize) -> bool {
    is_volatile(addr) || peek::peek(addr, &mut [0]).is_ok_and(|there| there == 1)
}
