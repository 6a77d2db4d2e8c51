//! The copy of [`Handler::try_copy`](super::Handler::try_copy) in assembly for aarch64.
//!
//! As on x86-64: everything that touches memory stands between two labels, and what the handler
//! changes is the result and where the thread goes on.
//!
//! # Safety
//! Writes only where it is told to. The handler changes one register, which the calling convention
//! leaves to the callee.
#![allow(unsafe_code)]

use std::arch::global_asm;
use std::ptr::addr_of;

use libc::ucontext_t;

macro_rules! symbol {
    ($part:literal) => {
        concat!("glebe_", env!("CARGO_PKG_VERSION"), "_copy", $part)
    };
}

global_asm!(
    ".pushsection .text.glebe_copy, \"ax\", @progbits",
    ".p2align 4",
    concat!(".weak \"", symbol!(""), "\""),
    concat!(".hidden \"", symbol!(""), "\""),
    concat!(".type \"", symbol!(""), "\", @function"),
    concat!("\"", symbol!(""), "\":"),
    ".cfi_startproc",
    "hint #34", // bti c
    concat!(".weak \"", symbol!("_touch"), "\""),
    concat!(".hidden \"", symbol!("_touch"), "\""),
    concat!("\"", symbol!("_touch"), "\":"),
    "2: subs x2, x2, #16",
    "b.lo 3f",
    "ldp x4, x5, [x1], #16",
    "stp x4, x5, [x0], #16",
    "b 2b",
    "3: adds x2, x2, #16",
    "b.eq 5f",
    "4: ldrb w4, [x1], #1",
    "strb w4, [x0], #1",
    "subs x2, x2, #1",
    "b.ne 4b",
    concat!(".weak \"", symbol!("_done"), "\""),
    concat!(".hidden \"", symbol!("_done"), "\""),
    concat!("\"", symbol!("_done"), "\":"),
    "5: mov x0, #0",
    concat!(".weak \"", symbol!("_lost"), "\""),
    concat!(".hidden \"", symbol!("_lost"), "\""),
    concat!("\"", symbol!("_lost"), "\":"),
    "ret",
    ".cfi_endproc",
    concat!(".size \"", symbol!(""), "\", . - \"", symbol!(""), "\""),
    ".popsection",
);

unsafe extern "C" {
    /// Zero, or the address that was lost.
    #[link_name = symbol!("")]
    pub fn copy(to: *mut u8, from: *const u8, len: usize) -> usize;
    #[link_name = symbol!("_touch")]
    static TOUCH: u8;
    #[link_name = symbol!("_done")]
    static DONE: u8;
    #[link_name = symbol!("_lost")]
    static LOST: u8;
}

/// Whether the thread was inside the copy.
///
/// # Safety
/// The context is that of a signal being handled.
pub unsafe fn is_copying(context: *const ucontext_t) -> bool {
    // SAFETY: the caller's; of the symbols only the addresses are used.
    unsafe {
        let at = (*context).uc_mcontext.pc as usize;
        (addr_of!(TOUCH).addr()..addr_of!(DONE).addr()).contains(&at)
    }
}

/// Has the copy end with `lost` when the handler returns.
///
/// # Safety
/// As [`is_copying`], which said yes.
pub unsafe fn end(context: *mut ucontext_t, lost: usize) {
    // SAFETY: the caller's.
    let registers = unsafe { &mut (*context).uc_mcontext };
    registers.regs[0] = lost as u64;
    registers.pc = addr_of!(LOST).addr() as u64;
}
