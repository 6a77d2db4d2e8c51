//! The copy of [`Handler::try_copy`](super::Handler::try_copy) in assembly for x86-64.
//!
//! The one instruction that touches memory stands between two labels; a handler that finds the
//! thread there puts the address into the register of the result and goes on behind the copy. So
//! nothing is kept for a copy under way, and copies may nest. The symbols carry the version: two
//! versions of the library in one program have two copies and two handlers.
//!
//! # Safety
//! Writes only where it is told to. The handler changes two registers, both of which the calling
//! convention leaves to the callee.
#![allow(unsafe_code)]

use std::arch::global_asm;
use std::ptr::addr_of;

use libc::{ucontext_t, REG_RAX, REG_RIP};

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
    "endbr64",
    "mov rcx, rdx",
    concat!(".weak \"", symbol!("_touch"), "\""),
    concat!(".hidden \"", symbol!("_touch"), "\""),
    concat!("\"", symbol!("_touch"), "\":"),
    "rep movsb",
    concat!(".weak \"", symbol!("_done"), "\""),
    concat!(".hidden \"", symbol!("_done"), "\""),
    concat!("\"", symbol!("_done"), "\":"),
    "xor eax, eax",
    concat!(".weak \"", symbol!("_lost"), "\""),
    concat!(".hidden \"", symbol!("_lost"), "\""),
    concat!("\"", symbol!("_lost"), "\":"),
    "ret",
    ".cfi_endproc",
    concat!(".size \"", symbol!(""), "\", . - \"", symbol!(""), "\""),
    ".popsection",
);

unsafe extern "C" {
    /// Zero, or the address that was lost. The direction flag is clear by the ABI.
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
        let at = (*context).uc_mcontext.gregs[REG_RIP as usize] as usize;
        (addr_of!(TOUCH).addr()..addr_of!(DONE).addr()).contains(&at)
    }
}

/// Has the copy end with `lost` when the handler returns.
///
/// # Safety
/// As [`is_copying`], which said yes.
pub unsafe fn end(context: *mut ucontext_t, lost: usize) {
    // SAFETY: the caller's.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    registers[REG_RAX as usize] = lost as i64;
    registers[REG_RIP as usize] = addr_of!(LOST).addr() as i64;
}
