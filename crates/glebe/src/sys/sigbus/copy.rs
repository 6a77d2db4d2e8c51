//! The copy of [`Handler::try_copy`](super::Handler::try_copy) in assembly.
//!
//! What touches memory stands between two labels; a handler that finds the thread there puts the
//! address into the register of the result and goes on behind the copy. So nothing is kept for a
//! copy under way, and copies may nest. The symbols carry the version: two versions of the library
//! in one program have two copies and two handlers.
//!
//! # Safety
//! Writes only where it is told to. The handler changes the result and where the thread goes on,
//! which the calling convention leaves to the callee.
#![allow(unsafe_code)]

use std::arch::global_asm;
use std::ptr::addr_of;

use libc::ucontext_t;

macro_rules! symbol {
    ($part:literal) => {
        concat!("glebe_", env!("CARGO_PKG_VERSION"), "_copy", $part)
    };
}

/// A label that stays within the library.
macro_rules! marked {
    ($part:literal) => {
        concat!(
            concat!(".weak \"", symbol!($part), "\"\n"),
            concat!(".hidden \"", symbol!($part), "\"\n"),
            concat!("\"", symbol!($part), "\":"),
        )
    };
}

/// The function around what a processor does: at its entry, for the touches, and for the answer.
macro_rules! copy {
    ([$($entry:literal),*] [$($touch:literal),*] [$($answer:literal),*]) => {
        global_asm!(
            ".pushsection .text.glebe_copy, \"ax\", @progbits",
            ".p2align 4",
            concat!(".type \"", symbol!(""), "\", @function"),
            marked!(""),
            ".cfi_startproc",
            $($entry,)*
            marked!("_touch"),
            $($touch,)*
            marked!("_done"),
            $($answer,)*
            marked!("_lost"),
            "ret",
            ".cfi_endproc",
            concat!(".size \"", symbol!(""), "\", . - \"", symbol!(""), "\""),
            ".popsection",
        );
    };
}

#[cfg(target_arch = "x86_64")]
copy!(["endbr64", "mov rcx, rdx"]["rep movsb"]["xor eax, eax"]);

#[cfg(target_arch = "aarch64")]
copy!(
    ["hint #34"] // bti c
    [
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
        "b.ne 4b"
    ]
    ["5: mov x0, #0"]
);

unsafe extern "C" {
    /// Zero, or the address that was lost. The direction flag of x86-64 is clear by the ABI.
    #[link_name = symbol!("")]
    pub fn copy(to: *mut u8, from: *const u8, len: usize) -> usize;
    #[link_name = symbol!("_touch")]
    static TOUCH: u8;
    #[link_name = symbol!("_done")]
    static DONE: u8;
    #[link_name = symbol!("_lost")]
    static LOST: u8;
}

/// The registers of the place and of the result.
///
/// # Safety
/// The context is that of a signal being handled.
#[cfg(target_arch = "x86_64")]
unsafe fn registers(context: *mut ucontext_t) -> (*mut u64, *mut u64) {
    // SAFETY: the caller's.
    let all = unsafe { &raw mut (*context).uc_mcontext.gregs }.cast::<u64>();
    (all.wrapping_add(libc::REG_RIP as usize), all.wrapping_add(libc::REG_RAX as usize))
}

/// As on x86-64.
///
/// # Safety
/// As there.
#[cfg(target_arch = "aarch64")]
unsafe fn registers(context: *mut ucontext_t) -> (*mut u64, *mut u64) {
    // SAFETY: the caller's.
    unsafe {
        let all = &raw mut (*context).uc_mcontext;
        (&raw mut (*all).pc, (&raw mut (*all).regs).cast())
    }
}

/// Whether the thread was inside the copy.
///
/// # Safety
/// The context is that of a signal being handled.
pub unsafe fn is_copying(context: *mut ucontext_t) -> bool {
    // SAFETY: the caller's; of the symbols only the addresses are used.
    unsafe {
        let (place, _) = registers(context);
        (addr_of!(TOUCH).addr()..addr_of!(DONE).addr()).contains(&(*place as usize))
    }
}

/// Has the copy end with `lost` when the handler returns.
///
/// # Safety
/// As [`is_copying`], which said yes.
pub unsafe fn end(context: *mut ucontext_t, lost: usize) {
    // SAFETY: the caller's.
    unsafe {
        let (place, result) = registers(context);
        *result = lost as u64;
        *place = addr_of!(LOST).addr() as u64;
    }
}
