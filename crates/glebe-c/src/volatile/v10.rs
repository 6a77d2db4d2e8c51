//! Replaces the C library's `syscall` and `sigaction` in programs built with `glebe_vrange.h`.
//!
//! Call 314, of the volatile ranges patches, becomes `glebe_vrange`, with a system call's errors;
//! every other call reaches the kernel unchanged. For pages that `glebe_vrange` made volatile, a
//! SIGBUS handler with `SA_SIGINFO` gets the address of the page. `syscall` is variadic; like the C
//! library, the replacement always reads six arguments. The header lists the machines that pass
//! variadic arguments like fixed ones. Source: syscall(2), sigaction(2).
//!
//! # Safety
//! The callers vouch for their calls and handlers.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};

use glebe::internal::sys::errno;
use glebe::internal::sys::memory::peek;
use glebe::internal::sys::processes::stand_in;

use super::adopted::is_volatile;
use super::vrange::as_patches;
use crate::boundary::{call_or_errno, Out};

const VRANGE: c_long = 314;
/// The kernel's limit of process ids. On x86-64, call 314 is now sched_setattr(2), which takes a
/// process id first, so a call with a lower first argument goes to the kernel. Programs usually
/// have no memory at so low an address.
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
        // SAFETY: the caller vouches for its call.
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
    // SAFETY: the caller keeps the conditions of sigaction(2). Every call passes `on_sigbus`, as
    // `stand_in::sigaction` requires.
    unsafe { stand_in::sigaction(signal, action, old, on_sigbus) }
}

unsafe extern "C" fn on_sigbus(signal: c_int, info: *mut c_void, context: *mut c_void) {
    // SAFETY: the arguments are the kernel's.
    unsafe { stand_in::pass_on(signal, info, context, is_lost) }
}

/// Returns true if the page is volatile, or is readable now, because another thread has unmarked
/// the page since the SIGBUS.
fn is_lost(addr: usize) -> bool {
    is_volatile(addr) || peek::peek(addr, &mut [0]).is_ok_and(|there| there == 1)
}
